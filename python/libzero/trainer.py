"""transformers' Trainer on libzero's engine.

The Trainer keeps what it does: data, its share of them for each rank, losses, schedulers, evaluation, logging. What it
asks of its Accelerator (prepare a model and an optimizer, backward, clip, no_sync) goes to an engine instead. It
talks by torch.distributed, of numbers alone; parameters and gradients are the library's and go its own way.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from torch import nn
from transformers import Trainer, TrainingArguments

from . import _c, _options, _torch_optimizer
from ._c import ArgumentError, StateError, UnsupportedError
from .engine import Engine

_FOLDER = "libzero"  # of the engine's checkpoint, in a checkpoint of the Trainer's
_SCHEDULER = "scheduler.pt"

#: Options that TrainingArguments say, and their names there.
_OF_ARGUMENTS = {
    "clip": "max_grad_norm",
    "grad_accum": "gradient_accumulation_steps",
    "micro_batch": "per_device_train_batch_size",
    "train_batch_size": "per_device_train_batch_size",
    "lr": "learning_rate",
    "beta1": "adam_beta1",
    "beta2": "adam_beta2",
    "epsilon": "adam_epsilon",
    "betas": "adam_beta1 and adam_beta2",
    "eps": "adam_epsilon",
    "weight_decay": "weight_decay",
    "optimizer": "optim",
    "schedule": "lr_scheduler_type",
    "warmup": "warmup_steps",
}

#: DeepSpeed's schedulers, and lr_scheduler_types that are like them; "linear" is the default.
_SCHEDULES = {
    "WarmupLR": ("constant_with_warmup", "linear"),
    "WarmupDecayLR": ("linear",),
    "WarmupCosineLR": ("cosine", "linear"),
}

#: What initialize() takes that is no option of the library's.
_OF_ENGINE = ("units", "pretrained", "offload_activations", "activations_capacity", "checkpoint_sign", "comm_secret")


@dataclass
class HFTrainingArguments(TrainingArguments):
    """TrainingArguments, whose `deepspeed` is a configuration for libzero.HFTrainer. DeepSpeed is not needed."""

    libzero_config: dict[str, Any] | str | None = field(
        default=None, metadata={"help": "DeepSpeed's JSON, a file or a dictionary, which may have libzero's options, too"}
    )

    def __post_init__(self) -> None:
        if self.deepspeed is not None:
            if self.libzero_config is not None:
                raise ArgumentError("deepspeed and libzero_config are both given: remove one of the two")
            self.libzero_config, self.deepspeed = self.deepspeed, None
        super().__post_init__()


class _Optimizer(AcceleratedOptimizer):
    """What the Trainer has as its optimizer: rates for schedulers to change, and a step that is the engine's."""

    def __init__(self, optimizer: torch.optim.Optimizer, engine: Engine) -> None:
        super().__init__(optimizer, device_placement=False)
        self.engine = engine
        self.norm = torch.tensor(float("nan"))

    def step(self, closure: Any = None) -> None:
        self._is_overflow = not self.engine.step()
        self.norm.fill_(self.engine.get_global_grad_norm())

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Nothing: the library's gradients begin at zero in each step."""

    def clip(self, max_norm: float) -> torch.Tensor:
        """The norm, whose value is there after step(), which clips."""
        if max_norm not in (self.engine.clip, float("inf")):
            raise UnsupportedError(f"gradients are clipped to max_grad_norm={self.engine.clip}, not to {max_norm}")
        self.norm = torch.tensor(float("nan"))
        return self.norm


class _Accelerator(Accelerator):
    """What the Trainer's Accelerator becomes. `trainer` is set by it."""

    trainer: HFTrainer

    def prepare(self, *objects: Any, **keywords: Any) -> Any:
        if len(objects) == 2 and isinstance(objects[0], nn.Module) and isinstance(objects[1], torch.optim.Optimizer):
            return self.trainer._prepare(*objects)
        return super().prepare(*objects, **keywords)

    def backward(self, loss: torch.Tensor, **_: Any) -> None:
        self.trainer.engine.backward(loss, scale=False)  # the Trainer has divided it

    def clip_grad_norm_(self, parameters: Any, max_norm: float, norm_type: float = 2) -> torch.Tensor:
        return self.trainer.optimizer.clip(float(max_norm))

    @contextlib.contextmanager
    def no_sync(self, model: nn.Module | None = None) -> Iterator[None]:
        yield  # micro-batches of a step are the engine's to add up


