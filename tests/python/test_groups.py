"""Ranks are those of torch.distributed's process group where a script has made one, however it
was made; and a fork of a rank is refused what is its parent's, and disturbs no one.

Usage: test_groups.py, with PYTHONPATH and LIBZERO_LIBRARY_DIR. Exit code 77: there is no PyTorch.
"""

import atexit
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock

try:
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as mp
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

sys.path.insert(0, os.path.dirname(__file__))
import libzero.engine
import libzero.optim
from libzero import _group
from processes import fork_ranks, free_port, wait_for

torch.set_num_threads(1)
VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def make_engine(**options):
    torch.manual_seed(libzero.rank())  # rank 0's values are everybody's
    return libzero.initialize(
        torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 2)),
        lr=0.1,
        **{"stage": 3, **options},
    )


def train(engine, steps=2):
    """Each rank has its own data."""
    for _ in range(steps):
        engine.backward(engine(torch.full((2, 8), 1.0 + engine.rank)).square().mean())
        engine.step()


def show(engine, name=""):
    """A line that is the same for all who have trained together, and one for this rank."""
    lines = (
        f"trained{name} {engine.world_size} {engine.weights_xxh3():x}\nrank{name} {engine.rank}\n"
    )
    os.write(1, lines.encode())  # whole, where ranks have one file


def expect(kind, words, call, *arguments, **keywords):
    try:
        call(*arguments, **keywords)
    except kind as error:
        if not re.search(words, str(error)):
            raise
        print("refused", flush=True)
    else:
        raise AssertionError(f"no {kind.__name__}")


def forget_environment():
    """Return what torchrun would have said: the rank, how many, and a port."""
    said = [int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT")]
    for name in VARIABLES:
        os.environ.pop(name, None)
    return said


# ---- groups, by two ranks each -----------------------------------------------------------------


def group_by_environment():
    dist.init_process_group("gloo")
    engine = make_engine()
    train(engine)
    show(engine)


def group_by_arguments():
    rank, size, port = forget_environment()
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE=str(size))
    os.environ["ZR_COMM_SECRET"] = "a secret of this test"
    dist.init_process_group("gloo", rank=rank, world_size=size)
    group_of_file(made=True)


def group_of_file(made=False):
    """No address is said anywhere. Subgroups do not count."""
    if not made:
        rank, size, _ = forget_environment()
        dist.init_process_group(
            "gloo", init_method=f"file://{FOLDER}/store", rank=rank, world_size=size
        )
    for ranks in ([0], [1]):
        dist.new_group(ranks)
    engine = make_engine(checkpoint_sign="require" if made else "off")
    train(engine)
    show(engine)
    if dist.get_rank() == 0:  # the other one does not come
        expect(
            libzero.CommError,
            "rank 1 .*not heard within 200 ms",
            _group.Meeting(_group.find(), 200).meet,
            bytes,
        )


def group_of_store():
    """A store that the script has made. The environment has a port where nobody may listen."""
    rank, size, port = forget_environment()
    store = dist.TCPStore("127.0.0.1", port, size, rank == 0)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    engine = make_engine()
    train(engine)
    show(engine)


def other_environment():
    rank, size, port = forget_environment()
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size
    )
    backends = (
        ("mpi", libzero.StateError, f"group has this process as rank {rank} of 2, and MPI.*0 of 1"),
        ("threaded", libzero.UnsupportedError, "'threaded': its ranks are threads"),
    )
    for backend, kind, words in backends:
        with unittest.mock.patch.object(dist, "get_backend", lambda _, name=backend: name):
            expect(kind, words, libzero.rank)
    if rank == 1:
        os.environ["RANK"] = "0"
    # Rank 0 does not wait for long.
    kind, words = (
        (libzero.ArgumentError, "^RANK=0 .*rank 1 of 2.*set RANK to 1")
        if rank == 1
        else (libzero.CommError, "^rank 1 of 2: RANK=0 ")
    )
    expect(kind, words, libzero.rank)
    os.environ["RANK"] = str(rank)
    os.environ["WORLD_SIZE"] = "4"
    expect(libzero.Error, "WORLD_SIZE=4 .* of 2", make_engine)
    os.environ["WORLD_SIZE"] = "2"
    show(make_engine())


