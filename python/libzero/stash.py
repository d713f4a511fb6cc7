"""What autograd saves, on drives until backward needs it.

A storage that is large enough is written once, whatever views of it are saved, and its memory is PyTorch's to reuse when
the write has ended. Backward gets it back, read ahead in the opposite order of saving, for all views of it together.
"""

from __future__ import annotations

import bisect
import weakref
from collections import deque
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ._c import BudgetError, byref, c_uint64, check, lib

LEAST_BYTES = 1 << 16  # smaller storages stay where they are
UNIT_BYTES = 1 << 16  # what lies in the extent begins at multiples of it
_MOST_PUTS = 4  # under way at once: their memory is still taken
_MOST_AHEAD = 2  # storages that are read before they are asked for
MAX_TRANSFERS = 2 * _MOST_PUTS + _MOST_AHEAD + 16


class Kept:
    """A storage that is on drives, or on its way."""

    __slots__ = ("stash", "number", "offset", "size", "n_saved", "source", "version", "tickets", "buffer", "changed", "__weakref__")

    def __init__(self, stash: Stash, number: int, offset: int, source: torch.Tensor) -> None:
        self.stash, self.number, self.offset = stash, number, offset
        self.size = source.untyped_storage().nbytes()
        self.n_saved = 0  # views that backward has not taken back yet
        self.source: torch.Tensor | None = source  # until it is written
        self.version = source._version
        self.tickets: list[c_uint64] = []  # of transfers that were not waited for
        self.buffer: torch.Tensor | None = None  # what was read, until all views are taken; or what is written of its end
        self.changed = False  # by code that ran while it was written

    def __del__(self) -> None:
        self.stash._drop(self)


class View:
    """What autograd has saved: a view of a storage that is kept, or of a parameter."""

    __slots__ = ("kept", "dtype", "size", "stride", "offset")

    def __init__(self, kept: Kept, tensor: torch.Tensor) -> None:
        self.kept, self.dtype = kept, tensor.dtype
        self.size, self.stride, self.offset = tensor.size(), tensor.stride(), tensor.storage_offset()


