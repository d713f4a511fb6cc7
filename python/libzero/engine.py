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
import gc
import os
import sys
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
from .parameters import closed_message, data_of, forget, grad_of, seal_alive, set_data, set_grad, weak_reference, without_values
from .pretrained import Weights, give_places, take_pretrained
from .stash import UNIT_BYTES, Stash
from .units import Param, Unit, check_params, plan_units, tensor_at
from .values import Values

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
_MAX_SKIPPED = 5  # steps in a row
_MANY_ENGINES = 16


class Engine(Building, Hooks, Gradients, Values, Checkpoints):
    """Trains a module, as DeepSpeed's engine does: forward, backward(loss), step.

    model: an nn.Module on the CPU, in fp32 (or bf16 where the configuration says so). It is used in place: its
        parameters become the library's memory.
    config: DeepSpeed's JSON, a file or a dictionary, with DeepSpeed's defaults; None: PyTorch's defaults
    optimizer: the name of an optimizer of the library; or a torch AdamW or SGD without state, whose kind, hyperparameters
        and groups are used. It is `engine.optimizer`, which is a torch.optim.Optimizer in any case: values of its groups (lr,
        betas, weight_decay, ...) are read in each step, so PyTorch's schedulers work on it. Its step() is the engine's
    lr_scheduler: a scheduler of that optimizer, or a function of engine.optimizer that creates one: step() steps it
    model_parameters: parameters or parameter groups as in torch.optim: dictionaries with `params`, and `lr`, `betas`,
        `weight_decay` and the like where they differ. None: one group of all parameters
    pretrained: a Hugging Face folder with safetensors, or a safetensors file: values of all parameters; each rank
        reads the part that it keeps. The model may have been built in libzero.init(), without values
    offload_activations: "nvme": tensors that autograd saves for backward are kept on the drives of nvme_path, up to
        activations_capacity bytes ("8GiB"); small ones stay. "cpu": they stay in host memory, as without it
    units: names of modules, or patterns such as "model.layers.*", that are gathered as a whole; None: the
        elements of module lists
    checkpoint_sign: "write": checkpoints are signed with the ranks' secret; "require": and only signed ones are loaded
    comm_secret: a file with the secret, at least 16 bytes; None: the value of the variable ZR_COMM_SECRET
    Other keywords are options, which libzero.options() lists, or those of torch.optim's optimizers (betas=, eps=, ...); they
        override the configuration.

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
        self._runtime = c_void_p()
        if not isinstance(model, nn.Module):
            raise ArgumentError(f"model is {type(model).__name__}, must be a torch.nn.Module")
        if hasattr(model, "_orig_mod"):
            raise UnsupportedError("model: a module of torch.compile is not supported yet; give the original module")
        if isinstance(config, Mapping):
            config = dict(config)
        keywords = _options.from_torch(keywords)
        if isinstance(optimizer, str):
            keywords["optimizer"] = optimizer.lower()
        elif optimizer is not None:
            self._take_optimizer(optimizer, config, model_parameters, keywords)
            model_parameters = optimizer.param_groups
        _c.keep_less_of_what_is_freed()
        if len(_c._runtimes) >= _MANY_ENGINES:
            gc.collect()  # those that nobody has any more, such as of earlier Trainers
        self._signs, self._secret = checkpoint_sign, read_secret(checkpoint_sign, comm_secret)
        rank = self._open_rank()
        self._process = os.getpid()
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
        self._frozen = {id(p) for p in model.parameters() if not p.requires_grad}
        self._places = [(m, n, p) for m in model.modules() for n, p in m._parameters.items() if p is not None]
        self._updates_in_backward = self._get("update_at") == "backward"
        self._report = _c.StepReport()
        self._take_rates(optimizer, model_parameters, lr_scheduler)
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
        self._kept: list[Unit] = []
        self._held_by_use: list[Unit] = []
        self._shared_hooks: list[Any] = []  # of this backward
        self._live: dict[int, Param] = {}  # by address: parameters that are gathered
        self._leaves_out_at_end = False  # they are known when all gradients are there
        self._left_out: set[Any] = set()  # parameters without a gradient on any rank, known before backward updates
        self._lingering: list[Any] = []  # units that stay for tensors that other code has made of their parameters
        self._aliasing: list[Any] = []  # modules in forward, with what other code's hooks get of their parameters
        self._hook_of: dict[int, Any] = {}  # by id of a parameter: what takes its gradient
        self._tables: set[int] = set()  # ids of embeddings whose lookups others' hooks have saved, in this step
        self._is_late = False  # gradients have come after their unit's were complete
        self._has_unsynced = False  # no_sync has left gradients
        self._n_skipped = 0  # steps in a row
        self._said_kept = False
        self._own: set[int] = set()  # addresses of parameters that are always there
        try:
            self._build(plans, None)
        except BaseException:
            lib.zr_runtime_destroy(byref(self._runtime))
            raise
        self._add_hooks()
        _c._runtimes.add(self)

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
        values = tensor_at(lib.zr_param_data(p.handle), self.dtype, p.shape) if p.key == 0 else tensor_at(p.key, self.dtype, p.shape)
        set_data(p, values)
        p.key = values.data_ptr()
        p.references.append(weak_reference(values))
        p.accept()

    def _has_whole_gradient(self, p: Param) -> bool:
        return self.world_size == 1 and bool(lib.zr_param_kept_grad(p.handle))

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

    @staticmethod
    def _take_optimizer(optimizer: Any, config: Any, model_parameters: Any, keywords: dict[str, Any]) -> None:
        """One of torch's says what to do. It does nothing itself."""
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise ArgumentError(f"optimizer is {type(optimizer).__name__}, must be a torch.optim.Optimizer or a name")
        if _torch_optimizer.is_in_use(optimizer):
            raise StateError("optimizer belongs to an engine that is open: close() that, or give another optimizer")
        own = {**_torch_optimizer.options_of(optimizer), "weight_decay": None, "schedule": None}
        twice = [k for k in own if keywords.get(k) is not None]
        if model_parameters is not None:
            twice.append("model_parameters")
        if twice:
            raise ArgumentError(f"{twice[0]} is set by the optimizer that was given; remove one of the two")
        _torch_optimizer.check_section(own["optimizer"], config)
        keywords.update(own)

    def _take_rates(self, optimizer: Any, model_parameters: Any, lr_scheduler: Any) -> None:
        """The optimizer, as torch has it, and its scheduler."""
        is_given = isinstance(optimizer, torch.optim.Optimizer)
        if (is_given or lr_scheduler is not None) and self._get("schedule") != "constant":
            other = "lr_scheduler is given" if lr_scheduler is not None else "the optimizer has its own learning rates"
            raise ArgumentError(f"the configuration has a scheduler, and {other}: remove one of the two")
        groups = read_groups(self.module, model_parameters, "" if is_given else self._get("optimizer"))
        self.optimizer = optimizer if is_given else _torch_optimizer.make(self._config, groups)
        self.lr_scheduler = None if lr_scheduler is None else _torch_optimizer.check_scheduler(lr_scheduler, self.optimizer)
        self._rates = _torch_optimizer.Rates(self, self.optimizer, self._config)

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
        """The learning rates of the next step, of each group."""
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def get_global_grad_norm(self) -> float:
        """Norm of the last step's averaged gradients, before clipping."""
        return self._report.gradient_norm

    def gradient_accumulation_steps(self) -> int:
        """Micro-batches of a step."""
        return self._n_micro_batches

    def is_gradient_accumulation_boundary(self) -> bool:
        """Whether step() updates now: all micro-batches of the step are done."""
        return self._n_done >= self._n_micro_batches

    def set_gradient_accumulation_boundary(self, is_boundary: bool) -> None:
        """Say whether the next micro-batch is the last of its step, for a step with fewer micro-batches. All ranks call
        it alike, before its forward. Gradients are still divided by the micro-batches of a whole step."""
        self._is_last = is_boundary

    def weights_xxh3(self) -> int:
        """A hash of all parameters at full precision: the same at every stage and placement. All ranks call it."""
        self._check("weights_xxh3")
        if self._is_between_steps():
            self._follow_changes()
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
        _c.check_process(self._process, call)
        _c.check_group()
        if not self._runtime:
            raise StateError(f"{call}: the engine is closed")
        if self._is_mixed and call != "load_checkpoint":
            raise StateError(
                f"{call}: an exception in backward has left some parameters updated and others not (update_at='backward'): "
                "load a checkpoint with load_checkpoint(), or close the engine"
            )
        if self._failed and call != "load_checkpoint":
            raise StateError(f"{call}: the engine has failed before ({self._failed}) and can only load a checkpoint, or be closed")

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
        self._end_lingering()
        self._phase = IN_FORWARD
        try:
            with self._saving():
                yield
            while self._held_by_use:
                self._give_back(self._held_by_use.pop())
        except BaseException as error:
            try:
                self._give_all_back()
            except _c.Error:  # for the same reason
                self._failed = f"{type(error).__name__} in forward"
            raise
        finally:
            self._phase = OUTSIDE

    def _begin(self, call: str) -> None:
        if self._is_open:
            return
        if self._n_done == 0:
            self._follow_changes()
        is_extra = self._n_done >= self._n_micro_batches
        if is_extra and self._n_micro_batches > 1:
            raise StateError(
                f"{call}: the step's {self._n_micro_batches} micro-batches are done; call step() (grad_accum, "
                "DeepSpeed's gradient_accumulation_steps, says how many it has; with 1, a step takes those that come before step())"
            )
        self._n_open = self._n_micro_batches - self._n_done if self._is_last else 1
        if is_extra:
            check(lib.zr_runtime_begin_extra_micro_batch(self._runtime))
        else:
            check(lib.zr_runtime_begin_micro_batches(self._runtime, self._n_open))
        self._is_open, self._is_last = True, False
        for unit in self._units:
            unit.reduced = False

    def _drop_open(self) -> None:
        """A micro-batch of which there is a forward alone, or nothing."""
        self._give_all_back()
        self._end_lingering(is_forced=True)
        check(lib.zr_runtime_drop_step(self._runtime))
        self._is_open = False

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients of the step's micro-batches so far, as PyTorch's zero_grad() does. Where grad_accum declares several
        micro-batches it does so after the last; before, it does nothing, as DeepSpeed's."""
        self._check("zero_grad")
        if self._n_done == 0:
            return  # nothing, or a forward whose backward comes
        if not self.is_gradient_accumulation_boundary():
            if not self._said_kept:
                _c.logger.warning("zero_grad: the step has %d micro-batches (grad_accum), and the gradients of %d are kept; "
                                  "drop_step() drops them", self._n_micro_batches, self._n_done)
            self._said_kept = True
            return
        self.drop_step()

    def drop_step(self) -> None:
        """Drop what was computed since the last step(): all gradients, and a micro-batch that was begun. All ranks call it."""
        self._check("drop_step")
        if self._updates_in_backward and self._n_done >= self._n_micro_batches:
            raise UnsupportedError("drop_step: backward has updated parameters already (update_at='backward'): set update_at='end'")
        self._give_all_back()
        self._end_lingering(is_forced=True)
        check(lib.zr_runtime_drop_step(self._runtime))
        self._forget_gradients()
        self._is_open, self._n_done = False, 0

    # ---- backward ----

    def backward(self, loss: torch.Tensor, gradient: torch.Tensor | None = None, retain_graph: bool = False, *, scale: bool = True) -> None:
        """Compute the gradients of a micro-batch.

        They are averaged over the ranks, and over the micro-batches that grad_accum declares: loss is divided by these. Without
        (grad_accum 1) gradients of several calls before step() add up, as in PyTorch.
        scale: False: do not divide; the script has done so
        """
        self._check("backward")
        if self._phase != OUTSIDE:
            raise StateError(f"backward within {self._phase}")
        if not isinstance(loss, torch.Tensor):
            raise ArgumentError(f"loss is {type(loss).__name__}, must be a tensor")
        if loss.grad_fn is None:
            raise ArgumentError("loss depends on no parameter: it has no grad_fn (was it made under torch.no_grad()?)")
        if self._syncs:
            self._rates.begin_backward()
            self._begin("backward")
        if self._n_done and not self._has_unsynced:
            self._take_shown()
        if self._moves:
            _c.give_back_what_is_free()
        if scale and self._n_micro_batches > 1:
            part = 1 / self._n_micro_batches
            if gradient is not None:
                gradient = gradient * part
            elif loss.numel() == 1:
                gradient = torch.full_like(loss, part)
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
        self._end_lingering()
        if not retain_graph:
            self._tables.clear()
        if not self._syncs:
            self._has_unsynced = True
            return
        self._has_unsynced = False
        if not self._knows_order:
            self._learn_order()
        self._is_open = False
        self._n_done += self._n_open
        self._show_gradients()

    def _take_shown(self) -> None:
        """Gradients of earlier micro-batches are in the library, as the script has left them; autograd begins without."""
        self._follow_gradients()
        for p in self._trained:
            if p.shows_grad:
                set_grad(p.tensor, None)

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
        if self._has_unsynced:
            raise StateError("step: gradients of no_sync were not reduced: the step's last backward must be outside of it")
        self._end_lingering(is_forced=True)
        self._follow_changes()
        self._follow_gradients()
        if not self._updates_in_backward:
            self._leave_out()
        self._rates.begin_step()
        n_before, n_skipped = self._report.step, self._report.n_skipped
        try:
            check(lib.zr_runtime_step(self._runtime, byref(self._report)))
        finally:  # an interrupt comes when the step is done
            has_updated = False
            if self._report.step != n_before:
                has_updated = self._report.n_skipped == n_skipped
                self._end_step(has_updated)
        self._check_skipped()
        return has_updated

    def _end_step(self, has_updated: bool) -> None:
        self._n_done = 0
        self._forget_gradients()
        for p in self._params.values() if not self._moves else ():
            p.accept()
        if self._moves:
            _c.give_back_what_is_free()
        self._rates.end_step(self.global_steps - self.skipped_steps)
        if self.lr_scheduler is not None and has_updated:
            self.lr_scheduler.step()
        self._n_skipped = 0 if has_updated else self._n_skipped + 1

    def _check_skipped(self) -> None:
        if self._n_skipped >= _MAX_SKIPPED:
            self._n_skipped = 0
            raise StateError(
                f"step {self.global_steps}: the norm of its gradients is {self.get_global_grad_norm()}, and {_MAX_SKIPPED} steps in a row were "
                "skipped for that: nothing is trained. Look for NaN or infinity in the loss and the inputs, or lower the learning rate; "
                "drop such batches by zero_grad() instead of step()")


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
        self._close(keeps_values=False)

    def _close(self, keeps_values: bool) -> None:
        if not self._runtime:
            return
        self._let_go(keeps_values)
        lib.zr_runtime_destroy(byref(self._runtime))
        _c._runtimes.discard(self)

    def _let_go(self, keeps_values: bool = False) -> None:
        """Nothing is left in the library's memory that PyTorch would read: before the runtime ends."""
        self._remove_hooks()
        self._kept.clear()
        self._held_by_use.clear()
        self._live.clear()
        self._own.clear()
        left = [(p, r) for _, found in self._lingering for p, r in found]
        self._lingering.clear()
        for p in self._params.values():
            message = closed_message(p.name)
            left += [(p, r) for r in p.references]
            has_values = keeps_values and p.key and not self._moves
            values = data_of(p.tensor).clone() if has_values else without_values(p, self.dtype, message)
            set_grad(p.tensor, None)
            p.kept_grad, p.references, p.key = None, [], 0
            if p.tensor.numel():
                set_data(p, values)
            p.tensor.__class__ = p.kind
            forget(p)
        for p, reference in left:
            seal_alive([reference], closed_message(p.name))
        self._close_stash()

    def __del__(self) -> None:
        """An engine that nobody has any more is freed. Where parameters are there at all times, the module keeps them."""
        if getattr(self, "_runtime", None) and not sys.is_finalizing():
            self._close(keeps_values=True)

    def _begin_fork(self) -> None:
        """Leave drives to the parent. A fork has no copy of memory that ranks share: reading parameters is refused there."""
        lib.zr_runtime_destroy(byref(self._runtime))
        for p in self._params.values() if self.world_size > 1 else ():
            if p.tensor.numel():
                set_data(p, p.absent, is_absent=True)

    def _close_stash(self) -> None:
        stash, self._stash = self._stash, None
        if stash is not None:
            stash.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
