"""libzero: train a PyTorch model that does not fit your memory.

    engine = libzero.initialize(model=model, config="ds_config.json", stage=3)
    for batch in batches:
        loss = engine(**batch).loss
        engine.backward(loss)
        engine.step()

See docs/guide/python.md. `print(libzero.options())` lists all keywords.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _c, _options
from ._c import (
    ArgumentError,
    BudgetError,
    CommError,
    DeviceError,
    Error,
    FormatError,
    StateError,
    StoreError,
    SystemMemoryError,
    UnsupportedError,
)

from .programs import Result

if TYPE_CHECKING:
    from .engine import Engine
    from .planning import ModulePlan
    from .trainer import HFTrainer, HFTrainingArguments

__version__: str = _c.lib.zr_version().decode()

__all__ = [
    "ArgumentError",
    "BudgetError",
    "CommError",
    "DeviceError",
    "Engine",
    "Error",
    "FormatError",
    "HFTrainer",
    "HFTrainingArguments",
    "StateError",
    "StoreError",
    "SystemMemoryError",
    "UnsupportedError",
    "capacity",
    "close",
    "init",
    "initialize",
    "load_pretrained",
    "options",
    "plan",
    "rank",
    "world_size",
]


def options() -> str:
    """All options that `initialize` takes as keywords, as text."""
    return _options.describe()


def rank() -> int:
    """This process's rank, from 0. Starts the communication of ranks if needed; a fork has its parent's number."""
    return _c.numbers()[0]


def world_size() -> int:
    """Number of ranks: those of torch.distributed's process group where there is one, or as started by torchrun, mpirun or
    srun, else 1."""
    return _c.numbers()[1]


def close(reason: str | None = None) -> None:
    """Close all engines and leave the other ranks. It is done at exit, too.

    reason: why this rank does not go on: it ends the others, and is what they say. None: it is done.
    """
    _c.close_rank(reason)


def initialize(model: Any, config: Any = None, **keywords: Any) -> Engine:
    """Create an engine that trains a module. See libzero.engine.Engine."""
    from .engine import Engine

    return Engine(model, config, **keywords)


def init() -> Any:
    """A context: modules that are built in it have parameters without values, which take no memory.
    Values come from load_pretrained(model, folder) or initialize(..., pretrained=folder). Buffers are created with values."""
    from .pretrained import init

    return init()


def load_pretrained(model: Any, folder: Any) -> Any:
    """Set the folder or file from which initialize(model) reads all parameters; formats are those of initialize(pretrained=...),
    which takes precedence. Names and shapes are checked now: ArgumentError if a parameter is missing or has another shape.
    Values are read in initialize, by each rank only its shard. Returns the model."""
    from .pretrained import load_pretrained

    return load_pretrained(model, folder)


def plan(model: Any = None, batch: Any = None, **options: Any) -> Result | ModulePlan:
    """Plan a training run, without running it: what fits, in how much memory, how fast.

    model: a name or config.json of a family that the library has. No torch is needed, and other keywords are zero-plan's
        options, such as ranks=8, hardware="8x-a100-80g", stage=3, config=... The result is what `zero-plan --json` prints, and
        as a string its table: docs/guide/plan.md explains both.
    model: an nn.Module, with or without values. Keywords are those of `initialize`, and
        batch: inputs of one micro-batch, a dictionary, a tuple or a tensor
        ranks: how many; hardware: a file, or one that comes with the package (None: this kind of machine)
        loss: a function of what the model returns; None: it returns the loss, or has it as `loss`
        record: "meta", one micro-batch on the meta device; "real", with values; "auto": real where meta is not possible
        Model states are planned to the byte; activations are what the recorded micro-batch took, and it says how that was.
    """
    if hasattr(model, "named_parameters"):
        from .planning import plan_module

        return plan_module(model, batch, **options)
    return Result("plan", {"model": model, **options})


def capacity(**options: Any) -> Result:
    """The largest model that memory and drives train. Keywords are zero-capacity's options: docs/guide/plan.md."""
    return Result("capacity", options)


def __getattr__(name: str) -> Any:
    if name == "Engine":  # imports torch
        from .engine import Engine

        return Engine
    if name in ("HFTrainer", "HFTrainingArguments"):  # imports transformers and accelerate
        from . import trainer

        return getattr(trainer, name)
    raise AttributeError(f"module 'libzero' has no attribute {name!r}")