def group_later():
    """Each was alone before."""
    rank, size, port = forget_environment()
    engine = make_engine()
    train(engine)
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size
    )
    words = f"as rank {rank} of 2.*as rank 0 of 1.*libzero.close"
    for call in (engine.step, make_engine, libzero.rank, lambda: engine(torch.ones(1, 8))):
        expect(libzero.StateError, words, call)
    libzero.close()
    engine = make_engine()
    train(engine)
    show(engine)


def group_later_alike():
    """The launcher's ranks are the group's."""
    engine = make_engine()
    os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1)
    dist.init_process_group("gloo")
    train(engine)
    show(engine)


def groups_in_turn():
    """Ranks in the order of each group; and in the end one rank."""
    rank, size, port = forget_environment()
    store = dist.TCPStore("127.0.0.1", port, size, rank == 0)
    for turn, own in enumerate((rank, 1 - rank, rank)):
        dist.init_process_group(
            "gloo", store=dist.PrefixStore(str(turn), store), rank=own, world_size=size
        )
        engine = make_engine()
        train(engine)
        show(engine, f" {turn}")
        assert (libzero.rank(), libzero.world_size()) == (own, 2)
        dist.barrier()
        dist.destroy_process_group()
        assert libzero.rank() == own  # ranks are there without it
        train(engine)
        if turn == 0:
            libzero.close()
        else:
            engine.close()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    engine = make_engine()
    train(engine)
    show(engine, " alone")


def group_changes():
    """While an engine is open."""
    rank, size, port = forget_environment()
    store = dist.TCPStore("127.0.0.1", port, size, rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    engine = make_engine()
    train(engine)
    dist.barrier()
    dist.destroy_process_group()
    dist.init_process_group(
        "gloo", store=dist.PrefixStore("again", store), rank=rank, world_size=size
    )
    train(engine)  # by another group, it is the same rank
    dist.barrier()
    dist.destroy_process_group()
    dist.init_process_group(
        "gloo", store=dist.PrefixStore("turned", store), rank=1 - rank, world_size=size
    )
    expect(
        libzero.StateError,
        f"as rank {1 - rank} of 2.*as rank {rank} of 2.*libzero.close",
        engine.step,
    )
    libzero.close()
    show(make_engine())


def two_engines():
    """At once, and one after the other; the second time at another port."""
    dist.init_process_group("gloo")
    first, second = make_engine(), make_engine(stage=1)
    for _ in range(2):
        train(first, 1)
        train(second, 1)
    show(first, " first")
    show(second, " second")
    first.close()
    train(second, 1)
    libzero.close()
    engine = make_engine()
    train(engine)
    show(engine, " third")
    libzero.close()
    dist.barrier()
    dist.destroy_process_group()
    os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1)
    engine = make_engine()  # without a group, as the launcher says
    train(engine)
    show(engine, " fourth")


# ---- forks, of rank 1 of two --------------------------------------------------------------------


def in_fork(function):
    """The end of a fork that runs it."""
    sys.stdout.flush()
    process = os.fork()
    if process == 0:
        signal.alarm(60)
        function()
        sys.exit(0)  # through what atexit has
    return wait_for([process])[0]


def fail():
    raise KeyError("of a fork alone")


def use(engine):
    """All that a fork may not."""
    words = f"process {os.getppid()}, and this is process {os.getpid()}, a fork"
    inputs = torch.ones(1, 8)
    for call in (
        lambda: engine(inputs),
        engine.step,
        engine.weights_xxh3,
        lambda: engine.save_checkpoint(FOLDER),
    ):
        expect(libzero.StateError, words, call)
    expect(
        libzero.StateError,
        "fork of",
        lambda: libzero._c.check(libzero._c.lib.zr_unit_acquire(engine._units[0].handle, 0)),
    )
    assert (libzero.rank(), libzero.world_size()) == (1, 2)
    expect(
        libzero.StateError,
        f"{os.getpid()}, a fork of process {os.getppid()}, which is rank 1 of 2",
        make_engine,
    )
    engine.close()
    libzero.close("of a fork")


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.full((8,), float(index + libzero.rank()))


