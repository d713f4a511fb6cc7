"""The process group of torch.distributed that a script has made, whose ranks are the runtime's.

Its store carries what ranks have to know of each other: where rank 0 listens, at a port that is the
runtime's own, and which ranks share a machine. No collective of the group is used, so that it takes
no GPU, and ends within a time limit whatever the group's backend. PyTorch is not imported here:
without it there is no group.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, NamedTuple

from ._c import ArgumentError, CommError, Error, UnsupportedError

#: Backends whose ranks are not processes.
_REFUSED = {
    "fake": "its other ranks do not exist",
    "threaded": "its ranks are threads of this process",
}


class Numbers(NamedTuple):
    """Who this process is."""

    rank: int
    size: int

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.size}"


class Places(NamedTuple):
    """What the ranks of a group know of each other."""

    place: bytes  # of rank 0
    local_rank: int
    n_local_ranks: int


def find() -> Any:
    """The default process group, or None. Subgroups of it do not count."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available():
        return None
    return dist.group.WORLD


def numbers_of(group: Any) -> Numbers:
    return Numbers(group.rank(), group.size())


def carries(group: Any) -> bool:
    """True if its store can tell the ranks of each other: MPI has its launcher for that. A group
    without processes is refused."""
    name = str(sys.modules["torch.distributed"].get_backend(group)).lower()
    if group.size() > 1 and name in _REFUSED:
        raise UnsupportedError(
            f"torch.distributed's process group has the backend {name!r}: {_REFUSED[name]}; make "
            "it with gloo or nccl, or call destroy_process_group() before libzero.initialize()"
        )
    return name != "mpi"


def check_environment(own: Numbers) -> None:
    """Refuse variables that say something else than the group."""
    for name, value in (("RANK", own.rank), ("WORLD_SIZE", own.size)):
        said = os.environ.get(name, "").strip()
        if said and said != str(value):
            raise ArgumentError(
                f"{name}={said} in the environment, but torch.distributed's process group has this "
                f"process as {own}: set {name} to {value}, or remove it, before libzero is used"
            )


def _machine() -> str:
    """A text that ranks of one machine have alike."""
    boot = ""
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id") as file:
        boot = file.read().strip()
    return f"{socket.gethostname()} {boot}"


def _local(own: Numbers, machines: list[str]) -> tuple[int, int]:
    """The rank among those of its machine, and their number: as the environment says, or by the
    machines."""
    said = [os.environ.get(name, "") for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE")]
    if all(text.isdecimal() for text in said) and int(said[0]) < int(said[1]) <= own.size:
        return int(said[0]), int(said[1])
    near = [rank for rank, machine in enumerate(machines) if machine == machines[own.rank]]
    return near.index(own.rank), len(near)


class Meeting:
    """Lets the ranks of a group know of each other, by its store. A rank that fails ends the
    meeting for all, with its reason.

    The store counts each rank's meetings: those with the same number meet, at keys of their own. So
    a store may serve several groups, one after the other.
    """

    def __init__(self, group: Any, timeout_ms: int) -> None:
        self.own = numbers_of(group)
        self._store = sys.modules["torch.distributed"].distributed_c10d._get_default_store()
        with _errors_of_store("it does not answer"):
            number = self._store.add(f"libzero/{self.own.size}/{self.own.rank}", 1)
        self._prefix = f"libzero/{self.own.size}/meeting {number}/"
        self._key = f"{self._prefix}{self.own.rank}"  # this rank's own
        self.timeout_ms, self._until = timeout_ms, time.monotonic() + timeout_ms / 1000

    def meet(self, listen: Callable[[], bytes]) -> Places:
        """Say what this rank knows, and wait for the others.

        listen: lets rank 0 listen, and returns where
        """
        try:
            check_environment(self.own)
            if self.own.rank > 0:
                self._say({"machine": _machine()})
                said = self._hear(0)
            else:
                others = [self._hear(rank)["machine"] for rank in range(1, self.own.size)]
                said = {"place": listen().hex(), "machines": [_machine(), *others]}
                self._say(said)
        except Error as error:
            reason = str(error) if isinstance(error, CommError) else f"{self.own}: {error}"
            self._say({"error": reason})
            raise
        return Places(bytes.fromhex(said["place"]), *_local(self.own, said["machines"]))

    def clean(self) -> None:
        """Take back what this rank has said, once all have connected."""
        with contextlib.suppress(RuntimeError):  # a store may not be able to
            self._store.delete_key(self._key)

    def _say(self, value: dict[str, Any]) -> None:
        with _errors_of_store("it does not answer"):
            self._store.set(self._key, json.dumps(value))

    def _hear(self, rank: int) -> dict[str, Any]:
        key, left = f"{self._prefix}{rank}", max(self._until - time.monotonic(), 0.001)
        with _errors_of_store(
            f"rank {rank} was not heard within {self.timeout_ms} ms: has it ended, or not called "
            "libzero.initialize() or libzero.rank()?"
        ):
            self._store.wait([key], timedelta(seconds=left))
            said = json.loads(self._store.get(key))
        if "error" in said:
            raise CommError(said["error"])
        return said


@contextlib.contextmanager
def _errors_of_store(words: str) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise CommError(
            f"the store of torch.distributed's process group: {words} ({reason})"
        ) from None
