"""The C interface: the shared library, its structures as ctypes, and its errors as exceptions.

What is declared here is what zero/zero.h says; tests/python/layouts.c holds the layouts to it.
"""

from __future__ import annotations

import atexit
import ctypes
import logging
import os
import pathlib
import sys
import threading
import weakref
from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    byref,
    c_bool,
    c_char,
    c_char_p,
    c_double,
    c_float,
    c_int,
    c_size_t,
    c_uint,
    c_uint64,
    c_void_p,
)
from typing import Any

logger = logging.getLogger("libzero")

# ---- errors ------------------------------------------------------------------------------------


def printable(text: str) -> str:
    """Text of others as a terminal may have it: controls but the ends of lines are shown as \\x1b."""
    return "".join(c if c.isprintable() or c in "\n " else c.encode("unicode_escape").decode() for c in text)


class Error(RuntimeError):
    """A call of the library failed. The text is the library's message."""

    status = 0

    def __str__(self) -> str:
        return printable(super().__str__())


class ArgumentError(Error, ValueError):
    """An argument, option or input value is not allowed."""

    status = -1


class StateError(Error):
    """The call does not fit the object's state."""

    status = -2


class SystemMemoryError(Error, MemoryError):
    """The system refused memory for the library's own tables."""

    status = -3


class BudgetError(Error, MemoryError):
    """A tier's budget does not hold the request; the message says who holds what."""

    status = -4


class DeviceError(Error):
    """The device, or work queued on it, failed."""

    status = -5


class CommError(Error):
    """A rank is gone, late, or in another collective."""

    status = -6


class StoreError(Error, OSError):
    """A file or store operation failed."""

    status = -7


class UnsupportedError(Error, NotImplementedError):
    """Known and valid, but not supported here."""

    status = -8


class FormatError(Error, ValueError):
    """A file's content is not what it must be."""

    status = -9


_errors = {e.status: e for e in Error.__subclasses__()}

# ---- structures --------------------------------------------------------------------------------

SINK = CFUNCTYPE(None, c_void_p, c_int, c_int, c_char_p)
FILL = CFUNCTYPE(None, c_void_p, c_size_t, c_size_t, POINTER(c_float))

FORWARD, BACKWARD, GRADIENTS = 0, 1, 2
F32, BF16, U8 = 0, 1, 4


class Log(Structure):
    _fields_ = [("sink", SINK), ("context", c_void_p), ("level", c_int), ("rank", c_int)]


class Config(Structure):
    """zr_config_t. Its fields are reached through the rows of the option table alone."""

    _fields_ = [("_bytes", c_uint64 * 512)]  # room for more than it has


class Option(Structure):
    _fields_ = [
        ("name", c_char_p),
        ("key", c_char_p),
        ("field", c_char_p),
        ("offset", c_size_t),
        ("type", c_int),
        ("flags", c_uint),
        ("least", c_double),
        ("most", c_double),
        ("choices", c_void_p),
        ("refused", c_char_p),
        ("arg", c_char_p),
        ("help", c_char_p),
        ("more", c_char_p),
        ("initial", c_char_p),
        ("usual", c_char_p),
        ("note", c_char_p),
        ("group", c_int),
        ("when", c_void_p * 2),
        ("needs", c_char_p),
        ("idle", c_char_p),
        ("schedules", c_uint),
        ("store", c_void_p),
        ("take", c_void_p),
    ]


class OptionWhen(Structure):
    _fields_ = [("holds", c_void_p), ("otherwise", c_char_p), ("warns", c_bool)]


class OptionText(Structure):
    _fields_ = [("text", c_char * 1024)]


class DeviceOptions(Structure):
    _fields_ = [
        ("log", Log),
        ("index", c_int),
        ("n_threads", c_int),
        ("isa", c_char_p),
        ("concurrent", c_bool),
        ("shares_memory", c_bool),
        ("has_no_peers", c_bool),
        ("hardware", c_void_p),
        ("clock", c_void_p),
        ("trace", c_void_p),
    ]


class CommOptions(Structure):
    _fields_ = [
        ("log", Log),
        ("timeout_ms", c_int),
        ("sums", c_int),
        ("workspace_bytes", c_size_t),
        ("takes_workspace", c_bool),
        ("machine_ranks", c_int),
    ]


class RunOptions(Structure):
    _fields_ = [
        ("log", Log),
        ("device", c_char_p),
        ("device_options", DeviceOptions),
        ("device_backend", c_void_p),
        ("comm", c_char_p),
        ("comm_options", CommOptions),
        ("launch", c_void_p),
    ]