class HFTrainer(Trainer):
    """transformers' Trainer, with model states sharded and placed as libzero_config says.

    libzero_config: DeepSpeed's JSON, a file or a dictionary; a dictionary may have options of libzero.initialize
        as well, such as {"stage": 3, "offload_optimizer": "cpu"}, `units` and `checkpoint_sign` among them. What
        TrainingArguments say (batch sizes, accumulation, clipping, optimizer) is taken from there:
        the configuration may say the same, or "auto". Its `scheduler`, if it has one, is the
        schedule, as with DeepSpeed; "auto" is filled from the arguments. None: that of
        HFTrainingArguments, else the defaults
    Other arguments are Trainer's. `engine` is there as soon as train() has begun.

    With another Trainer: class Mine(libzero.HFTrainer, Seq2SeqTrainer).
    """

    engine: Engine | None = None

    def __init__(self, *arguments: Any, libzero_config: Mapping[str, Any] | str | os.PathLike[str] | None = None,
                 **keywords: Any) -> None:
        self._given_config = libzero_config
        super().__init__(*arguments, **keywords)

    # ---- the engine ----

    def create_accelerator_and_postprocess(self) -> None:
        args = self.args
        said = getattr(args, "libzero_config", None)
        if said is not None and self._given_config is not None:
            raise ArgumentError("libzero_config is given here and in the training arguments: remove one of the two")
        _check_arguments(args)
        self._engine_config, self._engine_keywords = _read_config(said if self._given_config is None else self._given_config, args)
        self._schedule = self._engine_keywords.pop("scheduler", None)
        super().create_accelerator_and_postprocess()
        self.accelerator.__class__ = _Accelerator
        self.accelerator.trainer = self

    def _move_model_to_device(self, model: nn.Module, device: torch.device) -> None:
        """It is there; and a model without values cannot be moved."""

    def _prepare(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, _Optimizer]:
        if not isinstance(optimizer, _Optimizer) or optimizer.engine is not self.engine:
            if self.engine is not None:
                self.engine.close()
            optimizer = self._make_engine(model, getattr(optimizer, "optimizer", optimizer))
        # Without a wrapper; forward is under autocast where args.bf16 asks for it.
        model = self.accelerator.prepare_model(model, device_placement=False, evaluation_mode=True)
        self.accelerator._optimizers.append(optimizer)
        return model, optimizer

    def _make_engine(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> _Optimizer:
        kind = self._engine_keywords.pop("optimizer type", None)
        own = _torch_optimizer.options_of(optimizer)["optimizer"]
        if kind not in (None, own):
            raise ArgumentError(f"libzero_config: optimizer.type is {kind}, the training arguments' optim is {self.args.optim}")
        rank, n_ranks = _c.open_rank().rank, _c.open_rank().n_ranks
        if (rank, n_ranks) != (self.args.process_index, self.args.world_size):
            raise StateError(f"this is rank {rank} of {n_ranks} for libzero, and {self.args.process_index} of "
                             f"{self.args.world_size} for the Trainer: start the ranks with torchrun")
        self.engine = Engine(
            model, self._engine_config, optimizer=optimizer, clip=self.args.max_grad_norm or 0,
            grad_accum=self.args.gradient_accumulation_steps, **self._engine_keywords)
        return _Optimizer(optimizer, self.engine)

    def create_scheduler(
        self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None
    ) -> Any:
        """That of the configuration, if it has one, else as the Trainer does."""
        if self._schedule is None:
            return super().create_scheduler(num_training_steps, optimizer)
        if self.lr_scheduler is not None:
            raise ArgumentError(
                "libzero_config has a scheduler, and one is given in optimizers=: remove one of the two"
            )
        rate = _rate_of(self._schedule, self.args, num_training_steps)
        lr = self.args.learning_rate or 1.0
        optimizer = self.optimizer if optimizer is None else optimizer
        self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: rate(n) / lr)
        self._created_lr_scheduler = True
        return self.lr_scheduler

    # ---- training and evaluation ----

    def training_step(self, *arguments: Any, **keywords: Any) -> torch.Tensor:
        if self.accelerator.sync_gradients:  # an epoch's last step may have fewer micro-batches
            self.engine.set_gradient_accumulation_boundary(True)
        return super().training_step(*arguments, **keywords)

    def compute_loss_context_manager(self) -> contextlib.ExitStack:
        stack = contextlib.ExitStack()
        stack.enter_context(super().compute_loss_context_manager())
        if self.engine is not None:
            stack.enter_context(self.engine.in_forward())
        return stack

    def prediction_step(self, *arguments: Any, **keywords: Any) -> Any:
        if self.engine is None or not getattr(self.args, "predict_with_generate", False):
            return super().prediction_step(*arguments, **keywords)
        with self.engine.gathered():  # ranks generate sequences of different lengths
            return super().prediction_step(*arguments, **keywords)

    # ---- weights and checkpoints ----

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write the whole model, or a PEFT model's adapter, for from_pretrained(). All ranks call it, and when it returns
        it is written."""
        if self.engine is None:
            return super().save_model(output_dir, _internal_call)
        with self.engine.saved_state(None if self.args.save_on_each_node else 0) as state:
            if self.args.should_save:
                self._save(output_dir, state)
        self.accelerator.wait_for_everyone()
        if self.args.push_to_hub and not _internal_call:
            self.push_to_hub(commit_message="Model save")

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        kept = (int, float, tuple)  # betas are a tuple, as schedulers leave them
        groups = [{k: v for k, v in g.items() if isinstance(v, kept)} for g in self.optimizer.param_groups]
        self.engine.save_checkpoint(os.path.join(output_dir, _FOLDER), client_state={"groups": groups})
        if self.args.should_save:
            torch.save(self.lr_scheduler.state_dict(), os.path.join(output_dir, _SCHEDULER))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        _, state = self.engine.load_checkpoint(os.path.join(checkpoint, _FOLDER))
        for group, saved in zip(self.optimizer.param_groups, state["groups"], strict=True):
            group.update({k: tuple(v) if isinstance(v, list) else v for k, v in saved.items()})
        self.lr_scheduler.load_state_dict(torch.load(os.path.join(checkpoint, _SCHEDULER), weights_only=True))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        """The engine has the weights, too."""
        if not os.path.isdir(os.path.join(resume_from_checkpoint, _FOLDER)):
            raise ArgumentError(f"{resume_from_checkpoint} has no folder {_FOLDER}, so HFTrainer has not written it, or save_only_model "
                                "was set: start from its weights (from_pretrained) instead")

    def _load_best_model(self) -> None:
        self.engine.load_checkpoint(os.path.join(self.state.best_model_checkpoint, _FOLDER))


# ---- what is asked for -------------------------------------------------------------------------


def _check_arguments(args: TrainingArguments) -> None:
    """Refuse what has no meaning, or is not built."""
    if args.deepspeed:
        raise ArgumentError("deepspeed of TrainingArguments starts DeepSpeed: use libzero.HFTrainingArguments, or give HFTrainer "
                            "libzero_config=")
    if args.device.type != "cpu":
        raise UnsupportedError(f"the device is {args.device}, and CUDA is not supported yet: set use_cpu=True in the training arguments")
    refused = {
        "fp16": "bf16 is supported",
        "fsdp": "libzero shards itself",
        "fp16_full_eval": "evaluation has the parameters of training",
        "bf16_full_eval": "evaluation has the parameters of training",
        "auto_find_batch_size": "set per_device_train_batch_size",
        "torch_compile": "give the original module",
    }
    for name, reason in refused.items():
        if getattr(args, name, None):
            raise UnsupportedError(f"{name} of the training arguments is not supported: {reason}")
    if args.load_best_model_at_end and args.save_only_model:
        raise UnsupportedError("load_best_model_at_end requires checkpoints of the engine: set save_only_model=False")


def _read_config(source: Any, args: TrainingArguments) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """DeepSpeed's part, without what the training arguments say, and keywords of the engine."""
    if source is None:
        return None, {}
    if isinstance(source, Mapping):
        config = json.loads(json.dumps(dict(source), default=os.fspath))
    else:
        text = str(source) if str(source).lstrip().startswith("{") else pathlib.Path(source).read_text()
        config = _options._parse(text)
    keywords = {}
    for key in list(config):
        is_option = key in _options.rows() and not isinstance(config[key], dict)
        if key in ("betas", "eps", *_OF_ENGINE) or (is_option and not _is_deepspeed(key)):
            keywords[key] = config.pop(key)
            if key in _OF_ARGUMENTS:
                raise ArgumentError(f"libzero_config: {key} is set by the training arguments ({_OF_ARGUMENTS[key]}): remove it here")
    _settle(config, keywords, args)
    return config or None, keywords


