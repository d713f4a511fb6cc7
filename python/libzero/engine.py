"""The engine: a PyTorch module trained on libzero's units. Here is what a training loop calls, and the state of a step; by concern:

building.py     parameters become the library's memory, with their first values
hooks.py        parameters that come and go at stage 3, and what autograd saves of them
gradients.py    from autograd to the library, and the order in which units are reduced
values.py       gathered(), state_dict(), load_state_dict()
checkpoints.py  saving and loading, signed or not
units.py        which parameters are gathered together
stash.py        activations on drives
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from . import _c, _options, _torch_optimizer
from ._c import ArgumentError, StateError, UnsupportedError, byref, c_bool, c_void_p, check, lib
from .building import Building, read_groups
from .checkpoints import Checkpoints, read_secret
from .exchange import saved_names
from .gradients import Gradients, rows_of
from .hooks import IN_BACKWARD, IN_FORWARD, OUTSIDE, Hooks
from .pretrained import Weights, give_places, take_pretrained
from .stash import UNIT_BYTES, Stash
from .units import Param, Unit, check_params, plan_units, tensor_at
from .values import Values

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Engine(Building, Hooks, Gradients, Values, Checkpoints):
    """Trains a module, as DeepSpeed's engine does: forward, backward(loss), step.

    model: an nn.Module on the CPU, in fp32 (or bf16 where the configuration says so). It is used in place: its
        parameters become the library's memory.
    config: DeepSpeed's JSON, a file or a dictionary; None: the defaults
    optimizer: the name of an optimizer of the library; or a torch AdamW or SGD without state, whose kind, hyperparameters
        and groups are used. Its learning rates and weight decays are read in each step, so PyTorch's schedulers work on it
    lr_scheduler: a scheduler of that optimizer, or a function that creates one: step() steps it
    model_parameters: parameter groups as in torch.optim: dictionaries with `params`, and `weight_decay` and
        `lr` where they differ. Parameters in no group have the configuration's values. None: one group
    pretrained: a Hugging Face folder with safetensors, or a safetensors file: values of all parameters; each rank
        reads the part that it keeps. The model may have been built in libzero.init(), without values
    offload_activations: "nvme": tensors that autograd saves for backward are kept on the drives of nvme_path, up to
        activations_capacity bytes ("8GiB"); small ones stay. "cpu": they stay in host memory, as without it
    units: names of modules, or patterns such as "model.layers.*", that are gathered as a whole; None: the
        elements of module lists
    checkpoint_sign: "write": checkpoints are signed with the ranks' secret; "require": and only signed ones are loaded
    comm_secret: a file with the secret, at least 16 bytes; None: the value of the variable ZR_COMM_SECRET
    Other keywords are options; libzero.options() lists them; they override the configuration.

    Only the thread that created it may use it.
    """

    def __init__(
        self,
        model: nn.Module,
        config: str | os.PathLike[str] | Mapping[str, Any] | None = None,
        *,
        model_parameters: Iterable[Any] | None = None,
        units: Iterable[str] | None = None,
        optimizer: Any = None,
        lr_scheduler: Any = None,
        pretrained: str | os.PathLike[str] | None = None,
        offload_activations: str = "none",
        activations_capacity: int | str | None = None,
        checkpoint_sign: str = "off",
        comm_secret: str | os.PathLike[str] | None = None,
        **keywords: Any,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise ArgumentError(f"model is {type(model).__name__}, must be a torch.nn.Module")
        if hasattr(model, "_orig_mod"):
            raise UnsupportedError("model: a module of torch.compile is not supported yet; give the original module")
        if isinstance(config, Mapping):
            config = dict(config)
        self.optimizer, self.lr_scheduler = None, None
        if isinstance(optimizer, str):
            keywords["optimizer"] = optimizer
        elif optimizer is not None:
            self._take_optimizer(optimizer, model_parameters, keywords)
            model_parameters = optimizer.param_groups
        _c.keep_less_of_what_is_freed()
        self._runtime = c_void_p()
        self._signs, self._secret = checkpoint_sign, read_secret(checkpoint_sign, comm_secret)
        rank = self._open_rank()
        self.rank, self.world_size = rank.rank, rank.n_ranks
        notes: list[str] = []
        self._config = _options.configure(config, keywords, rank.n_ranks, offload_activations == "nvme", notes)
        for note in notes if rank.rank == 0 else []:
            _c.logger.warning("%s", note)
        self._stash: Stash | None = None  # of activations on drives
        self._stash_bytes = self._read_activations(offload_activations, activations_capacity)
        self.module = model
        self.stage = int(self._get("stage"))
        self.dtype = _DTYPES[self._get("dtype")]
        self._take_scheduler(lr_scheduler)
        self._n_micro_batches = int(self._get("grad_accum"))
        # Whether parameters come and go.
        is_offloaded = self._get("offload_params") != "none"
        n_shards = lib.zr_config_n_shards(byref(self._config), rank.n_ranks)
        self._moves = self.stage == 3 and (n_shards > 1 or is_offloaded)
        self._gathers = self.stage == 3 and n_shards > 1  # with other ranks
        self._hooks_saving = self._moves or self._stash_bytes > 0
        noted = take_pretrained(model)
        pretrained = noted if pretrained is None else pretrained
        if pretrained is not None:
            give_places(model, self.dtype)
        self._weights = Weights(pretrained, model) if pretrained is not None else None
        self._check_params()
        self._groups = read_groups(model, model_parameters, self.optimizer is not None)
        self._saved_names = saved_names(model)  # of parameters, in checkpoints
        named = model.named_parameters(remove_duplicate=False)
        self._given_dtypes = {name: p.dtype for name, p in named}  # before they were the library's
        self._saved_model: dict[str, Any] | None = None  # what they say of the model, once it was asked for
        plans, self._needs = plan_units(model, list(units) if units is not None else None)
        if not plans:
            raise ArgumentError("model has no parameters")
        self._phase = OUTSIDE
        self._failed = ""
        self._is_mixed = False  # some parameters are of the next step already, and the step was given up
        self._syncs = True
        self._is_open = False  # a micro-batch was begun, and its backward has not ended
        self._n_open = 0  # as how many it counts
        self._is_last = False  # the next one ends the step
        self._n_done = 0  # micro-batches of this step
        self._knows_order = False  # in which backward completes units
        self._n_gradients = 0  # of the first backward so far
        self._report = _c.StepReport()
        self._kept: list[Unit] = []
        self._held_by_use: list[Unit] = []
        self._shared_hooks: list[Any] = []  # of this backward
        self._live: dict[int, Param] = {}  # by address: parameters that are gathered
        self._absent: dict[int, Param] = {}  # by address: what stands for those that are not
        self._own: set[int] = set()  # addresses of parameters that are always there
        try:
            self._build(plans, None)
        except BaseException:
            lib.zr_runtime_destroy(byref(self._runtime))
            raise
        self._add_hooks()
        _c._runtimes.append(self)

    def _read_activations(self, where: str, capacity: int | str | None) -> int:
        """Bytes of activations that may be on drives."""
        if where not in ("none", "cpu", "nvme"):
            raise ArgumentError(f"offload_activations={where!r}: activations may stay ('none', 'cpu': in host memory) or be on drives ('nvme')")
        if where != "nvme":
            if capacity is not None:
                raise ArgumentError("activations_capacity has no effect: it is room on drives, with offload_activations='nvme'")
            return 0
        if not self._get("nvme_path"):
            raise ArgumentError("offload_activations='nvme' requires nvme_path, a folder on a drive")
        if capacity is None:
            raise ArgumentError("offload_activations='nvme' requires activations_capacity, how much of the drive they may take, such as '8GiB'")
        size = _options.size_of("activations_capacity", capacity) // UNIT_BYTES * UNIT_BYTES
        if not size:
            raise ArgumentError(f"activations_capacity is {capacity}; at least {UNIT_BYTES} bytes are needed")
        return size

    # ---- what a plan of it does otherwise (planning.py) ----

    def _open_rank(self) -> Any:
        return _c.open_rank()

    def _check_params(self) -> None:
        check_params(self.module, self.dtype, self._weights is None)

    @staticmethod
    def _address(tensor: torch.Tensor) -> int:
        """Of its storage, by which a parameter is known again."""
        try:
            return tensor.untyped_storage().data_ptr()
        except (NotImplementedError, RuntimeError):  # a tensor without storage
            return 0

    def _show(self, p: Param) -> None:
        """Let a parameter be the library's memory."""
        p.tensor.data = tensor_at(lib.zr_param_data(p.handle), self.dtype, p.shape)
        p.key, p.version = p.tensor.data_ptr(), p.tensor._version

    def _put(self, gradient: torch.Tensor, p: Param, lookup: Any) -> None:
        """Move a gradient to the library's memory; of an embedding's output, to the rows that were looked up."""
        pointer, adds = c_void_p(), c_bool()
        check(lib.zr_param_grad(p.handle, byref(pointer), byref(adds)))
        target = tensor_at(pointer.value, self.dtype, p.shape)
        if lookup is not None:
            rows, sums = rows_of(lookup, gradient)
            (target if adds else target.zero_()).index_add_(0, rows, sums.to(self.dtype))
        else:
            target.add_(gradient) if adds else target.copy_(gradient)

    # ---- beginning ----

    def _take_optimizer(self, optimizer: Any, model_parameters: Any, keywords: dict[str, Any]) -> None:
        """One of torch's says what to do. It does nothing itself."""
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise ArgumentError(f"optimizer is {type(optimizer).__name__}, must be a torch.optim.Optimizer or a name")
        own = {**_torch_optimizer.options_of(optimizer), "lr": 1.0, "weight_decay": None, "schedule": None}
        twice = [k for k in own if keywords.get(k) is not None]
        if model_parameters is not None:
            twice.append("model_parameters")
        if twice:
            raise ArgumentError(f"{twice[0]} is set by the optimizer that was given; remove one of the two")
        keywords.update(own)
        self.optimizer = optimizer

    def _take_scheduler(self, scheduler: Any) -> None:
        if self.optimizer is not None and self._get("schedule") != "constant":
            raise ArgumentError("the configuration has a scheduler, and the optimizer has its own learning rates: remove one of the two")
        if scheduler is None:
            return
        if self.optimizer is None:
            raise ArgumentError("lr_scheduler requires a torch optimizer, whose learning rates it sets; or set the configuration's scheduler")
        self.lr_scheduler = scheduler if hasattr(scheduler, "step") else scheduler(self.optimizer)
        if getattr(self.lr_scheduler, "optimizer", self.optimizer) is not self.optimizer:
            raise ArgumentError("lr_scheduler belongs to another optimizer than the one that was given")

    # ---- what it is ----

    def _get(self, keyword: str) -> str:
        return _options.get(self._config, keyword)

    @property
    def global_steps(self) -> int:
        """Optimizer steps done, skipped ones included."""
        return self._report.step

    @property
    def skipped_steps(self) -> int:
        """Steps that changed nothing, because their gradients were not finite."""
        return self._report.n_skipped

    @property
    def clip(self) -> float:
        """Largest norm of all gradients together; 0: no clipping."""
        return float(self._get("clip"))

    def get_lr(self) -> list[float]:
        """The learning rate of the next step, of each group of a torch optimizer, or one."""
        if self.optimizer is not None:
            return [lr for _, lr in _torch_optimizer.rates_of(self.optimizer)]
        return [lib.zr_config_lr(byref(self._config), self.global_steps - self.skipped_steps)]

    def get_global_grad_norm(self) -> float:
        """Norm of the last step's averaged gradients, before clipping."""
        return self._report.gradient_norm

    def gradient_accumulation_steps(self) -> int:
        """Micro-batches of a step."""
        return self._n_micro_batches

    def is_gradient_accumulation_boundary(self) -> bool:
        """Whether step() updates now: all micro-batches of the step are done."""
        return self._n_done == self._n_micro_batches

    def set_gradient_accumulation_boundary(self, is_boundary: bool) -> None:
        """Say whether the next micro-batch is the last of its step, for a step with fewer micro-batches. All ranks call
        it alike, before its forward. Gradients are still divided by the micro-batches of a whole step."""
        self._is_last = is_boundary

    def weights_xxh3(self) -> int:
        """A hash of all parameters at full precision: the same at every stage and placement. All ranks call it."""
        self._check("weights_xxh3")
        value = ctypes.c_uint64()
        check(lib.zr_runtime_weights_xxh3(self._runtime, byref(value)))
        return value.value

    def average(self, value: float) -> float:
        """A number, such as a loss, averaged over the ranks. All ranks call it."""
        self._check("average")
        result = ctypes.c_double()
        check(lib.zr_runtime_average(self._runtime, float(value), byref(result)))
        return result.value

    def memory(self) -> dict[str, dict[str, Any]]:
        """Bytes that this rank's library holds on the device and in host memory, now and at the peak, in all and by use.
        Activations belong to PyTorch and are not included."""
        self._check("memory")
        result: dict[str, dict[str, Any]] = {}
        for tier, name in enumerate(("device", "host")):
            seen = _c.TierStatistics()
            lib.zr_allocator_statistics(lib.zr_runtime_allocator(self._runtime), tier, byref(seen))
            tags = {lib.zr_tag_name(i).decode(): {"live": t.live, "peak": t.peak} for i, t in enumerate(seen.by_tag)}
            result[name] = {"live": seen.live.live, "peak": seen.live.peak, "reserved_peak": seen.reserved.peak, "tags": tags}
        return result

    def _check(self, call: str) -> None:
        if not self._runtime:
            raise StateError(f"{call}: the engine is closed")
        if self._is_mixed and call != "load_checkpoint":
            raise StateError(
                f"{call}: an exception in backward has left some parameters updated and others not (update_at='backward'): "
                "load a checkpoint with load_checkpoint(), or close the engine"
            )
        if self._failed:
            raise StateError(f"{call}: the engine has failed before ({self._failed}) and can only be closed")

    # ---- forward ----

    def __call__(self, *inputs: Any, **keywords: Any) -> Any:
        return self.forward(*inputs, **keywords)

    def forward(self, *inputs: Any, **keywords: Any) -> Any:
        """The module's forward."""
        self._check("forward")
        if not self._moves:
            with self._saving():
                return self.module(*inputs, **keywords)
        with self.in_forward():
            return self.module(*inputs, **keywords)

    @contextlib.contextmanager
    def in_forward(self) -> Iterator[None]:
        """A context in which the module or parts of it may be called directly: parameters are gathered as they are used."""
        self._check("in_forward")
        if self._phase != OUTSIDE or not self._moves:
            with self._saving():
                yield
            return
        if torch.is_grad_enabled() and self.module.training and self._syncs:
            self._begin("forward")
        elif self._n_done == 0 and not self._is_open:
            check(lib.zr_runtime_begin_evaluation(self._runtime))
        self._phase = IN_FORWARD
        try:
            with self._saving():
                yield
            while self._held_by_use:
                self._give_back(self._held_by_use.pop())
        except BaseException:
            self._give_all_back()
            raise
        finally:
            self._phase = OUTSIDE

    def _begin(self, call: str) -> None:
        if self._is_open:
            return
        if self._n_done == self._n_micro_batches:
            raise StateError(
                f"{call}: the step's {self._n_micro_batches} micro-batches are done; call step() (grad_accum, "
                "DeepSpeed's gradient_accumulation_steps, says how many it has)"
            )
        self._n_open = self._n_micro_batches - self._n_done if self._is_last else 1
        check(lib.zr_runtime_begin_micro_batches(self._runtime, self._n_open))
        self._is_open, self._is_last = True, False
        for unit in self._units:
            unit.reduced = False

    # ---- backward ----

    def backward(self, loss: torch.Tensor, gradient: torch.Tensor | None = None, retain_graph: bool = False) -> None:
        """Compute the gradients of a micro-batch, averaged over its step's micro-batches and the ranks."""
        self._check("backward")
        if self._phase != OUTSIDE:
            raise StateError(f"backward within {self._phase}")
        if not isinstance(loss, torch.Tensor):
            raise ArgumentError(f"loss is {type(loss).__name__}, must be a tensor")
        if loss.grad_fn is None:
            raise ArgumentError("loss depends on no parameter: it has no grad_fn (was it made under torch.no_grad()?)")
        if self._syncs:
            self._begin("backward")
        if self._moves:
            _c.give_back_what_is_free()
        self._phase = IN_BACKWARD
        try:
            if self._syncs:
                self._expect(loss)
            with self._saving():
                loss.backward(gradient, retain_graph=retain_graph)
            if self._syncs:
                self._reduce_rest()
            for unit in list(self._kept):
                self._drop(unit)
        except BaseException as error:
            self._give_step_up(error)
            raise
        finally:
            self._phase = OUTSIDE
            for handle in self._shared_hooks:
                handle.remove()
            self._shared_hooks.clear()
        if self._syncs:
            if not self._knows_order:
                self._learn_order()
            self._is_open = False
            self._n_done += self._n_open

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """A context in which gradients of backward add up in each rank's own memory and are not reduced: the next
        backward outside of it reduces them with its own. They are added, not averaged."""
        self._check("no_sync")
        before, self._syncs = self._syncs, False
        try:
            yield
        finally:
            self._syncs = before

    # ---- step ----

    def step(self) -> bool:
        """Clip and update when all micro-batches of the step are done; before that, do nothing.

        Returns whether it has updated: false also for a step whose gradients were not finite.
        """
        self._check("step")
        if self._n_done == 0 or self._is_open:
            raise StateError("step: no backward was called before it")
        if not self.is_gradient_accumulation_boundary():
            return False
        if not self._moves:
            self._check_unchanged(self._params.values())
        before = self._report.n_skipped
        if self.optimizer is not None:
            self._follow_rates()
        check(lib.zr_runtime_step(self._runtime, byref(self._report)))
        if self._moves:
            _c.give_back_what_is_free()
        self._n_done = 0
        has_updated = self._report.n_skipped == before
        if self.optimizer is not None:
            self.optimizer._opt_called = True  # else schedulers warn that it was not called
        if self.lr_scheduler is not None and has_updated:
            self.lr_scheduler.step()
        return has_updated

    def _follow_rates(self) -> None:
        """Values that schedulers or the script have set in the optimizer's groups."""
        rates = _torch_optimizer.rates_of(self.optimizer)
        if len(rates) != len(self._rates):
            raise UnsupportedError("optimizer: a group was added after the engine was made")
        for number, before, (decay, lr) in zip(self._numbers, self._rates, rates):
            if before != (decay, lr):
                check(lib.zr_runtime_change_group(self._runtime, number, decay, lr))
        self._rates = rates

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Does nothing: gradients belong to the library and start at zero in each step."""

    # ---- the module's ----

    def train(self, mode: bool = True) -> Engine:
        """The module's train(mode)."""
        self.module.train(mode)
        return self

    def eval(self) -> Engine:
        """The module's eval()."""
        return self.train(False)

    def parameters(self) -> Iterator[nn.Parameter]:
        """The module's parameters; at stage 3 see gathered()."""
        return self.module.parameters()

    def close(self) -> None:
        """Free everything. The module's parameters have no values afterwards."""
        if not self._runtime:
            return
        self._remove_hooks()
        for p in self._params.values():
            p.tensor.data = p.absent
        self._close_stash()
        lib.zr_runtime_destroy(byref(self._runtime))
        if self in _c._runtimes:
            _c._runtimes.remove(self)

    def _close_stash(self) -> None:
        stash, self._stash = self._stash, None
        if stash is not None:
            stash.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