class Rank(Structure):
    _fields_ = [
        ("rank", c_int),
        ("n_ranks", c_int),
        ("comm", c_void_p),
        ("device", c_void_p),
        ("runtime", c_void_p),
        ("log", Log),
        ("context", c_void_p),
    ]


class Group(Structure):
    _fields_ = [("name", c_char_p), ("weight_decay", c_double), ("lr_scale", c_double)]


class ParamDesc(Structure):
    _fields_ = [
        ("name", c_char_p),
        ("n_dims", c_int),
        ("dims", c_size_t * 4),
        ("group", c_int),
        ("frozen", c_bool),
        ("fill", FILL),
        ("fill_context", c_void_p),
        ("encoding", c_void_p),
        ("may_be_new", c_bool),
    ]


class StoreExtent(Structure):
    _fields_ = [
        ("name", c_char_p),
        ("size_bytes", c_size_t),
        ("account", c_size_t),
        ("goes_first", c_bool),
    ]


class ExtentsDesc(Structure):
    _fields_ = [
        ("name", c_char_p),
        ("extents", POINTER(StoreExtent)),
        ("n_extents", c_size_t),
        ("unit_bytes", c_size_t),
        ("max_transfers", c_size_t),
        ("advice", c_void_p),
    ]


class Extents(Structure):
    _fields_ = [("first", c_size_t), ("n_extents", c_size_t), ("account", c_size_t)]


class Message(Structure):
    _fields_ = [
        ("tensor", c_char_p),
        ("dtype", c_int),
        ("traffic", c_int),
        ("encoding", c_void_p),
    ]


class StepReport(Structure):
    _fields_ = [
        ("step", c_size_t),
        ("lr", c_double),
        ("gradient_norm", c_double),
        ("clip_factor", c_double),
        ("skipped", c_bool),
        ("n_skipped", c_size_t),
    ]


class Update(Structure):
    """zr_update_t"""

    _fields_ = [
        ("n_elems", c_size_t),
        ("arrays", c_void_p * 8),
        ("grad", c_void_p),
        ("param", c_void_p),
        ("grad_dtype", c_int),
        ("param_dtype", c_int),
        ("grad_scale", c_float),
        ("lr", c_float),
        ("weight_decay", c_float),
        ("hyper", c_float * 8),
        ("step", c_int),
        ("is_left_out", c_bool),
        ("rounding", c_uint * 2),
        ("first", c_size_t),
        ("form", c_int),
    ]


class TensorUpdate(Structure):
    _fields_ = [("tensor", c_size_t), ("update", Update)]


class Secret(Structure):
    _fields_ = [("is_given", c_bool), ("key", c_char * 32)]


class Launch(Structure):
    _fields_ = [
        ("host", c_char * 256),
        ("port", c_int),
        ("rank", c_int),
        ("n_ranks", c_int),
        ("local_rank", c_int),
        ("n_local_ranks", c_int),
        ("start_timeout_ms", c_int),
        ("secret", Secret),
        ("bind", c_char * 64),
        ("by_mpi", c_bool),
        ("has_socket", c_bool),
        ("socket", c_int),
    ]


class Place(Structure):
    """zr_place_t, which is bytes to those who send it."""

    _fields_ = [("port", c_int), ("n_addresses", c_int), ("network", c_char * 128), ("addresses", c_char * 64 * 8)]


class SaveOptions(Structure):
    _fields_ = [
        ("folder", c_char_p),
        ("trainer_json", c_char_p),
        ("goes_on", c_bool),
        ("keep", c_size_t),
        ("keep_also", POINTER(c_size_t)),
        ("secret", POINTER(Secret)),
    ]


class SaveReport(Structure):
    _fields_ = [
        ("name", c_char * 64),
        ("n_bytes", c_uint64),
        ("write_seconds", c_double),
        ("seconds", c_double),
    ]


class CheckpointInfo(Structure):
    _fields_ = [
        ("path", c_char_p),
        ("step", c_size_t),
        ("n_updates", c_size_t),
        ("n_ranks", c_int),
        ("stage", c_int),
        ("dtype", c_int),
        ("n_tensors", c_size_t),
        ("data_bytes", c_uint64),
        ("optimizer", c_char_p),
        ("n_arrays", c_size_t),
        ("messages", c_char_p),
        ("is_signed", c_bool),
    ]


