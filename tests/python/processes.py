"""Start a program as ranks: processes of this machine, with the variables that torchrun sets."""

import os
import socket
import subprocess


def free_port():
    """One that is free, as is the next, which libzero takes where torch.distributed has the first."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            try:
                second.bind(("127.0.0.1", port + 1))
                return port
            except (OSError, OverflowError):
                pass


def start_ranks(n, command, **options):
    """Popen of each."""
    port = str(free_port())
    started = []
    for rank in range(n):
        environment = dict(
            os.environ, OMP_NUM_THREADS="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=port, WORLD_SIZE=str(n), LOCAL_WORLD_SIZE=str(n),
            RANK=str(rank), LOCAL_RANK=str(rank))
        started.append(subprocess.Popen(command, env=environment, **options))
    return started


def run_as_ranks(n, command):
    """Run it, and wait for all. Returns 0, or the exit code of one that failed."""
    started = start_ranks(n, command)
    codes = [process.wait() for process in started]
    return next((code for code in codes if code), 0)
