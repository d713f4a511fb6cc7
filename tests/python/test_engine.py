"""libzero.initialize: a module trains as with plain torch, at every stage and placement, alone and as two processes,
which end in the same bits.

Usage: test_engine.py [NAME...], with PYTHONPATH and LIBZERO_LIBRARY_DIR: Parity.test_gpt2, Checkpoints, ...
ZR_TEST_WHOLE=1 has all architectures at all placements, and 4 processes as well. Exit code 77: there is no PyTorch.
"""

import contextlib
import json
import os
import subprocess
import sys
import unittest
import unittest.mock

try:
    import torch
    from torch.multiprocessing.reductions import StorageWeakRef
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

os.environ["LIBZERO_POISON"] = "1"  # memory that is given back is overwritten
sys.path.insert(0, os.path.dirname(__file__))

import libzero
import models
from processes import run_as_ranks_first

torch.set_num_threads(1)
N_STEPS = 20
IS_WHOLE = "ZR_TEST_WHOLE" in os.environ  # all architectures at all placements, and 4 processes as well
models.make("gpt2"), models.make("llama")  # imported once
run_as_ranks_first(*((2, 4) if IS_WHOLE else (2,)))

HYPER = {"lr": 1e-2, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.05, "epsilon": 1e-5, "clip": 0.5}
RANK, N_RANKS = libzero.rank(), libzero.world_size()

NVME = {"nvme_path": os.environ.get("TMPDIR", "/tmp"), "nvme_capacity": "64MiB"}
PLACEMENTS = [
    {"stage": 0},
    {"stage": 1},
    {"stage": 2},
    {"stage": 3},
    {"stage": 0, "offload_optimizer": "cpu"},
    {"stage": 1, "offload_optimizer": "nvme", "master": "apart", **NVME},
    {"stage": 2, "offload_optimizer": "cpu"},
    {"stage": 3, "offload_optimizer": "nvme", "master": "apart", **NVME},
    {"stage": 3, "offload_params": "cpu"},
    {"stage": 3, "offload_optimizer": "nvme", "offload_params": "nvme", **NVME},
]


def train_plain(name, n_steps=N_STEPS, accum=1):
    """What torch does with all ranks' batches: losses, and the module."""
    model = models.make(name)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=HYPER["lr"], betas=(HYPER["beta1"], HYPER["beta2"]), eps=1e-5,
        weight_decay=HYPER["weight_decay"])
    losses = []
    parts = [models.batches(name, r, N_RANKS) for r in range(N_RANKS)]
    for _ in range(n_steps):
        optimizer.zero_grad()
        total = 0.0
        for _ in range(accum):
            for part in parts:
                loss = model(*next(part)) / (accum * N_RANKS)
                loss.backward()
                total += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), HYPER["clip"])
        optimizer.step()
        losses.append(total)
    return losses, model


def train_engine(engine, name, n_steps=N_STEPS, accum=1):
    losses = []
    batches = models.batches(name, RANK, N_RANKS)
    for _ in range(n_steps):
        total = 0.0
        for _ in range(accum):
            loss = engine(*next(batches))
            engine.backward(loss)
            engine.step()
            total += loss.item() / accum
        losses.append(engine.average(total))
    return losses


class Parity(unittest.TestCase):
    """Losses and weights of 20 steps are torch's to 1e-5, and equal bits at every stage and placement."""

    def check(self, name):
        expected, plain = train_plain(name)
        hashes = {}
        is_all = IS_WHOLE or name in ("odd", "gpt2") and N_RANKS > 1
        for placement in PLACEMENTS if is_all else PLACEMENTS[::3]:
            with libzero.initialize(models.make(name), **HYPER, **placement) as engine:
                losses = train_engine(engine, name)
                state = engine.state_dict()
                hashes[str(placement)] = engine.weights_xxh3()
            worst = max(abs(a - b) for a, b in zip(losses, expected))
            self.assertLess(worst, 1e-5, placement)
            self.assertGreater(expected[0] - expected[-1], 0.01, "it learns")
            for key, value in plain.state_dict().items():
                if value.numel():
                    self.assertLess((state[key] - value).abs().max().item(), 1e-5, (key, placement))
        self.assertEqual(len(set(hashes.values())), 1, hashes)


def add_parity(name):
    def test(self):
        self.check(name)

    setattr(Parity, f"test_{name}", test)


for _name in models.MODELS if IS_WHOLE else models.USUAL:
    add_parity(_name)


class Checkpointed(torch.nn.Module):
    """A module that computes each of its blocks again in backward."""

    def __init__(self, use_reentrant):
        super().__init__()
        torch.manual_seed(3)
        self.first = torch.nn.Linear(8, 8)
        self.blocks = torch.nn.ModuleList(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 8)) for _ in range(3))
        self.last = torch.nn.Linear(8, 4)
        self.use_reentrant = use_reentrant

    def forward(self, x, y):
        x = self.first(x)
        for block in self.blocks:
            if self.use_reentrant is None:
                x = x + block(x)
            else:
                x = x + torch.utils.checkpoint.checkpoint(block, x, use_reentrant=self.use_reentrant)
        return torch.nn.functional.mse_loss(self.last(x), y)