class CheckpointTensor(Structure):
    _fields_ = [
        ("name", c_char_p),
        ("unit", c_char_p),
        ("n_dims", c_int),
        ("dims", c_size_t * 4),
        ("n_elems", c_size_t),
        ("frozen", c_bool),
        ("has_moments", c_bool),
    ]


class ByteCount(Structure):
    _fields_ = [("live", c_size_t), ("peak", c_size_t)]


class TierStatistics(Structure):
    """The beginning of zr_tier_statistics_t, and room for the rest of it."""

    _fields_ = [
        ("budget_bytes", c_size_t),
        ("live", ByteCount),
        ("reserved", ByteCount),
        ("pending", ByteCount),
        ("by_tag", ByteCount * 10),
        ("by_lifetime", c_uint64 * 512),
    ]


class StoreInfo(Structure):
    """The beginning of zr_store_info_t."""

    _fields_ = [
        ("backend", c_char_p),
        ("_counts", c_size_t * 7),
        ("reserved_bytes", c_uint64),
    ]


class Hardware(Structure):
    """zr_hardware_t, which is read from a file."""

    _fields_ = [("_bytes", c_uint64 * 256)]  # room for more than it has


# ---- messages ----------------------------------------------------------------------------------

_said = threading.local()  # errors of the thread's call that is under way


@SINK
def _sink(_context: int, level: int, rank: int, message: bytes) -> None:
    text = message.decode(errors="replace")
    if level == 0:
        if not hasattr(_said, "errors"):
            _said.errors = []
        _said.errors.append(text)
        return
    logger.log({1: logging.WARNING, 2: logging.INFO}.get(level, logging.DEBUG), "rank %d: %s", rank, text)


LOG = Log(_sink, None, 1, -1)


def check(status: int) -> None:
    """Raise what a status says, with the messages that were logged as errors on the way."""
    errors, _said.errors = getattr(_said, "errors", []), []
    if status == 0:
        return
    if not errors:
        errors = [lib.zr_last_error().decode(errors="replace")]
    raise _errors.get(status, Error)("\n".join(dict.fromkeys(errors)))


# ---- the library -------------------------------------------------------------------------------


def _find(name: str) -> str:
    """Its file: next to this one in an installed package, or in the folder LIBZERO_LIBRARY_DIR."""
    folder = os.environ.get("LIBZERO_LIBRARY_DIR")
    path = pathlib.Path(folder) if folder else pathlib.Path(__file__).parent / "lib"
    path = path / f"lib{name}.so.0"
    if not path.exists():
        raise ImportError(
            f"libzero: {path} is missing. Install the package with pip, or set LIBZERO_LIBRARY_DIR to the "
            "folder of a build"
        )
    return str(path)


lib = ctypes.CDLL(_find("zero"))