def _is_deepspeed(key: str) -> bool:
    return _options.rows()[key].what["key"] == key


def _settle(config: dict[str, Any], keywords: dict[str, Any], args: TrainingArguments) -> None:
    """Take out what the training arguments say; it must be the same, or "auto"."""
    said = {
        ("gradient_accumulation_steps",): args.gradient_accumulation_steps,
        ("gradient_clipping",): args.max_grad_norm,
        ("train_micro_batch_size_per_gpu",): args.per_device_train_batch_size,
        ("train_batch_size",): args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size,
        ("optimizer", "params", "lr"): args.learning_rate,
        ("optimizer", "params", "betas"): [args.adam_beta1, args.adam_beta2],
        ("optimizer", "params", "eps"): args.adam_epsilon,
        ("optimizer", "params", "weight_decay"): args.weight_decay,
    }
    for path, value in said.items():
        place = config
        for key in path[:-1]:
            place = place.get(key) or {}
        found = place.pop(path[-1], "auto")
        if found not in ("auto", value) and "auto" not in (found if isinstance(found, list) else ()):
            raise ArgumentError(f'libzero_config: {".".join(path)} is {found}, the training arguments say {value}: make them equal, or "auto"')
    if config:
        config["gradient_clipping"] = args.max_grad_norm  # absent, it would be DeepSpeed's default
    optimizer = config.pop("optimizer", None)
    if optimizer is not None:
        _check_optimizer(optimizer)
        kind = str(optimizer.get("type", "AdamW")).lower()
        keywords["optimizer type"] = "adamw" if kind == "adam" else kind
    scheduler = config.pop("scheduler", None) or {}
    if scheduler:
        keywords["scheduler"] = scheduler
        _check_schedule(scheduler, args)
    precision = config.get("bf16")
    if isinstance(precision, dict) and precision.get("enabled") == "auto":
        precision["enabled"] = bool(args.bf16)