def train_with_workers(engine):
    loader = torch.utils.data.DataLoader(
        Numbers(), 2, num_workers=2, multiprocessing_context="fork", persistent_workers=True
    )
    for _ in range(2):
        for inputs in loader:
            engine.backward(engine(inputs).square().mean())
            engine.step()


def forks_of_a_rank():
    engine = make_engine(
        offload_optimizer="nvme", offload_params="nvme", nvme_path=FOLDER, sub_group=1024
    )
    train(engine)
    if engine.rank == 1:
        ends = [
            in_fork(function)
            for function in (lambda: None, fail, lambda: use(engine), lambda: os._exit(0))
        ]
        assert ends == [0, 1, 0, 0], ends
        process = multiprocessing.get_context("fork").Process(target=use, args=(engine,))
        process.start()
        process.join()
        assert process.exitcode == 0
        subprocess.run(["true"], preexec_fn=lambda: None, check=True)
    train(engine)
    train_with_workers(engine)
    show(engine)


def forks_of_a_group():
    """A fork that nobody has opened a rank in before is none of the group's."""
    dist.init_process_group("gloo")

    def ask():
        assert (libzero.rank(), libzero.world_size()) == (dist.get_rank(), 2)
        expect(libzero.StateError, "a fork is no rank", make_engine)

    assert in_fork(ask) == 0
    engine = make_engine(stage=0)

    def call_module():  # without memory that ranks share
        expect(libzero.StateError, "a fork of", engine.module, torch.ones(1, 8))

    assert in_fork(call_module) == 0
    train(engine)
    show(engine)


def killed_beside_its_fork():
    """The fork has no part in the connection: rank 0 sees its end, and does not wait for words."""
    engine = make_engine()
    train(engine)
    heard = f"{FOLDER}/heard"
    if engine.rank == 1 and os.fork() > 0:
        os.kill(os.getpid(), signal.SIGKILL)
    if engine.rank == 1:  # until rank 0 has seen it
        signal.alarm(60)
        while not os.path.exists(heard):
            time.sleep(0.05)
        os._exit(0)
    try:
        expect(libzero.CommError, "rank 1 is gone: its connection has ended", train, engine)
    finally:
        os.close(os.open(heard, os.O_CREAT))


def own_engine_in_fork():
    """Where the parent is alone, a fork may train, too."""
    forget_environment()
    engine = make_engine()
    optimizer = libzero.optim.AdamW([parameter := torch.nn.Parameter(torch.ones(4))])
    parameter.grad = torch.ones(4)
    optimizer.step()

    def train_own():
        expect(libzero.StateError, "the updater was created in process", optimizer.step)
        own = make_engine()
        train(own)
        show(own)
        expect(libzero.StateError, "a fork", engine.step)

    assert in_fork(train_own) == 0
    optimizer.step()
    train(engine)
    show(engine)


CASES = (
    group_by_environment,
    group_by_arguments,
    group_of_file,
    group_of_store,
    other_environment,
    group_later,
    group_later_alike,
    groups_in_turn,
    group_changes,
    two_engines,
    forks_of_a_rank,
    forks_of_a_group,
    killed_beside_its_fork,
)