class Choosy(torch.nn.Module):
    """Which of its parts a rank uses is said by `used`."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.parts = torch.nn.ModuleList(Pair() for _ in range(2))

    def forward(self, x, used):
        for part in self.parts:
            x = part(x, used)
        return x.square().mean()


class Pair(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.always, self.sometimes = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def forward(self, x, used):
        x = torch.tanh(self.always(x))
        return x + self.sometimes(x) if used else x


STAGES = [{"stage": 0}, {"stage": 1}, {"stage": 2}, {"stage": 3, "offload_params": "cpu"}]


def with_torch(kind, own=None, **keywords):
    model = models.make("mlp")
    return libzero.initialize(model, optimizer=kind(model.parameters(), lr=0.01, **keywords), **(own or {}))


def on_cuda():
    """A module whose weight says so, on any machine."""
    module = torch.nn.Linear(2, 2)
    with torch._subclasses.FakeTensorMode():
        module.weight = torch.nn.Parameter(torch.empty(2, 2, device="cuda"))
    return module


@unittest.skipIf(RANK > 0 or N_RANKS > 1, "one process tests it")
class Imports(unittest.TestCase):
    def test_order(self):
        """libzero may be imported before torch and numpy, as well as after."""
        code = "import libzero; libzero.options(); import torch, libzero.optim; print(torch.ones(3).numpy().sum())"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout), (0, "3.0\n"), done.stderr)


class Behaviour(unittest.TestCase):
    """What a training script does beyond the plain loop."""

    def each_stage(self, make, train, stages=STAGES, **options):
        """The same result, and the same bits, at each stage."""
        seen = []
        for stage in stages:
            with self.subTest(**stage), libzero.initialize(make(), **{**HYPER, **stage, **options}) as engine:
                seen.append((train(engine), engine.weights_xxh3()))
        self.assertEqual(len(seen), len(stages))
        for result in seen[1:]:
            self.assertEqual(result, seen[0])
        return seen[0]

    def test_accumulation(self):
        expected, _ = train_plain("mlp", 6, accum=3)
        _, hashed = self.each_stage(
            lambda: models.make("mlp"), lambda e: self.assert_near(train_engine(e, "mlp", 6, 3), expected),
            grad_accum=3, reduce="every-micro-batch")
        for stage in ({"stage": 0}, {"stage": 3}):  # sums in another order: near, not equal
            with libzero.initialize(models.make("mlp"), grad_accum=3, **HYPER, **stage) as engine:
                self.assert_near(train_engine(engine, "mlp", 6, 3), expected)

    def assert_near(self, values, expected, most=1e-5):
        self.assertLess(max(abs(a - b) for a, b in zip(values, expected, strict=True)), most)

    def test_no_sync(self):
        """Two micro-batches without a reduction and one with are three that are added up."""
        def plain():
            torch.manual_seed(7)
            model = models.make("mlp")
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            parts = [models.batches("mlp", r, N_RANKS) for r in range(N_RANKS)]
            for _ in range(3):
                for part in parts:
                    (model(*next(part)) / N_RANKS).backward()
            optimizer.step()
            return model.state_dict()

        def train(engine):
            batches = models.batches("mlp", RANK, N_RANKS)
            with engine.no_sync():
                for _ in range(2):
                    engine.backward(engine(*next(batches)))
                with self.assertRaises(libzero.StateError):
                    engine.step()
            engine.backward(engine(*next(batches)))
            self.assertTrue(engine.step())
            state = engine.state_dict()
            for name, value in plain().items():
                self.assertLess((state[name] - value).abs().max().item(), 1e-6, name)

        self.each_stage(lambda: models.make("mlp"), train, optimizer="sgd", lr=0.1, clip=0, weight_decay=0,
                        beta1=None, beta2=None, epsilon=None)

    def test_recomputation(self):
        def train(engine):
            batches = models.batches("mlp", RANK, N_RANKS)
            for _ in range(5):
                engine.backward(engine(*next(batches)))
                engine.step()

        results = [self.each_stage(lambda: Checkpointed(reentrant), train) for reentrant in (None, False, True)]
        self.assertEqual(results[0], results[1])
        self.assertEqual(results[0], results[2])

    def test_recomputation_of_transformers(self):
        results = []
        for keywords in (None, {"use_reentrant": False}, {"use_reentrant": True}):
            def make():
                model = models.make("llama")
                if keywords is not None:
                    model.model.gradient_checkpointing_enable(keywords)
                return model.train()
            results.append(self.each_stage(make, lambda e: train_engine(e, "llama", 4), STAGES[::3]))
        self.assertEqual(results[0], results[1])
        self.assertEqual(results[0], results[2])

    def test_bf16(self):
        def train(engine):
            self.assertEqual({p.dtype for p in engine.parameters()}, {torch.bfloat16})
            return train_engine(engine, "gpt2", 5)

        losses, _ = self.each_stage(lambda: models.make("gpt2"), train, dtype="bf16")
        expected, _ = train_plain("gpt2", 5)
        self.assert_near(losses, expected, 0.05)

    def test_exception_in_forward(self):
        """The next step goes on as if it had not been."""
        def train(engine):
            batches = models.batches("gpt2", RANK, N_RANKS)
            for i in range(4):
                if i == 2:
                    with self.assertRaises(IndexError):
                        engine(torch.full((1, 4), 1000))
                engine.backward(engine(*next(batches)))
                engine.step()

        def undisturbed(engine):
            train_engine(engine, "gpt2", 4)

        self.assertEqual(self.each_stage(lambda: models.make("gpt2"), train),
                         self.each_stage(lambda: models.make("gpt2"), undisturbed, STAGES[:1]))

    def test_exception_in_backward(self):
        """The step is given up, with its micro-batches so far, and can be made again as if it had not been."""
        def train(engine, fails):
            batches = models.batches("mlp", RANK, N_RANKS)
            for i in range(4):
                two = [next(batches), next(batches)]
                for failing in ((0, 1) if fails else ()):
                    layer = engine.module.blocks[1][0]
                    with contextlib.ExitStack() as stack:
                        if failing:
                            engine.backward(engine(*two[0]))
                        stack.callback(layer.register_full_backward_hook(self.raise_an_error).remove)
                        with self.assertRaisesRegex(KeyError, "no cheese"):
                            engine.backward(engine(*two[failing]))
                    with self.assertRaisesRegex(libzero.StateError, "no backward"):
                        engine.step()
                for batch in two:
                    engine.backward(engine(*batch))
                    engine.step()

        for reentrant in (None, False, True):
            results = [self.each_stage(lambda: Checkpointed(reentrant), lambda e: train(e, fails), grad_accum=2, reduce="every-micro-batch")
                       for fails in (False, True)]
            self.assertEqual(*results)

    def test_updates_in_backward(self):
        """The bits are those of updates at the end. After an exception a part is updated: a checkpoint makes it whole."""
        def make():
            return models.make("mlp")

        hyper = {**HYPER, "clip": 0, "check_overflow": False}
        folder = os.environ["ZR_TEST_FOLDER"] + f"-early-{N_RANKS}"
        with libzero.initialize(make(), stage=2, **hyper) as engine:
            losses = train_engine(engine, "mlp", 6)
            expected = engine.weights_xxh3()
        for place in ({"stage": 2}, {"stage": 3}, {"stage": 3, "offload_optimizer": "cpu"}):
            with libzero.initialize(make(), update_at="backward", **hyper, **place) as engine:
                self.assertEqual(train_engine(engine, "mlp", 6), losses)
                self.assertEqual(engine.weights_xxh3(), expected)
                engine.save_checkpoint(folder)
                batch = next(models.batches("mlp", RANK, N_RANKS))
                handle = engine.module.layers[2].register_full_backward_hook(self.raise_an_error)
                with self.assertRaisesRegex(KeyError, "no cheese"):
                    engine.backward(engine(*batch))
                handle.remove()
                for call in (engine.step, lambda: engine(*batch), engine.weights_xxh3):
                    with self.assertRaisesRegex(libzero.StateError, "some parameters updated and others not.*load_checkpoint"):
                        call()
                engine.load_checkpoint(folder)
                self.assertEqual(engine.weights_xxh3(), expected)
                train_engine(engine, "mlp", 1)

    def raise_an_error(self, *_):
        raise KeyError("no cheese")

    def test_order_of_reductions(self):
        """It is that of the first backward, so that a unit is reduced as soon as its gradients are there."""
        class Backwards(torch.nn.Module):
            def __init__(self):
                super().__init__()
                torch.manual_seed(3)
                self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(4))
                self.unused = torch.nn.Linear(2, 2)

            def forward(self, x, y, order=(2, 0, 3, 1)):
                for i in order:
                    x = torch.tanh(self.layers[i](x))
                return torch.nn.functional.mse_loss(x[:, :4], y)

        def train(engine):
            batches, reduced = models.batches("mlp", RANK, N_RANKS), []
            reduce = engine._reduce
            engine._reduce = lambda unit: (reduced.append((unit.name, engine._in_backward_of)), reduce(unit))
            for layer in engine.module.layers:  # its output's gradient is known: those behind it are complete
                layer.register_full_backward_hook(lambda m, *_: setattr(engine, "_in_backward_of", m))
            for _ in range(3):
                engine._in_backward_of = None
                engine.backward(engine(*next(batches)))
                engine.step()
            names = [name for name, _ in reduced]
            self.assertEqual(sorted(names[:5]), sorted(names[5:10]))
            self.assertEqual(names[5:10], ["layers.1", "layers.3", "layers.0", "layers.2", "unused"])
            self.assertEqual(names[10:], names[5:10])
            layers = engine.module.layers
            self.assertIn(reduced[5][1], (None, layers[1]))  # not only when the layers in front of it have ended
            self.assertIn(reduced[6][1], (layers[1], layers[3]))
            return names

        self.each_stage(Backwards, train)

    def test_modules_in_dictionaries(self):
        """Found by a name that the batch says; outputs and inputs are dictionaries."""
        class Heads(torch.nn.Module):
            def __init__(self):
                super().__init__()
                torch.manual_seed(3)
                self.heads = torch.nn.ModuleDict({n: torch.nn.Linear(8, 4) for n in ("a", "b", "c")})

            def forward(self, batch):
                return {n: torch.nn.functional.mse_loss(self.heads[n](batch["x"]), batch["y"]) for n in batch["names"]}

        def train(engine):
            batches, losses = models.batches("mlp", RANK, N_RANKS), []
            for names in ("abc", "cb", "ac"):
                x, y = next(batches)
                found = engine({"x": x, "y": y, "names": names})
                engine.backward(sum(found.values()))
                engine.step()
                losses.append({n: v.item() for n, v in found.items()})
            return losses

        self.each_stage(Heads, train)

    def test_mixed_dtypes(self):
        """Parameters and activations in bf16 with parts in fp32, as norms are, and buffers and inputs of other dtypes."""
        class Mixed(torch.nn.Module):
            def __init__(self):
                super().__init__()
                torch.manual_seed(3)
                self.first, self.norm, self.last = torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 4)
                self.register_buffer("scale", torch.full((8,), 0.5, dtype=torch.float64))
                self.register_buffer("places", torch.arange(8).flip(0))

            def forward(self, x, y):
                x = self.first(x.to(self.first.weight.dtype))
                x = torch.nn.functional.layer_norm(x.float(), (8,), self.norm.weight.float(), self.norm.bias.float())
                x = (x.double() * self.scale)[:, self.places].to(self.last.weight.dtype)
                return torch.nn.functional.mse_loss(self.last(x).float(), y)

        for dtype in ("fp32", "bf16"):
            def train(engine):
                self.assertEqual(engine.module.scale.dtype, torch.float64)
                return train_engine(engine, "mlp", 5)

            losses, _ = self.each_stage(Mixed, train, dtype=dtype)
            self.assertLess(losses[4], losses[0])
        half = Mixed()
        half.first.bfloat16()
        with self.assertRaisesRegex(libzero.ArgumentError, "parameter first.weight is torch.bfloat16.*set dtype"):
            libzero.initialize(half)
        with libzero.initialize(half, dtype="bf16") as engine:
            train_engine(engine, "mlp", 1)

    def test_evaluation_between(self):
        def train(engine):
            batches, seen = models.batches("llama", RANK, N_RANKS), []
            for _ in range(3):
                loss = engine(*next(batches))
                engine.backward(loss)
                engine.eval()
                with torch.no_grad():
                    seen.append(engine(*next(batches)).item())
                engine.train()
                engine.step()
                with torch.no_grad():
                    seen.append(engine(*next(batches)).item())
            return seen

        self.each_stage(lambda: models.make("llama"), train)

    def test_a_parameter_that_one_rank_does_not_use(self):
        def train(engine):
            for step in range(4):
                x = torch.full((2, 8), 0.1 * (RANK + 1 + step))
                engine.backward(engine(x, used=(RANK + step) % 2 == 0))
                engine.step()

        self.each_stage(Choosy, train)

    def test_groups(self):
        def groups(model):
            return [{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.3},
                    {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0, "lr": 3e-3}]

        for stage in STAGES:
            plain = models.make("mlp")
            optimizer = torch.optim.AdamW(groups(plain), lr=1e-2, betas=(0.9, 0.99), eps=1e-5)
            parts = [models.batches("mlp", r, N_RANKS) for r in range(N_RANKS)]
            for _ in range(5):
                optimizer.zero_grad()
                for part in parts:
                    (plain(*next(part)) / N_RANKS).backward()
                optimizer.step()
            model = models.make("mlp")
            with libzero.initialize(model, model_parameters=groups(model), **{**HYPER, **stage, "clip": 0}) as engine:
                train_engine(engine, "mlp", 5)
                for name, value in engine.state_dict().items():
                    self.assertLess((plain.state_dict()[name] - value).abs().max().item(), 1e-5, name)

    def test_optimizers_of_torch(self):
        """One that is given says what to do, and schedulers move its rates."""
        def make(kind, keywords):
            model = models.make("mlp")
            groups = [{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.3},
                      {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0, "lr": 3e-3}]
            optimizer = kind(groups, lr=1e-2, **keywords)
            return model, optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))

        for kind, keywords in [(torch.optim.AdamW, {"eps": 1e-5}), (torch.optim.SGD, {"momentum": 0.9, "nesterov": True})]:
            plain, optimizer, scheduler = make(kind, keywords)
            parts = [models.batches("mlp", r, N_RANKS) for r in range(N_RANKS)]
            for _ in range(5):
                optimizer.zero_grad()
                for part in parts:
                    (plain(*next(part)) / N_RANKS).backward()
                optimizer.step()
                scheduler.step()
            expected = plain.state_dict()
            for stage in STAGES[::3]:
                model, optimizer, scheduler = make(kind, keywords)
                with libzero.initialize(model, optimizer=optimizer, lr_scheduler=scheduler, **stage) as engine:
                    train_engine(engine, "mlp", 5)
                    self.assert_near(engine.get_lr(), [1e-2 / 6, 3e-3 / 6], 1e-12)
                    for name, value in engine.state_dict().items():
                        self.assertLess((expected[name] - value).abs().max().item(), 1e-5, name)

    def test_what_changes_later(self):
        """Parameters that are thawed, or new, are refused, not passed over."""
        with libzero.initialize(models.make("odd"), stage=0) as engine:
            engine.module.frozen.requires_grad_(True)
            with self.assertRaisesRegex(libzero.UnsupportedError, "parameter frozen.weight was frozen"):
                engine.backward(engine(next(models.batches("odd", RANK, N_RANKS))[0]))
        with libzero.initialize(models.make("odd"), stage=0) as engine:
            engine.module.blocks.append(torch.nn.Linear(8, 8))
            with self.assertRaisesRegex(libzero.UnsupportedError, "is new"):
                engine.backward(engine(next(models.batches("odd", RANK, N_RANKS))[0]))

    def test_refused(self):
        for stage in STAGES:
            with libzero.initialize(models.make("mlp"), **HYPER, **stage) as engine:
                x, y = next(models.batches("mlp", RANK, N_RANKS))
                with self.assertRaisesRegex(libzero.StateError, "no backward"):
                    engine.step()
                with torch.no_grad(), self.assertRaisesRegex(libzero.ArgumentError, "no grad_fn"):
                    engine.backward(engine(x, y))
                engine.backward(engine(x, y))
                with self.assertRaisesRegex(libzero.StateError, "within a step"):
                    engine.save_checkpoint("/tmp/none")
                engine.step()
                with self.assertRaisesRegex(libzero.UnsupportedError, "was changed"), engine.gathered():
                    engine.module.layers[0].weight.data[0, 0] += 1
            with self.assertRaisesRegex(libzero.StateError, "closed"):
                engine(x, y)
            with self.assertRaisesRegex(libzero.ArgumentError, "layers.0.weight has no values.*closed"):
                libzero.initialize(engine.module, **stage)
        for make, words in [
            (lambda: libzero.initialize(models.make("mlp").double()), "float64"),
            (lambda: libzero.initialize(models.make("mlp"), optimizer=torch.optim.SGD), "torch.optim.Optimizer"),
            (lambda: with_torch(torch.optim.Adagrad), "Adagrad"),
            (lambda: with_torch(torch.optim.AdamW, amsgrad=True), "amsgrad"),
            (lambda: with_torch(torch.optim.Adam, weight_decay=0.1), "use AdamW"),
            (lambda: with_torch(torch.optim.AdamW, own={"beta1": 0.5}), "beta1"),
            (lambda: with_torch(torch.optim.AdamW, own={"config": {"scheduler": {"type": "WarmupLR"}}}), "scheduler"),
            (lambda: libzero.initialize(models.make("mlp"), units=["layers.9"]), "layers.9"),
            (lambda: libzero.initialize(models.make("mlp"), units=["layers", "layers.0"]), "part of 'layers'"),
            (lambda: libzero.initialize(models.make("mlp"), model_parameters=[{"params": [], "beta": 1}]), "beta"),
            (lambda: libzero.initialize(models.make("mlp"), model_parameters=[{"params": []}]), "layers.0.weight"),
            (lambda: libzero.initialize(torch.nn.ReLU()), "no parameters"),
            (lambda: libzero.initialize(on_cuda()), r"parameter weight is on cuda:0: .* move the model with .cpu\(\)"),
        ]:
            with self.assertRaisesRegex(libzero.Error, words):
                make()

    def test_changes_from_outside(self):
        """A change of parameters that would be lost is an error."""
        x, y = next(models.batches("mlp", RANK, N_RANKS))

        def in_place(model):
            with torch.no_grad():
                model.layers[0].weight.clamp_(-0.01, 0.01)

        for change in (in_place, lambda model: model.double()):
            for stage in STAGES:
                if change is in_place and N_RANKS == 1 and stage["stage"] < 3:
                    continue  # it is followed: test_habits.py
                with libzero.initialize(models.make("mlp"), **HYPER, **stage) as engine:
                    with self.assertRaises(libzero.UnsupportedError):
                        with engine.gathered() if stage["stage"] == 3 else contextlib.nullcontext():
                            change(engine.module)
                        engine.backward(engine(x.double(), y.double()) if change.__name__ == "<lambda>" else engine(x, y))
                        engine.step()

    def test_modes(self):
        """Autocast, and evaluation in inference mode."""
        def train(engine):
            batches, seen = models.batches("llama", RANK, N_RANKS), []
            for _ in range(3):
                with torch.autocast("cpu", torch.bfloat16):
                    loss = engine(*next(batches))
                engine.backward(loss)
                engine.step()
                engine.eval()
                with torch.inference_mode():
                    seen.append(engine(*next(batches)).item())
                engine.train()
            return seen

        self.each_stage(lambda: models.make("llama"), train)

    def test_loss_backward_by_itself(self):
        with libzero.initialize(models.make("mlp"), stage=1) as engine:
            loss = engine(*next(models.batches("mlp", RANK, N_RANKS)))
            with self.assertRaisesRegex(libzero.StateError, "engine.backward"):
                loss.backward()


class Sharded(unittest.TestCase):
    """Parameters that are there while they are used."""

    STAGE = {"stage": 3, "offload_params": "cpu"}

    def test_nothing_is_there_between(self):
        model = models.make("llama")
        shapes = {n: p.shape for n, p in model.named_parameters()}
        with libzero.initialize(model, **HYPER, **self.STAGE) as engine:
            def check_absent():
                for name, p in model.named_parameters():
                    self.assertEqual(p.shape, shapes[name])
                    self.assertLessEqual(p.untyped_storage().nbytes(), 4)
                    with self.assertRaisesRegex(libzero.StateError, name) if N_RANKS > 1 else contextlib.nullcontext():
                        self.assertFalse(p.isnan().any())
            check_absent()
            loss = engine(*next(models.batches("llama", RANK, N_RANKS)))
            check_absent()
            engine.backward(loss)
            check_absent()
            engine.step()
            with self.assertRaisesRegex(libzero.StateError, "engine.state_dict"):
                model.state_dict()
            with self.assertRaisesRegex(libzero.StateError, "called directly"):
                model(*next(models.batches("llama", RANK, N_RANKS)))
            weight = model.model.model.layers[1].mlp.up_proj.weight
            with engine.gathered(weight):
                self.assertFalse(weight.isnan().any())
            masters = engine.state_dict()
            with engine.gathered():
                for name, value in model.state_dict().items():
                    self.assertTrue(torch.equal(value, masters[name]), name)
            check_absent()

    def test_only_what_is_used_is_there(self):
        """While a block computes, its unit is gathered, and no other block's."""
        model = models.make("llama")
        seen = []
        with libzero.initialize(model, **HYPER, **self.STAGE) as engine:
            def note(*_):
                seen.append([u.name for u in engine._units if u.n_held])
            for layer in model.model.model.layers:
                layer.mlp.register_forward_hook(note)
                layer.mlp.up_proj.register_full_backward_hook(note)
            engine.backward(engine(*next(models.batches("llama", RANK, N_RANKS))))
            engine.step()
        self.assertEqual([[n for n in names if "layers" in n] for names in seen],
                         [[f"model.model.layers.{i}"] for i in (0, 1, 2, 2, 1, 0)])

    def test_memory(self):
        """What is released takes no memory, gathered are at most the units that are used, and one ahead; and a budget
        holds, or says what does not fit."""
        model = models.make("llama")
        n_elems = sum(p.numel() for p in model.parameters())
        with libzero.initialize(model, **HYPER, **self.STAGE, offload_optimizer="cpu") as engine:
            largest = max(sum(p.tensor.numel() for p in u.params) for u in engine._units)
            train_engine(engine, "llama", 3)
            device, host = engine.memory()["device"]["tags"], engine.memory()["host"]["tags"]
            self.assertEqual(device["parameters"]["peak"], 0)
            self.assertEqual(device["gathered_parameters"]["live"], 0)
            self.assertGreaterEqual(device["gathered_parameters"]["peak"], 4 * largest)
            self.assertLess(device["gathered_parameters"]["peak"], 4 * n_elems)
            self.assertLess(abs(host["optimizer_state"]["live"] - 8 * n_elems / N_RANKS), 0.2 * 8 * n_elems)
        with self.assertRaisesRegex(libzero.BudgetError, "device memory.*optimizer"):
            libzero.initialize(torch.nn.Linear(1024, 1024), stage=0, device_memory="12MiB")
        libzero.initialize(torch.nn.Linear(1024, 1024), stage=0, device_memory="12MiB", offload_optimizer="cpu").close()

    def test_values_are_handed_over(self):
        """PyTorch's memory of a unit is given back when the library has its values: the model is not there twice."""
        from libzero import building

        model, held, slices_of = models.make("gpt2"), [], building._slices_of

        def note(tensor):
            read = slices_of(tensor)

            def slice_of(first, n_elems):
                held.append(sum(p.untyped_storage().nbytes() for p in model.parameters()))
                return read(first, n_elems)

            return slice_of

        with unittest.mock.patch.object(building, "_slices_of", note):
            libzero.initialize(model, stage=1).close()
        self.assertLess(held[-1], 0.1 * held[0])

    def test_use_outside(self):
        model = models.make("mlp")
        x, y = next(models.batches("mlp", RANK, N_RANKS))
        with libzero.initialize(model, **HYPER, **self.STAGE) as engine:
            weight = model.layers[0].weight
            loss = engine(x, y)
            with engine.in_forward():
                loss = loss + (model.layers[0].weight ** 2).sum() + model.layers[2](torch.ones(1, 33)).sum()
            engine.backward(loss)
            engine.step()
            engine.forward(x, y)
            with engine.in_forward():
                again = weight.sum().item()
            with engine.gathered(weight):
                self.assertEqual(weight.sum().item(), again)

    def test_units(self):
        with libzero.initialize(models.make("gpt2"), **HYPER, **self.STAGE) as engine:
            names = [u.name for u in engine._units]
            self.assertEqual(names, ["model.transformer.wte", "model.transformer.wpe", "model.transformer.h.0",
                                     "model.transformer.h.1", "model.transformer.h.2", "model.transformer.ln_f"])
        with libzero.initialize(models.make("gpt2"), units=["model.transformer"], **HYPER, **self.STAGE) as engine:
            self.assertEqual([u.name for u in engine._units], ["model.transformer"])
            train_engine(engine, "gpt2", 2)