_signatures = {
    "zr_version": (c_char_p, []),
    "zr_build_description": (c_char_p, []),
    "zr_last_error": (c_char_p, []),
    "zr_config_default": (Config, []),
    "zr_config_read_json": (c_int, [c_char_p, POINTER(Log), POINTER(Config)]),
    "zr_json_make_strict": (c_void_p, [c_char_p, c_size_t, POINTER(c_size_t)]),
    "zr_config_simulate": (None, [POINTER(Config)]),
    "zr_config_resolve": (c_int, [POINTER(Config), c_int, POINTER(Log)]),
    "zr_config_lr": (c_double, [POINTER(Config), c_size_t]),
    "zr_config_n_shards": (c_int, [POINTER(Config), c_int]),
    "zr_options": (POINTER(Option), [POINTER(c_size_t)]),
    "zr_options_json": (c_int, [POINTER(c_void_p)]),
    "zr_option_set": (c_int, [POINTER(Option), c_char_p, c_char_p, POINTER(Log), c_void_p]),
    "zr_option_text": (OptionText, [POINTER(Option), c_void_p]),
    "zr_option_idle": (POINTER(OptionWhen), [POINTER(Option), POINTER(Config)]),
    "zr_option_is_redundant": (c_bool, [POINTER(Option), c_char_p]),
    "zr_run_options_default": (RunOptions, []),
    "zr_rank_open": (c_int, [POINTER(RunOptions), POINTER(POINTER(Rank))]),
    "zr_rank_close": (None, [POINTER(POINTER(Rank)), c_char_p]),
    "zr_hardware_read_json": (c_int, [c_char_p, POINTER(Log), POINTER(Hardware)]),
    "zr_comm_create_sim": (c_int, [c_int, c_int, POINTER(CommOptions), POINTER(c_void_p)]),
    "zr_comm_destroy": (None, [POINTER(c_void_p)]),
    "zr_device_open": (c_int, [c_char_p, POINTER(DeviceOptions), POINTER(c_void_p)]),
    "zr_device_close": (None, [POINTER(c_void_p)]),
    "zr_device_options_default": (DeviceOptions, []),
    "zr_updater_create": (
        c_int,
        [POINTER(Config), c_void_p, POINTER(Log), c_int, POINTER(c_size_t), c_size_t, POINTER(c_void_p)],
    ),
    "zr_updater_destroy": (None, [POINTER(c_void_p)]),
    "zr_updater_update": (c_int, [c_void_p, POINTER(TensorUpdate), c_size_t]),
    "zr_updater_read": (c_int, [c_void_p, c_size_t, c_size_t, c_void_p]),
    "zr_updater_write": (c_int, [c_void_p, c_size_t, c_size_t, c_void_p]),
    "zr_updater_allocator": (c_void_p, [c_void_p]),
    "zr_runtime_create": (c_int, [POINTER(Config), c_void_p, c_void_p, POINTER(Log), POINTER(c_void_p)]),
    "zr_runtime_destroy": (None, [POINTER(c_void_p)]),
    "zr_runtime_add_group": (c_int, [c_void_p, POINTER(Group), POINTER(c_int)]),
    "zr_runtime_change_group": (c_int, [c_void_p, c_int, c_double, c_double]),
    "zr_runtime_change_hyper": (c_int, [c_void_p, c_int, c_char_p, c_double]),
    "zr_runtime_add_unit": (c_int, [c_void_p, c_char_p, POINTER(c_void_p)]),
    "zr_unit_add_param": (c_int, [c_void_p, POINTER(ParamDesc), POINTER(c_void_p)]),
    "zr_runtime_add_extents": (c_int, [c_void_p, POINTER(ExtentsDesc), POINTER(Extents)]),
    "zr_store_put": (c_int, [c_void_p, c_size_t, c_size_t, c_size_t, c_void_p, POINTER(c_uint64)]),
    "zr_store_get": (c_int, [c_void_p, c_size_t, c_size_t, c_size_t, c_void_p, POINTER(c_uint64)]),
    "zr_store_wait": (c_int, [c_void_p, c_uint64]),
    "zr_runtime_commit": (c_int, [c_void_p]),
    "zr_runtime_begin_micro_batches": (c_int, [c_void_p, c_size_t]),
    "zr_runtime_begin_extra_micro_batch": (c_int, [c_void_p]),
    "zr_runtime_sum_micro_batches": (None, [c_void_p]),
    "zr_runtime_params_are_masters": (c_bool, [c_void_p]),
    "zr_runtime_drop_step": (c_int, [c_void_p]),
    "zr_runtime_begin_evaluation": (c_int, [c_void_p]),
    "zr_unit_acquire": (c_int, [c_void_p, c_int]),
    "zr_unit_release": (c_int, [c_void_p]),
    "zr_unit_reduce": (c_int, [c_void_p]),
    "zr_param_data": (c_void_p, [c_void_p]),
    "zr_param_grad": (c_int, [c_void_p, POINTER(c_void_p), POINTER(c_bool)]),
    "zr_param_kept_grad": (c_void_p, [c_void_p]),
    "zr_param_leave_out": (c_int, [c_void_p]),
    "zr_param_n_left_out": (c_size_t, [c_void_p]),
    "zr_param_set_n_left_out": (None, [c_void_p, c_size_t]),
    "zr_param_read": (c_int, [c_void_p, c_size_t, c_size_t, c_void_p]),
    "zr_param_write": (c_int, [c_void_p, c_size_t, c_size_t, c_void_p, c_int]),
    "zr_runtime_step": (c_int, [c_void_p, POINTER(StepReport)]),
    "zr_runtime_share": (c_int, [c_void_p, POINTER(c_double), c_size_t, POINTER(c_double)]),
    "zr_runtime_average": (c_int, [c_void_p, c_double, POINTER(c_double)]),
    "zr_runtime_weights_xxh3": (c_int, [c_void_p, POINTER(c_uint64)]),
    "zr_runtime_store": (c_void_p, [c_void_p]),
    "zr_store_info": (POINTER(StoreInfo), [c_void_p]),
    "zr_runtime_stream": (c_void_p, [c_void_p]),
    "zr_runtime_allocator": (c_void_p, [c_void_p]),
    "zr_allocator_statistics": (None, [c_void_p, c_int, POINTER(TierStatistics)]),
    "zr_tag_name": (c_char_p, [c_int]),
    "zr_comm_broadcast": (c_int, [c_void_p, POINTER(Message), c_void_p, c_size_t, c_int, c_void_p]),
    "zr_comm_abort": (None, [c_void_p, c_char_p]),
    "zr_runtime_save": (c_int, [c_void_p, POINTER(SaveOptions), POINTER(SaveReport)]),
    "zr_runtime_restore": (c_int, [c_void_p, c_void_p]),
    "zr_checkpoint_open_signed": (c_int, [c_char_p, POINTER(Secret), POINTER(Log), POINTER(c_void_p)]),
    "zr_secret_read": (c_int, [POINTER(Log), c_char_p, POINTER(Secret)]),
    "zr_secret_take_from_environment": (c_int, [POINTER(Log), POINTER(Secret)]),
    "zr_launch_listen": (c_int, [POINTER(Log), POINTER(Launch), POINTER(Place)]),
    "zr_launch_connect": (c_int, [POINTER(Log), POINTER(Place), c_int, POINTER(Launch)]),
    "zr_launch_drop": (None, [POINTER(Launch)]),
    "zr_checkpoint_close": (None, [POINTER(c_void_p)]),
    "zr_checkpoint_info": (None, [c_void_p, POINTER(CheckpointInfo)]),
    "zr_checkpoint_tensor": (POINTER(CheckpointTensor), [c_void_p, c_size_t]),
    "zr_checkpoint_trainer_json": (c_char_p, [c_void_p]),
}
for _name, (_result, _arguments) in _signatures.items():
    _function = getattr(lib, _name)
    _function.restype = _result
    _function.argtypes = _arguments