class Groups(unittest.TestCase):
    def trained(self, said, name=""):
        return re.findall(rf"^trained{name} (\d+) (\w+)$", said, re.MULTILINE)

    def check(self, case, *names, refused=(0, 0)):
        """Both ranks have trained together, as different ranks."""
        said, codes = ENDED[case]
        self.assertEqual(codes, [0, 0], said)
        for name in names or ("",):
            self.assertEqual(self.trained(said[0], name), self.trained(said[1], name))
            self.assertEqual([size for size, _ in self.trained(said[0], name)], ["2"], said)
            self.assertEqual(
                sorted(re.search(rf"^rank{name} (\d)$", text, re.MULTILINE)[1] for text in said),
                ["0", "1"],
            )
        self.assertEqual(
            tuple(len(re.findall("^refused$", text, re.MULTILINE)) for text in said), refused, said
        )

    def test_by_environment(self):
        self.check("group_by_environment")

    def test_by_arguments(self):
        self.check("group_by_arguments", refused=(1, 0))

    def test_all_are_one_run(self):
        """Ranks found by whatever means train alike."""
        alike = {
            self.trained(ENDED[case][0][0])[0]
            for case in (
                "group_by_environment",
                "group_by_arguments",
                "group_of_file",
                "group_of_store",
            )
        }
        self.assertEqual(len(alike), 1)

    def test_of_file(self):
        self.check("group_of_file", refused=(1, 0))

    def test_of_store(self):
        self.check("group_of_store")

    def test_other_environment(self):
        self.check("other_environment", refused=(4, 4))

    def test_later(self):
        self.check("group_later", refused=(4, 4))

    def test_later_alike(self):
        self.check("group_later_alike")

    def test_in_turn(self):
        self.check("groups_in_turn", " 0", " 1", " 2")
        self.assertEqual(
            {self.trained(text, " alone")[0][0] for text in ENDED["groups_in_turn"][0]}, {"1"}
        )

    def test_changes(self):
        self.check("group_changes", refused=(1, 1))

    def test_two_engines(self):
        self.check("two_engines", " first", " second", " third", " fourth")
        said = ENDED["two_engines"][0][0]
        self.assertEqual(
            len(
                {
                    self.trained(said, f" {name}")[0]
                    for name in ("first", "second", "third", "fourth")
                }
            ),
            1,
        )

    def test_forks_of_a_rank(self):
        """Refused: in rank 1's forks, which are two of those that use the engine."""
        self.check("forks_of_a_rank", refused=(0, 12))

    def test_forks_of_a_group(self):
        self.check("forks_of_a_group", refused=(2, 2))

    def test_killed_beside_its_fork(self):
        said, codes = ENDED["killed_beside_its_fork"]
        self.assertEqual(codes, [0, -signal.SIGKILL], said)
        self.assertIn("refused", said[0])

    def test_own_engine_in_fork(self):
        said, codes = ENDED["own_engine_in_fork"]
        self.assertEqual(codes, [0], said)
        trained = self.trained(said[0])
        self.assertEqual(len(trained), 2, said)
        self.assertEqual(trained[0], trained[1])

    def test_started_by_pytorch(self):
        """As torch.multiprocessing.spawn starts them, with numbers as arguments."""
        said, codes = ENDED["started_by_pytorch"]
        self.assertEqual(codes, [0], said)
        self.assertEqual([size for size, _ in self.trained(said[0])], ["2", "2"], said)
        self.assertEqual(len(set(self.trained(said[0]))), 1, said)

    def test_fake(self):
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
        self.addCleanup(dist.destroy_process_group)
        with self.assertRaisesRegex(libzero.UnsupportedError, "'fake'.*gloo"):
            libzero.rank()


def work_by_arguments(rank, port):
    forget_environment()
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    engine = make_engine()
    train(engine)
    show(engine)


def started_by_pytorch():
    mp.start_processes(work_by_arguments, (free_port(),), 2, start_method="fork")


if __name__ == "__main__":
    # All at once: ranks begin here, so that an error goes where an error of a script goes.
    FOLDER = tempfile.mkdtemp(prefix="libzero-")
    started = {}
    for case, n in [
        *((case, 2) for case in CASES),
        (own_engine_in_fork, 1),
        (started_by_pytorch, 1),
    ]:
        started[case.__name__] = fork_ranks(n, f"{FOLDER}/{case.__name__}")
        if started[case.__name__] is None:
            case()
            sys.exit()
    ENDED = {}
    for name, processes in started.items():
        codes, said = wait_for(processes), []
        for rank in range(len(processes)):
            with open(f"{FOLDER}/{name}{rank}") as file:
                said.append(file.read())
        ENDED[name] = said, codes
    atexit.register(shutil.rmtree, FOLDER)
    unittest.main(verbosity=2)