class Written(unittest.TestCase):
    """Parameters that are given other values after initialize: the optimizer goes on from these."""

    PLACEMENTS = [*STAGES, {"stage": 3, "offload_optimizer": "nvme", "offload_params": "nvme", **NVME}]

    def state_of(self, name, seed):
        torch.manual_seed(seed)
        return models.MODELS[name][0]().state_dict()

    def test_load_with_torch_2_4(self):
        """There, the hook that load_state_dict needs is not public yet."""
        name = "register_load_state_dict_pre_hook"
        if hasattr(torch.nn.Module, name):
            self.addCleanup(setattr, torch.nn.Module, name, getattr(torch.nn.Module, name))
            delattr(torch.nn.Module, name)
        with libzero.initialize(models.make("mlp"), **HYPER, stage=3) as engine:
            other = {n: v + 1 for n, v in engine.state_dict().items()}
            engine.load_state_dict(other)
            for n, v in engine.state_dict().items():
                self.assertTrue(torch.equal(v, other[n]), n)

    def test_load_state_dict(self):
        """Between steps, of the module or a part of it: moments stay, and all goes on in the same bits."""
        state = self.state_of("odd", 11 + RANK)  # rank 0's it is
        expected = self.state_of("odd", 11)
        hashes = set()
        for place in self.PLACEMENTS:
            for keywords in ({}, {"assign": True}):
                with libzero.initialize(models.make("odd"), **HYPER, **place) as engine:
                    train_engine(engine, "odd", 1)
                    before = engine.state_dict()
                    engine.module.blocks.load_state_dict(
                        {k.removeprefix("blocks."): v for k, v in state.items() if k.startswith("blocks.")}, **keywords)
                    for key, value in engine.state_dict().items():
                        self.assertTrue(torch.equal(value, (expected if key.startswith("blocks.") else before)[key]), (key, place))
                    self.assertEqual(engine.module.load_state_dict(state, **keywords), engine.load_state_dict(state))
                    for key, value in engine.state_dict().items():
                        self.assertTrue(torch.equal(value, expected[key]), (key, place))
                    with engine.gathered():
                        for key, value in engine.module.state_dict().items():
                            self.assertTrue(torch.equal(value, expected[key]), (key, place))
                    train_engine(engine, "odd", 2)
                    hashes.add(engine.weights_xxh3())
        self.assertEqual(len(hashes), 1)

    def test_load_state_dict_in_full_precision(self):
        state = self.state_of("mlp", 12)
        for place in self.PLACEMENTS:
            with libzero.initialize(models.make("mlp"), dtype="bf16", **HYPER, **place) as engine:
                engine.load_state_dict(state)
                for key, value in engine.state_dict().items():
                    self.assertTrue(torch.equal(value, state[key]), key)
                with engine.gathered(engine.module.layers[0].weight):
                    self.assertTrue(torch.equal(engine.module.layers[0].weight, state["layers.0.weight"].bfloat16()))

    def test_load_state_dict_refused(self):
        """What does not fit changes nothing of its parameter, and says what torch says."""
        state = self.state_of("mlp", 12)
        for place in self.PLACEMENTS[::3]:
            with libzero.initialize(models.make("mlp"), **HYPER, **place) as engine:
                before = engine.state_dict()
                wrong = {**state, "layers.0.weight": torch.ones(3)}
                del wrong["layers.2.bias"]
                with self.assertRaisesRegex(RuntimeError, "size mismatch for layers.0.weight"):
                    engine.load_state_dict(wrong)
                self.assertEqual(engine.module.load_state_dict({"layers.4.bias": torch.ones(4)}, strict=False).missing_keys[0], "layers.0.weight")
                after = engine.state_dict()
                self.assertTrue(torch.equal(after["layers.4.bias"], torch.ones(4)))
                for key in ("layers.0.weight", "layers.2.bias"):
                    self.assertTrue(torch.equal(after[key], before[key]))
                engine.backward(engine(*next(models.batches("mlp", RANK, N_RANKS))))
                with self.assertRaisesRegex(libzero.StateError, "within a step"):
                    engine.load_state_dict(state)
                with self.assertRaisesRegex(libzero.StateError, "within a step"):
                    engine.module.load_state_dict(state)

    def test_gathered_with_modifier(self):
        """What one rank changes is everybody's; what others do is dropped; what nobody changes keeps its master."""
        def train(engine, n_steps):
            batches = models.batches("mlp", RANK, N_RANKS)
            for _ in range(n_steps):
                engine.backward(engine(*(t.to(engine.dtype) for t in next(batches))))
                engine.step()

        for dtype in ("fp32", "bf16"):
            hashes = set()
            for place in self.PLACEMENTS:
                with libzero.initialize(models.make("mlp"), dtype=dtype, **HYPER, **place) as engine:
                    train(engine, 1)
                    first, second, last = (engine.module.layers[i].weight for i in (0, 2, 4))
                    before = engine.state_dict()
                    root = N_RANKS - 1
                    with engine.gathered([first, second, last], modifier_rank=root), torch.no_grad():
                        if RANK == root:
                            first[0, 0] = 3.0
                            first[1] = first[2].clone()
                            last.data = torch.full_like(last, 0.25)
                        else:
                            second.zero_()
                    after = engine.state_dict()
                    expected = {key: value.clone() for key, value in before.items()}
                    rounded = before["layers.0.weight"].to(engine.dtype).float()
                    expected["layers.0.weight"][0, 0] = 3.0
                    expected["layers.0.weight"][1] = rounded[2]
                    expected["layers.4.weight"].fill_(0.25)
                    for key, value in after.items():
                        self.assertTrue(torch.equal(value, expected[key]), (key, place))
                    train(engine, 2)
                    hashes.add(engine.weights_xxh3())
            self.assertEqual(len(hashes), 1, dtype)

    def test_gathered_refused(self):
        for place in self.PLACEMENTS[::3]:
            with libzero.initialize(models.make("mlp"), **HYPER, **place) as engine:
                weight, bias = engine.module.layers[0].weight, engine.module.layers[0].bias
                with self.assertRaisesRegex(libzero.UnsupportedError, "layers.0.bias was changed: give modifier_rank"):
                    with engine.gathered(weight, modifier_rank=0):
                        bias.data[0], bias.data[1] = bias.data[1].clone(), bias.data[0].clone()
            with libzero.initialize(models.make("mlp"), **HYPER, **place) as engine:
                weight = engine.module.layers[0].weight
                with self.assertRaisesRegex(libzero.UnsupportedError, "cannot become"), engine.gathered(weight, modifier_rank=0):
                    weight.data = torch.ones(2)
            with libzero.initialize(models.make("mlp"), **HYPER, **place) as engine:
                with self.assertRaisesRegex(libzero.ArgumentError, "there are ranks 0 to"), engine.gathered(modifier_rank=7):
                    pass
            with libzero.initialize(models.make("mlp"), **HYPER, **place) as engine:
                with self.assertRaises(KeyError), engine.gathered(engine.module.layers[0].weight, modifier_rank=0):
                    raise KeyError("mine")
                engine.backward(engine(*next(models.batches("mlp", RANK, N_RANKS))))
                with self.assertRaisesRegex(libzero.StateError, "within a step"), engine.gathered(modifier_rank=0):
                    pass


