"""Ranks: copies of a test's process, with the variables that torchrun sets. Importing PyTorch and transformers takes longer than most
tests, and copies have it done."""

import atexit
import os
import shutil
import socket
import sys
import tempfile


def free_port():
    """One that is free, as is the next."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            try:
                second.bind(("127.0.0.1", port + 1))
                return port
            except (OSError, OverflowError):
                pass


def leave_quickly():
    """Once what atexit has is done: taking apart what the process was copied with would take longer than its test."""
    code, leave = [0], sys.exit

    def exit(value=None):
        code[0] = value
        leave(value)

    def end():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1 if hasattr(sys, "last_value") or code[0] else 0)

    sys.exit = exit
    atexit.register(end)


def fork_ranks(n, output=None):
    """Processes that go on from here, before libzero.rank() or an engine.

    output: a path; what rank 0 says, to both streams, goes to the file path + "0", and so on
    Returns their ids; in a rank, None.
    """
    sys.stdout.flush()
    port, started = free_port(), []
    for rank in range(n):
        started.append(os.fork())
        if started[-1] == 0:
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE=str(n), LOCAL_WORLD_SIZE=str(n),
                              RANK=str(rank), LOCAL_RANK=str(rank))
            if output is not None:
                file = os.open(f"{output}{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                os.dup2(file, 1)
                os.dup2(file, 2)
            leave_quickly()
            return None
    return started


def wait_for(started):
    """Exit codes, negative where a signal has ended it."""
    return [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in started]


def run_as_ranks_first(*counts):
    """What follows runs as so many processes, for each count; and when all of them have succeeded, in this one alone.

    Called before libzero.rank() or an engine. ZR_TEST_FOLDER, and TMPDIR around it, are folders of all of them.
    """
    if "WORLD_SIZE" in os.environ:  # whoever has started it
        return
    folder, starter = tempfile.mkdtemp(prefix="libzero-"), os.getpid()
    atexit.register(lambda: shutil.rmtree(folder) if os.getpid() == starter else None)
    os.environ.update(ZR_TEST_FOLDER=folder + "/of", TMPDIR=folder)
    tempfile.tempdir = folder
    os.mkdir(os.environ["ZR_TEST_FOLDER"])
    for n in counts:
        started = fork_ranks(n)
        if started is None:
            return
        codes = wait_for(started)
        if any(codes):
            sys.exit(f"as {n} ranks: exit codes {codes}")