class Stash:
    """An extent of the runtime's store, and what is in it.

    store: the library's, open as long as this is used
    extent: its number there, of `capacity` bytes
    """

    def __init__(self, store: Any, extent: int, capacity: int) -> None:
        self._store, self._extent, self._capacity = store, extent, capacity
        self._free = [(0, capacity)]  # offset, size: in order, apart from each other
        self._known: dict[int, tuple[StorageWeakRef, int, Any]] = {}  # by storage: its version, and weakly what is kept of it
        self._puts: deque[Kept] = deque()
        self._orphans: deque[tuple[list[c_uint64], Any]] = deque()  # reads that nobody wants any more
        self._kept: dict[int, Any] = {}  # weakly, by number: in the order of saving
        self._n_kept = 0
        self.n_bytes = {"put": 0, "got": 0}

    # ---- saving ----

    def save(self, tensor: torch.Tensor) -> View | None:
        """Put a tensor's storage away. None: it is too small, or no plain memory of the CPU."""
        if tensor.device.type != "cpu" or tensor.layout != torch.strided or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            return None
        storage = tensor.untyped_storage()
        if storage.nbytes() < LEAST_BYTES:
            return None
        kept = self._find(storage, tensor._version)
        if kept is None:
            kept = self._put(storage, tensor)
        kept.n_saved += 1
        return View(kept, tensor)

    def _find(self, storage: torch.UntypedStorage, version: int) -> Kept | None:
        """It is there already, and has not changed since."""
        known = self._known.get(storage._cdata)
        if known is None or known[0].expired() or known[1] != version:
            return None
        return known[2]()

    def _put(self, storage: torch.UntypedStorage, tensor: torch.Tensor) -> Kept:
        while len(self._puts) >= _MOST_PUTS:
            self._end_put()
        kept = Kept(self, self._n_kept, self._reserve(storage.nbytes()), tensor.detach())
        self._n_kept += 1
        self._begin_put(kept, storage)
        self.n_bytes["put"] += kept.size
        self._puts.append(kept)
        weak = weakref.ref(kept)
        self._kept[kept.number] = weak
        if len(self._known) > 4096:
            self._known = {c: k for c, k in self._known.items() if not k[0].expired()}
        self._known[storage._cdata] = (StorageWeakRef(storage), kept.version, weak)
        return kept

    def _begin_put(self, kept: Kept, storage: torch.UntypedStorage) -> None:
        """Whole units from where they are; the rest with what fills its unit."""
        whole = kept.size // UNIT_BYTES * UNIT_BYTES
        if whole:
            self._transfer(lib.zr_store_put, kept, 0, whole, storage.data_ptr())
        if whole < kept.size:
            kept.buffer = torch.zeros(UNIT_BYTES, dtype=torch.uint8)
            source = torch.empty(0, dtype=torch.uint8).set_(storage, whole, (kept.size - whole,))
            kept.buffer[: kept.size - whole] = source
            self._transfer(lib.zr_store_put, kept, whole, UNIT_BYTES, kept.buffer.data_ptr())

    def _transfer(self, call: Any, kept: Kept, first: int, size: int, pointer: int) -> None:
        ticket = c_uint64()
        check(call(self._store, self._extent, kept.offset + first, size, pointer, byref(ticket)))
        kept.tickets.append(ticket)

    def _await(self, kept: Kept) -> None:
        while kept.tickets:
            check(lib.zr_store_wait(self._store, kept.tickets.pop()))

    def _end_put(self) -> None:
        kept = self._puts.popleft()
        self._await(kept)
        kept.changed = kept.source._version != kept.version
        kept.source = kept.buffer = None

    # ---- room ----

    def _reserve(self, size: int) -> int:
        size = _whole(size)
        for i, (offset, room) in enumerate(self._free):
            if room >= size:
                self._free[i : i + 1] = [(offset + size, room - size)] if room > size else []
                return offset
        left = sum(room for _, room in self._free)
        raise BudgetError(
            f"activations on drives: {size} bytes do not fit: {left} of activations_capacity, {self._capacity} bytes, are "
            "free; try a larger activations_capacity, smaller micro-batches, or gradient checkpointing"
        )

    def _drop(self, kept: Kept) -> None:
        """Nobody needs it any more."""
        self._kept.pop(kept.number, None)
        if kept.tickets:
            self._orphans.append((kept.tickets, kept.buffer))
        size = _whole(kept.size)
        i = bisect.bisect(self._free, (kept.offset, 0))
        begin, end = kept.offset, kept.offset + size
        if i < len(self._free) and self._free[i][0] == end:
            end += self._free.pop(i)[1]
        if i > 0 and sum(self._free[i - 1]) == begin:
            begin = self._free.pop(i - 1)[0]
            i -= 1
        self._free.insert(i, (begin, end - begin))

    # ---- getting back ----

    def restore(self, view: View) -> torch.Tensor:
        """The tensor as it was saved."""
        kept = view.kept
        self._begin_get(kept)
        self._read_ahead(kept.number)
        self._await(kept)
        buffer = kept.buffer
        kept.n_saved -= 1
        if kept.n_saved <= 0:
            kept.buffer = None
        tensor = torch.empty(0, dtype=view.dtype)
        return tensor.set_(buffer.untyped_storage(), view.offset, view.size, view.stride)

    def _begin_get(self, kept: Kept) -> None:
        while kept.source is not None:
            self._end_put()
        if kept.changed:
            raise RuntimeError("one of the variables needed for gradient computation has been modified by an inplace operation, after it was saved to drives")
        if kept.buffer is not None:
            return
        self._end_orphans()
        kept.buffer = torch.empty(_whole(kept.size), dtype=torch.uint8)
        self._transfer(lib.zr_store_get, kept, 0, _whole(kept.size), kept.buffer.data_ptr())
        self.n_bytes["got"] += kept.size

    def _read_ahead(self, number: int) -> None:
        """What was saved before it is asked for next."""
        n_ahead, tried = 0, 0
        while n_ahead < _MOST_AHEAD and number > 0 and tried < 64:
            number, tried = number - 1, tried + 1
            weak = self._kept.get(number)
            kept = weak() if weak is not None else None
            if kept is None or kept.changed or kept.n_saved <= 0:
                continue
            if kept.source is None:
                self._begin_get(kept)
            n_ahead += 1

    def close(self) -> None:
        """Wait for all transfers: the store may end then."""
        while self._puts:
            self._end_put()
        for weak in list(self._kept.values()):
            kept = weak()
            if kept is not None:
                self._await(kept)
        self._end_orphans()

    def _end_orphans(self) -> None:
        while self._orphans:
            for ticket in self._orphans[0][0]:
                check(lib.zr_store_wait(self._store, ticket))
            self._orphans.popleft()


def _whole(size: int) -> int:
    """Bytes of the units that hold so many."""
    return (size + UNIT_BYTES - 1) // UNIT_BYTES * UNIT_BYTES