def _check_optimizer(section: dict[str, Any]) -> None:
    """Refuse what the training arguments' optimizer does not do; what changes nothing passes."""
    left = {k: v for k, v in (section.get("params") or {}).items() if v != "auto"}
    keys = {row.what["key"] for row in _options.rows().values()}
    for key in left:
        if f"optimizer.params.{key}" in keys:
            raise ArgumentError(
                f"libzero_config: optimizer.params.{key} is not supported: the optimizer is the "
                "training arguments' optim"
            )
    if left:
        kind = section.get("type", "AdamW")
        _options.configure({"optimizer": {"type": kind, "params": left}}, {}, 1)


def _check_schedule(scheduler: dict[str, Any], args: TrainingArguments) -> None:
    """Refuse a scheduler that is not DeepSpeed's, or differs from the arguments'."""
    kind = scheduler.get("type")
    asked = str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type))
    if kind not in _SCHEDULES:
        raise ArgumentError(
            f"libzero_config: scheduler.type is {kind}, must be one of {', '.join(_SCHEDULES)}; or "
            f"remove `scheduler`: the schedule is then lr_scheduler_type, {asked}"
        )
    like = _SCHEDULES[kind][0]
    if asked not in _SCHEDULES[kind]:
        raise ArgumentError(
            f"libzero_config: scheduler.type is {kind}, and lr_scheduler_type of the training "
            f"arguments is {asked}: remove `scheduler`, or set lr_scheduler_type to {like}"
        )
    if args.lr_scheduler_kwargs:
        raise ArgumentError(
            "lr_scheduler_kwargs of the training arguments has no effect with scheduler.type "
            f"{kind} of libzero_config: remove one of the two"
        )
    if asked != like:
        _c.logger.warning("schedule: %s of libzero_config, not lr_scheduler_type %s", kind, asked)
    _rate_of(scheduler, args, args.max_steps if args.max_steps > 0 else None)


def _rate_of(
    scheduler: dict[str, Any], args: TrainingArguments, n_steps: int | None
) -> Callable[[int], float]:
    """The rate of an update, from 0, as DeepSpeed's engine has it: its scheduler begins after the
    first update, which has the lowest rate. n_steps: all updates; None: not known yet."""
    params = dict(scheduler.get("params") or {})
    said = {"warmup_max_lr": args.learning_rate}
    if n_steps is not None:
        said.update(warmup_num_steps=args.get_warmup_steps(n_steps), total_num_steps=n_steps)
    for key, value in said.items():
        if params.get(key, value) not in ("auto", value):
            raise ArgumentError(
                f"libzero_config: scheduler.params.{key} is {params[key]}, the training arguments "
                f'say {value}: make them equal, or "auto"'
            )
    filled = {"warmup_min_lr": 0, "warmup_num_steps": 1, "total_num_steps": 1, **said}
    params = {k: filled.get(k, v) if v == "auto" else v for k, v in params.items()}
    if scheduler["type"] != "WarmupLR":
        params.setdefault("total_num_steps", filled["total_num_steps"])
    optimizer = {"type": "AdamW", "params": {"lr": args.learning_rate}}
    source = {"optimizer": optimizer, "scheduler": {**scheduler, "params": params}}
    config = _options.configure(source, {}, 1)
    is_cosine = scheduler["type"] == "WarmupCosineLR"
    lowest = 0.0 if is_cosine else float(params.get("warmup_min_lr", 0))
    return lambda n: _c.lib.zr_config_lr(_c.byref(config), n - 1) if n else lowest