_libc = ctypes.CDLL(None)
_libc.free.argtypes = [c_void_p]


def keep_less_of_what_is_freed() -> None:
    """Memory that PyTorch frees is the system's again from 4 MiB on, unless the environment tunes malloc: the C library would learn to keep
    up to 32 MiB of every size, tens of MiB more at the peak. Steps take no longer."""
    if not os.environ.keys() & {"MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"} and hasattr(_libc, "mallopt"):
        _libc.mallopt(-3, 4 << 20)  # M_MMAP_THRESHOLD


def give_back_what_is_free() -> None:
    """The C library keeps what PyTorch has freed between blocks in use: at the peak of a small model, a tenth of all memory."""
    if hasattr(_libc, "malloc_trim"):
        _libc.malloc_trim(0)


def take_text(pointer: c_void_p) -> str:
    """A text that the library has allocated."""
    text = ctypes.string_at(pointer.value).decode()
    _libc.free(pointer)
    return text


# ---- the rank that this process is ---------------------------------------------------------------

_rank: POINTER(Rank) | None = None
_group: Any = lambda: None  # weakly: the process group that is known to say the same
_is_of_group = False  # the rank was opened by a process group
_parent: Any = None  # the process that this one is a fork of, and who that is
_inherited: Any = lambda: None  # weakly: the process group of that process
_runtimes: weakref.WeakSet = weakref.WeakSet()  # what must be closed before it


def open_rank() -> Rank:
    """This process's rank: in torch.distributed's process group where there is one; else as a
    launcher has started it, or the only one."""
    global _rank
    check_group()
    if _rank is None:
        _rank = _open()
        atexit.register(_close_at_exit)
    return _rank.contents


def numbers() -> tuple[int, int]:
    """This rank, and how many there are. A fork has those of its parent."""
    group = _groups.find()
    if _rank is None and (group is None or group is _inherited()):
        if _parent is not None:
            return _parent[1]
        if group is not None:
            return _groups.numbers_of(group)
    rank = open_rank()
    return rank.rank, rank.n_ranks


def check_process(process: int, call: str) -> None:
    """Refuse a call on what another process has made."""
    if process != os.getpid():
        raise StateError(
            f"{call}: the engine was created in process {process}, and this is process "
            f"{os.getpid()}, a fork of it: create the engine in this process, or start this "
            'process with the start method "spawn" of multiprocessing'
        )