class Viewing(torch.autograd.Function):
    """Saves a tensor, and what is made of it: a transposed view, a slice, a piece of another shape, one of other strides."""

    @staticmethod
    def views(w):
        return w, w.t(), w[1:3], w.view(-1)[3:9], w[:, ::2], w.unfold(0, 2, 2), w[2, 1]

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, *Viewing.views(w))
        return x @ w

    @staticmethod
    def backward(ctx, grad):
        x, *views = ctx.saved_tensors
        for saved, now in zip(views, Viewing.views(views[0]), strict=True):
            assert torch.equal(saved, now), (saved, now)
            assert not saved.isnan().any()
        return grad @ views[1], x.t() @ grad


class ViewsAreSaved(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(3))

    def forward(self, x, y):
        for layer in self.layers:
            x = torch.tanh(Viewing.apply(x, layer.weight) + layer.bias)
            x = Viewing.apply(x.repeat(4, 1), x[:8].t() @ x[:8] if len(x) > 7 else layer.weight)  # of activations, too
        return x.square().mean()


class Saved(unittest.TestCase):
    """What autograd saves: views of parameters and of activations come back as they were; activations may be on drives."""

    ON_DRIVES = {"offload_activations": "nvme", "activations_capacity": "32MiB", "nvme_path": NVME["nvme_path"]}

    def setUp(self):
        from libzero import stash

        self.least, stash.LEAST_BYTES = stash.LEAST_BYTES, 64

    def tearDown(self):
        from libzero import stash

        stash.LEAST_BYTES = self.least

    def run_each(self, make, name, n_steps=2, **more):
        results = set()
        for place in (STAGES[0], STAGES[3], {"stage": 3, "offload_params": "nvme", **NVME}):
            for options in ({}, self.ON_DRIVES) if place["stage"] else (self.ON_DRIVES,):
                with libzero.initialize(make(), **{**HYPER, **place, **options, **more}) as engine:
                    losses = train_engine(engine, name, n_steps)
                    results.add((tuple(losses), engine.weights_xxh3()))
                    if options:
                        self.assertGreater(engine._stash.n_bytes["put"], 0)
                        self.assertEqual(engine._stash._free, [(0, 32 << 20)])  # all was given back
        self.assertEqual(len(results), 1)

    def test_views(self):
        self.run_each(ViewsAreSaved, "mlp")

    def test_llama(self):
        self.run_each(lambda: models.make("llama"), "llama")

    def test_conv(self):
        """With ReLU in place."""
        self.run_each(lambda: models.make("conv"), "conv")

    def test_recomputation(self):
        self.run_each(lambda: Checkpointed(True), "mlp")
        self.run_each(lambda: Checkpointed(False), "mlp")

    def test_aliases_are_written_once(self):
        class Shares(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = torch.nn.Parameter(torch.ones(1))

            def forward(self, x):
                x = x * self.weight
                parts = [x.t(), x[1:], x.view(-1), x]
                return sum((part * part.detach()).sum() for part in parts)

        x, plain = torch.rand(300, 333), Shares()
        plain(x).backward()
        with libzero.initialize(Shares(), stage=1, **self.ON_DRIVES) as engine:
            loss = engine(x)
            self.assertEqual(engine._stash.n_bytes["put"], 2 * 4 * x.numel())  # x, and x * weight
            engine.backward(loss)
            self.assertEqual(engine._stash.n_bytes["got"], 2 * 4 * x.numel())
            self.assertTrue(engine.step())
            if N_RANKS == 1:
                self.assertEqual(engine.get_global_grad_norm(), plain.weight.grad.item())

    def test_memory_is_given_back(self):
        """While backward is far, what was saved takes none."""
        class Deep(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(12))
                self.seen = []

            def forward(self, x):
                for layer in self.layers:
                    x = torch.tanh(layer(x))
                    self.seen.append(StorageWeakRef(x.untyped_storage()))
                return x.square().mean()

        for options, least, most in (({}, 12, 12), (self.ON_DRIVES, 0, 6)):
            model = Deep()
            with libzero.initialize(model, stage=0, **options) as engine:
                loss = engine(torch.rand(1000, 64))
                n_alive = sum(not ref.expired() for ref in model.seen)
                engine.backward(loss)
                engine.step()
            self.assertGreaterEqual(n_alive, least)
            self.assertLessEqual(n_alive, most)

    def test_changed_in_place(self):
        """As without hooks, it is an error, and not a wrong gradient."""
        class Changes(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = torch.nn.Parameter(torch.ones(4000))

            def forward(self, x):
                x = x * self.weight
                y = x.sigmoid()
                z = y * y
                y.mul_(2)
                return z.sum()

        for options in ({"stage": 3, "offload_params": "cpu"}, {"stage": 0, **self.ON_DRIVES}):
            with libzero.initialize(Changes(), **options) as engine:
                with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
                    engine.backward(engine(torch.rand(4000)))

    def test_refused(self):
        for options, error, words in [
            ({"offload_activations": "moon"}, libzero.ArgumentError, "moon"),
            ({"offload_activations": "nvme"}, libzero.ArgumentError, "requires nvme_path"),
            ({"offload_activations": "nvme", "nvme_path": "/tmp"}, libzero.ArgumentError, "requires activations_capacity"),
            ({"activations_capacity": "1GiB"}, libzero.ArgumentError, "no effect"),
            ({**self.ON_DRIVES, "activations_capacity": "12 cows"}, libzero.ArgumentError, "activations_capacity"),
        ]:
            with self.assertRaisesRegex(error, words):
                libzero.initialize(models.make("mlp"), **options)
        with libzero.initialize(models.make("llama"), **{**self.ON_DRIVES, "activations_capacity": "128KiB"}) as engine:
            with self.assertRaisesRegex(libzero.BudgetError, "larger activations_capacity"):
                engine(*next(models.batches("llama", RANK, N_RANKS)))
        libzero.initialize(models.make("mlp"), offload_activations="cpu").close()


class Pretrained(unittest.TestCase):
    """Values of safetensors, of a model that is built without any."""

    def test_llama(self):
        folder = os.environ["ZR_TEST_FOLDER"] + f"-pretrained-{N_RANKS}-{RANK}"
        source = models.make("llama")
        expected = {name: value.clone() for name, value in source.model.state_dict().items()}
        source.model.save_pretrained(folder, max_shard_size="6KB")
        self.assertTrue(os.path.exists(os.path.join(folder, "model.safetensors.index.json")))
        base = folder + "-base"
        source.model.model.save_pretrained(base)  # without the head, and the prefix of names
        with libzero.initialize(source, **HYPER) as engine:
            usual = train_engine(engine, "llama", 3)
        for stage in STAGES:
            with libzero.init():
                model = models.make("llama")
            self.assertEqual({p.device.type for p in model.parameters()}, {"meta"})
            with libzero.initialize(model, pretrained=folder, **HYPER, **stage) as engine:
                for name, value in engine.state_dict().items():
                    self.assertTrue(torch.equal(value, expected[name.removeprefix("model.")]), name)
                self.assertEqual(train_engine(engine, "llama", 3), usual)
        with libzero.init():
            model, other = models.make("llama").model, models.make("gpt2").model
        with libzero.initialize(libzero.load_pretrained(model.model, base), **HYPER) as engine:
            self.assertTrue(torch.equal(engine.state_dict()["norm.weight"], expected["model.norm.weight"]))
        with self.assertRaisesRegex(libzero.ArgumentError, "no tensor for 1 of"):
            libzero.initialize(model, pretrained=base)
        with self.assertRaisesRegex(libzero.ArgumentError, "no tensor for 1 of"):
            libzero.load_pretrained(model, base)
        with self.assertRaisesRegex(libzero.ArgumentError, "no values"):
            libzero.initialize(other)
        with self.assertRaisesRegex(libzero.ArgumentError, "found neither model.safetensors"):
            libzero.initialize(other, pretrained="/")

    def test_tied_and_saved_again(self):
        """GPT-2's head has no tensor of its own; what was trained is saved with transformers."""
        folder = os.environ["ZR_TEST_FOLDER"] + f"-tied-{N_RANKS}-{RANK}"
        models.make("gpt2").model.save_pretrained(folder)
        with libzero.init():
            model = models.make("gpt2")
        with libzero.initialize(model.model, pretrained=folder, stage=3, offload_params="cpu") as engine:
            tokens = torch.ones(1, 4, dtype=torch.int64)
            engine.backward(engine(input_ids=tokens, labels=tokens, use_cache=False).loss)
            engine.step()
            state = engine.state_dict()
            model.model.save_pretrained(folder + "-tuned", state_dict=dict(state))
            with torch.no_grad(), engine.in_forward():
                said = engine.module.generate(tokens, max_new_tokens=3, do_sample=False)
        tuned = type(model.model).from_pretrained(folder + "-tuned").eval()
        for name, value in tuned.state_dict().items():
            self.assertTrue(torch.equal(value, state[name]), name)
        self.assertTrue(torch.equal(tuned.generate(tokens, max_new_tokens=3, do_sample=False), said))

    def test_of_torch_save(self):
        """What DeepSpeed's zero_to_fp32 and others write: a file of torch.save's, or several with an index."""
        folder = os.environ["ZR_TEST_FOLDER"] + f"-bin-{N_RANKS}-{RANK}"
        model = models.make("llama").model
        state = {name: value.clone() for name, value in model.state_dict().items()}
        os.makedirs(folder)
        torch.save(state, os.path.join(folder, "pytorch_model.bin"))
        several = folder + "-several"
        os.makedirs(several)
        parts = [dict(list(state.items())[i::3]) for i in range(3)]
        weight_map = {}
        for i, part in enumerate(parts):
            name = f"pytorch_model-{i + 1:05}-of-00003.bin"
            torch.save({k: v.to(torch.float64).t().contiguous().t() if v.dim() == 2 else v for k, v in part.items()}, os.path.join(several, name))
            weight_map.update((key, name) for key in part)
        with open(os.path.join(several, "pytorch_model.bin.index.json"), "w") as file:
            json.dump({"metadata": {}, "weight_map": weight_map}, file)
        for place in STAGES[::3]:
            for source in (folder, several, os.path.join(folder, "pytorch_model.bin")):
                with libzero.init():
                    model = models.make("llama").model
                with libzero.initialize(model, pretrained=source, **HYPER, **place) as engine:
                    for name, value in engine.state_dict().items():
                        self.assertTrue(torch.equal(value, state[name]), name)
        path = os.path.join(folder, "pytorch_model.bin")
        for damaged, words in [(b"no file of torch", "pytorch_model.bin"), (None, "not tensors")]:
            if damaged is None:
                torch.save({"model": state}, path)
            else:
                with open(path, "wb") as file:
                    file.write(damaged)
            with self.assertRaisesRegex(libzero.FormatError, words):
                libzero.initialize(models.make("llama").model, pretrained=folder)

    def test_damaged(self):
        folder = os.environ["ZR_TEST_FOLDER"] + f"-damaged-{N_RANKS}-{RANK}"
        models.make("gpt2").model.save_pretrained(folder)
        path = os.path.join(folder, "model.safetensors")
        with open(path, "rb") as file:
            data = file.read()
        for damaged, words in [(data[:100], "truncated"), (data[:-4], "lies at bytes"), (data[:8] + b"?" + data[9:], "not JSON"),
                               (data.replace(b"F32", b"F99", 1), "F99")]:
            with open(path, "wb") as file:
                file.write(damaged)
            with self.assertRaisesRegex(libzero.FormatError, words):
                libzero.initialize(models.make("gpt2").model, pretrained=folder)


class Checkpoints(unittest.TestCase):
    def folder(self):
        """The same on all ranks."""
        return os.environ["ZR_TEST_FOLDER"] + f"-{N_RANKS}-{self.id()}"

    def test_go_on(self):
        """From any stage to any other, as if nothing had been; buffers and client_state with it."""
        def make():
            torch.manual_seed(5)
            return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Flatten(), torch.nn.Linear(144, 2))

        def train(engine, n):
            for i in range(n):
                torch.manual_seed(engine.global_steps)
                loss = engine(torch.randn(4, 3, 8, 8)).square().mean()
                engine.backward(loss)
                engine.step()

        with libzero.initialize(make(), **HYPER) as engine:
            train(engine, 6)
            expected = engine.weights_xxh3()
            means = engine.state_dict()["1.running_mean"].clone()
        folder = self.folder()
        for save, load in [(STAGES[0], STAGES[3]), (STAGES[3], STAGES[1]), (STAGES[2], STAGES[2])]:
            with libzero.initialize(make(), **HYPER, **save) as engine:
                train(engine, 3)
                path = engine.save_checkpoint(folder, client_state={"epoch": 2})
                self.assertEqual(path.name, "step-00000003")
            with libzero.initialize(make(), **HYPER, **load) as engine:
                train(engine, 1)  # other values
                self.assertEqual(engine.load_checkpoint(folder), (path, {"epoch": 2}))
                self.assertEqual(engine.global_steps, 3)
                train(engine, 3)
                self.assertEqual(engine.weights_xxh3(), expected)
                self.assertTrue(torch.equal(engine.state_dict()["1.running_mean"], means))

    def test_signed(self):
        """What was not signed with the secret is not gone on from, where that is required."""
        folder, secrets = self.folder(), [f"{self.folder()}-{name}-{RANK}" for name in ("one", "two")]
        for number, path in enumerate(secrets):
            with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
                file.write(f"sixteen characters, and {number}")
        one, two = ({"comm_secret": path} for path in secrets)

        def engine(**keywords):
            return libzero.initialize(models.make("mlp"), **HYPER, stage=2, **keywords)

        with engine() as unsigned:
            train_engine(unsigned, "mlp", 1)
            unsigned.save_checkpoint(folder)
        with engine(checkpoint_sign="require", **one) as wary:
            with self.assertRaisesRegex(libzero.ArgumentError, "not signed"):
                wary.load_checkpoint(folder)
        with engine(checkpoint_sign="write", **one) as signing:
            signing.load_checkpoint(folder)
            train_engine(signing, "mlp", 1)
            signing.save_checkpoint(folder)
        with engine(checkpoint_sign="require", **one) as same:
            same.load_checkpoint(folder)
            self.assertEqual(same.global_steps, 2)
        with engine(checkpoint_sign="require", **two) as other:
            with self.assertRaisesRegex(libzero.ArgumentError, "does not match the secret"):
                other.load_checkpoint(folder)
        for wrong, words in (({"checkpoint_sign": "write"}, "no secret to sign with"), (one, "has no effect"),
                             ({"checkpoint_sign": "yes", **one}, "allowed: ")):
            with self.assertRaisesRegex(libzero.ArgumentError, words):
                engine(**wrong)

    def test_other_ranks(self):
        """What the processes of this test have saved is loaded by one: see main."""
        with libzero.initialize(models.make("llama"), **HYPER, stage=3) as engine:
            train_engine(engine, "llama", 2)
            engine.save_checkpoint(os.environ["ZR_TEST_FOLDER"] + f"-{N_RANKS}")
            expected = engine.weights_xxh3()
        other = os.environ["ZR_TEST_FOLDER"] + f"-{3 - N_RANKS}"
        with libzero.initialize(models.make("llama"), **HYPER, stage=1) as engine:
            engine.load_checkpoint(os.environ["ZR_TEST_FOLDER"] + f"-{N_RANKS}")
            self.assertEqual(engine.weights_xxh3(), expected)
            if os.path.isdir(other):
                engine.load_checkpoint(other)
                self.assertEqual(engine.global_steps, 2)

    def zero(self, program, *arguments):
        """What a program says."""
        command = [os.path.join(os.environ["LIBZERO_LIBRARY_DIR"], "bin", f"zero-{program}"), *arguments]
        done = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    @unittest.skipIf(N_RANKS > 1, "one process tests it")
    def test_zero_train(self):
        """A checkpoint of zero-train's is gone on from here, and the other way round: the same parameters, to the bit."""
        if not os.path.exists(os.path.join(os.environ["LIBZERO_LIBRARY_DIR"], "bin", "zero-train")):
            self.skipTest("this build has no programs")
        text = os.environ["ZR_TEST_FOLDER"] + "-text"
        with open(text, "w") as file:
            file.write("3 141 592 653 589 793 238 462 643 " * 40)  # bytes below 61
        for name in ("gpt2", "llama"):
            folder, back = (os.environ["ZR_TEST_FOLDER"] + f"-{name}-{kind}" for kind in ("zero", "back"))
            config = self.config_of(name)
            data = ["--json", "--data", text, "--seq", "8", "--stage", "0"]
            first = json.loads(self.zero("train", "--model", config, *data, "--steps", "2", "--checkpoint-dir", folder))
            for place in (STAGES[0], STAGES[3]):
                with libzero.initialize(models.make(name), **HYPER, **place) as engine:
                    engine.load_checkpoint(folder)
                    self.assertEqual(engine.global_steps, 2)
                    if name == "gpt2":  # whose parameters are in the same order
                        self.assertEqual(f"{engine.weights_xxh3():016x}", first["weights_xxh3"])
                    engine.save_checkpoint(back + "-same")
                    again = json.loads(self.zero("train", *data, "--steps", "2", "--resume", "--checkpoint-dir", back + "-same"))
                    self.assertEqual(again["weights_xxh3"], first["weights_xxh3"])
                    if place["stage"] == 0:
                        self.check_exported(name, folder, engine.state_dict())
                    train_engine(engine, name, 1)
                    state = engine.state_dict()
                    engine.save_checkpoint(back)
            on = json.loads(self.zero("train", *data, "--steps", "5", "--resume", "--checkpoint-dir", back))
            self.assertNotEqual(on["weights_xxh3"], first["weights_xxh3"])
            with libzero.initialize(models.make(name), **HYPER) as engine:
                engine.load_checkpoint(back, tag="step-00000003")
                for key, value in engine.state_dict().items():
                    self.assertTrue(torch.equal(value, state[key]), key)
                engine.load_checkpoint(back)
                self.assertEqual(engine.global_steps, 5)
                train_engine(engine, name, 1)

    def config_of(self, name):
        """A folder with the config.json of a test's model."""
        folder = os.environ["ZR_TEST_FOLDER"] + f"-{name}-config"
        models.make(name).model.config.save_pretrained(folder)
        return folder

    def check_exported(self, name, folder, state):
        """Names and layouts are those of the weights that zero-checkpoint writes for transformers."""
        exported = os.environ["ZR_TEST_FOLDER"] + f"-exported-{name}"
        self.zero("checkpoint", "export", folder, f"--output={exported}")
        model = models.make(name)
        model.model = type(model.model).from_pretrained(exported)
        for key, value in model.state_dict().items():
            self.assertTrue(torch.equal(value, state[key]), key)

    def test_refused(self):
        with libzero.initialize(models.make("mlp"), **HYPER) as engine:
            with self.assertRaises(OSError):
                engine.load_checkpoint("/none/there")
            with self.assertRaisesRegex(libzero.UnsupportedError, "tag"):
                engine.save_checkpoint("/tmp/none", tag="mine")
            train_engine(engine, "mlp", 1)  # it goes on


if __name__ == "__main__":
    unittest.main(verbosity=2 if RANK == 0 else 0)