def check_group() -> None:
    """Hold the open rank to the process group. Where another group has come, and no engine is
    open, the rank is closed, to be opened by that group."""
    global _group
    group = _groups.find()
    if _rank is None or group is None or group is _group():
        return
    if _is_of_group and not _runtimes:
        close_rank()
        return
    own = _groups.Numbers(_rank.contents.rank, _rank.contents.n_ranks)
    said = _groups.numbers_of(group)
    if own != said:
        raise StateError(
            f"torch.distributed's process group has this process as {said}, but libzero's ranks "
            f"were opened before it was made, and have it as {own}: call libzero.close(), and "
            "create engines once the group is there"
        )
    _group = weakref.ref(group)


def _check_fork(group: Any) -> None:
    """Refuse a rank to a fork of one of several, unless it has a process group of its own."""
    if group is not None and group is not _inherited():
        return
    of, size = "the process that has made torch.distributed's process group", 1
    if _parent is not None:
        of, size = f"process {_parent[0]}, which is {_parent[1]}", _parent[1].size
    elif group is not None:
        size = group.size()
    if size > 1:
        raise StateError(
            f"this is process {os.getpid()}, a fork of {of}: a fork is no rank of the run. Create "
            'engines there, or start this process with the start method "spawn" of multiprocessing'
        )


def _open() -> Any:
    """A rank, by the process group where there is one. That of MPI finds the others itself."""
    global _group, _is_of_group
    group, meeting = _groups.find(), None
    options, launch, rank = lib.zr_run_options_default(), Launch(), POINTER(Rank)()
    options.log = LOG
    _check_fork(group)
    _is_of_group = group is not None and _groups.carries(group)
    try:
        if _is_of_group:
            options.launch = ctypes.addressof(launch)
            launch.n_ranks = group.size()
        if launch.n_ranks > 1:
            meeting = _groups.Meeting(group, options.comm_options.timeout_ms)
            _find_ranks(meeting, launch)
        elif _is_of_group:
            _groups.check_environment(_groups.numbers_of(group))
        check(lib.zr_rank_open(byref(options), byref(rank)))
    finally:
        lib.zr_launch_drop(byref(launch))
    if meeting is not None:
        meeting.clean()
    own = _groups.Numbers(rank.contents.rank, rank.contents.n_ranks)
    said = _groups.numbers_of(group) if group is not None else own
    if own != said:
        lib.zr_rank_close(byref(rank), None)
        raise StateError(
            f"torch.distributed's process group has this process as {said}, and MPI's launcher "
            f"as {own}: make the group with all ranks of MPI, in their order"
        )
    _group = weakref.ref(group) if group is not None else lambda: None
    return rank


def _find_ranks(meeting: Any, launch: Launch) -> None:
    """Bring the ranks of a group together, at a port that is free on rank 0's machine."""

    def listen() -> bytes:
        place = Place()
        check(lib.zr_launch_listen(byref(LOG), byref(launch), byref(place)))
        return bytes(place)

    launch.rank, launch.n_ranks = meeting.own
    launch.host = os.environ.get("MASTER_ADDR", "").encode()
    found = meeting.meet(listen)
    launch.local_rank, launch.n_local_ranks = found.local_rank, found.n_local_ranks
    if launch.rank > 0:
        if len(found.place) != ctypes.sizeof(Place):
            raise CommError("rank 0 has another version of libzero: all ranks need the same one")
        place = Place.from_buffer_copy(found.place)
        check(lib.zr_launch_connect(byref(LOG), byref(place), meeting.timeout_ms, byref(launch)))


def close_rank(reason: str | None = None) -> None:
    """Close what is open. A reason ends the other ranks, and is what they say."""
    global _rank
    if reason is not None and _rank is not None:
        lib.zr_comm_abort(_rank.contents.comm, reason.encode())
    for runtime in list(_runtimes):
        runtime.close()
    if _rank is not None:
        lib.zr_rank_close(byref(_rank), None)
        _rank = None


def _close_at_exit() -> None:
    error = getattr(sys, "last_value", None)
    close_rank(f"{type(error).__name__}: {error}" if error is not None else None)


def _begin_fork() -> None:
    """Leave to the parent what is its own: the fork's end closes nothing of it."""
    global _rank, _parent, _inherited
    group = _groups.find()
    _inherited = weakref.ref(group) if group is not None else lambda: None
    if _rank is not None:
        own = _groups.Numbers(_rank.contents.rank, _rank.contents.n_ranks)
        _parent = os.getppid(), own
        lib.zr_rank_close(byref(_rank), None)
        _rank = None
    for runtime in _runtimes:
        runtime._begin_fork()
    _runtimes.clear()


os.register_at_fork(after_in_child=_begin_fork)


from . import _group as _groups  # noqa: E402 (raises the errors of this module)
