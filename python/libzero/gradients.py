"""Gradients go to the library as autograd completes them. Units are reduced over the ranks in one order, the same on all ranks, whatever
order they are completed in.
"""

from __future__ import annotations

import functools
import inspect
import zlib
from collections.abc import Container
from typing import Any

import torch
from torch import nn

from . import _c
from ._c import StateError, UnsupportedError, check, lib
from .hooks import IN_BACKWARD
from .parameters import grad_of, set_grad, weak_reference
from .units import Param, Unit, tensor_at


class Gradients:
    """A part of Engine."""

    def _expect(self, loss: torch.Tensor) -> None:
        """How many gradients each unit waits for: of the parameters that the loss depends on."""
        used, shared, is_whole = _leaves_of(loss)
        for leaf in used.values():
            param = self._params.get(id(leaf))
            if param.is_frozen if param is not None else isinstance(leaf, nn.Parameter):
                raise UnsupportedError(
                    f"parameter {param.name} was frozen when the engine was made: make it with the parameter trainable, and freeze "
                    "it then" if param is not None else
                    f"a parameter of shape {tuple(leaf.shape)} is new: the model did not have it when the engine was made"
                )
        self._come_last()
        is_whole = is_whole and not self._is_late
        leaves_out = self._updates_in_backward and self._is_last_backward() and self.world_size > 1
        if leaves_out:
            is_whole = all(self._share(float(is_whole)))
        for unit in self._units:
            unit.n_awaited = sum(id(p.tensor) in used for p in unit.params) if is_whole else -1
            if unit.n_awaited == 0 and self._updates_in_backward:
                unit.n_awaited = -1  # its frozen parameters are used until the end
        for key, uses in shared.items():
            param = self._params.get(key)
            if is_whole and param is not None and not self._is_wanted_whole(param):
                self._take_apart(param, uses)
        self._left_out = set()
        self._leaves_out_at_end = leaves_out and not is_whole
        if leaves_out and is_whole:
            self._find_left_out(used)
        self._n_reduced = 0
        self._reduce_complete()

    def _find_left_out(self, used: Container[int]) -> None:
        """Parameters without a gradient on any rank, before their units are updated."""
        missing = [i for i, p in enumerate(self._trained) if not p.has_grad and id(p.tensor) not in used and grad_of(p.tensor) is None]
        self._left_out = {self._trained[i] for i in self._missing_everywhere(missing)}

    def _find_left_out_at_end(self) -> None:
        if self._leaves_out_at_end:
            self._leaves_out_at_end = False
            self._find_left_out(())

    def _is_last_backward(self) -> bool:
        """Of the step, where its micro-batches were declared."""
        return self._n_done + self._n_open >= self._n_micro_batches

    def _is_wanted_whole(self, param: Param) -> bool:
        """Others than the engine see its gradient, or have saved what it is made of."""
        tensor = param.tensor
        return bool(tensor._backward_hooks) or len(tensor._post_accumulate_grad_hooks) > 1 or id(tensor) in self._tables

    def _come_last(self) -> None:
        """Hooks of the script see gradients before they go to the library."""
        for key, hook in list(self._hook_of.items()):
            hooks = self._params[key].tensor._post_accumulate_grad_hooks
            if hooks and next(reversed(hooks)) != hook.id:
                hook.remove()
                self._add_gradient_hook(self._params[key])

    def _take_apart(self, param: Param, uses: list[tuple[Any, int]]) -> None:
        """A parameter that several nodes use, or an embedding: what each use adds to its gradient goes to the library at once, in the
        order in which autograd would add it, and only the last waits to be the gradient. Autograd would hold all, of a tied embedding's
        size each; of an embedding's there are only the rows that it has looked up."""
        n_left = len(uses)

        def hook_of(places: list[int]) -> Any:
            def hook(gradients: tuple[Any, ...], _: Any) -> Any:
                nonlocal n_left
                kept = list(gradients)
                for i in places:
                    n_left -= 1
                    if n_left and kept[i] is not None:
                        self._bring(param, kept[i])
                        kept[i] = None
                return tuple(kept)

            return hook

        def lookup_hook_of(node: Any) -> Any:
            def hook(gradients: tuple[Any, ...]) -> Any:
                nonlocal n_left
                if gradients[0] is None:
                    return None
                n_left -= 1
                self._bring(param, gradients[0], node)
                if n_left == 0:
                    self._complete(param.unit)
                return (None,)  # so that the node makes no gradient of the whole table

            return hook

        places_of: dict[Any, list[int]] = {}
        for node, i in uses:
            places_of.setdefault(node, []).append(i)
        self._shared_hooks += [
            node.register_prehook(lookup_hook_of(node)) if _has_rows(node) else node.register_hook(hook_of(places))
            for node, places in places_of.items()
        ]

    def _take_gradient(self, tensor: torch.Tensor) -> None:
        """Called by autograd when a parameter's gradient is complete."""
        if self._phase != IN_BACKWARD:
            raise StateError("loss.backward() was called; call engine.backward(loss)")
        if not self._syncs or grad_of(tensor) is None:  # a lookup has brought its rows
            return
        param = self._params[id(tensor)]
        self._bring(param)
        self._complete(param.unit)

    def _complete(self, unit: Unit) -> None:
        """One more parameter of it has its gradient."""
        if not self._knows_order:
            self._n_gradients += 1
            unit.completed = self._n_gradients
        unit.n_awaited -= 1
        if unit.n_awaited == 0:
            self._reduce_complete()

    def _bring(self, param: Param, gradient: torch.Tensor | None = None, lookup: Any = None) -> None:
        """Move a gradient to the library: what autograd has left in the parameter, or a part of it.

        lookup: the node of an embedding of which the gradient is the output's
        """
        if gradient is None:
            gradient = grad_of(param.tensor)
            set_grad(param.tensor, None)
        unit = param.unit
        if unit.reduced:
            self._is_late = True
            raise StateError(
                f"parameter {param.name} has another gradient after those of its unit {unit.name!r} were complete: something runs a "
                "backward of its own. This step is dropped; from the next forward and backward on, units wait for the end of backward"
            )
        if param in self._left_out:
            raise StateError(f"parameter {param.name} has a gradient although the loss did not depend on it when backward began: set update_at='end'")
        param.has_grad = True
        param.is_pending = not param.shows_grad
        if gradient.layout != torch.strided:
            raise UnsupportedError(f"parameter {param.name} has a gradient of layout {gradient.layout}: make it dense")
        if param.tensor.numel() == 0:
            return
        # Whether backward reads parameters depends on what this rank has used of the unit: gather them in
        # any case, since all ranks have to.
        if self._gathers and unit.n_held == 0:
            self._keep(unit)
        self._acquire_gradients(unit)
        self._put(gradient, param, lookup)

    def _acquire_gradients(self, unit: Unit) -> None:
        """Once: a unit that is updated in backward has one user by then."""
        if not unit.holds_grads and not unit.keeps_grads:
            check(lib.zr_unit_acquire(unit.handle, _c.GRADIENTS))
            unit.holds_grads = True

    def _release_gradients(self, unit: Unit) -> None:
        if unit.holds_grads:
            unit.holds_grads = False
            check(lib.zr_unit_release(unit.handle))

    def _learn_order(self) -> None:
        """After the first backward: units are reduced in the order in which they were completed, if that was the same on
        all ranks. No sum depends on it."""
        self._knows_order = True
        order = sorted(range(len(self._order)), key=lambda i: self._order[i].completed or self._n_gradients + 1)
        if self._is_the_same(zlib.crc32(repr(order).encode())):
            self._order = [self._order[i] for i in order]

    def _is_the_same(self, value: int) -> bool:
        """Whether a number is, on all ranks."""
        return all(other == value for other in self._share(value))

    def _share(self, value: float) -> list[float]:
        """A number of each rank."""
        if self.world_size == 1:
            return [value]
        found = (_c.c_double * self.world_size)()
        check(lib.zr_runtime_share(self._runtime, (_c.c_double * 1)(value), 1, found))
        return list(found)

    def _reduce_complete(self) -> None:
        """Reduce, in order, what is complete."""
        while self._n_reduced < len(self._order) and self._is_complete(self._order[self._n_reduced]):
            self._reduce(self._order[self._n_reduced])
            self._n_reduced += 1

    def _is_complete(self, unit: Unit) -> bool:
        """All its gradients are there; where that updates it, its frozen parameters have been read, too."""
        return unit.n_awaited == 0 and not (self._updates_in_backward and unit.n_saved > 0)

    def _reduce(self, unit: Unit) -> None:
        for p in unit.params:  # what no_sync has left
            if not p.is_frozen and grad_of(p.tensor) is not None:
                self._bring(p)
        if self._updates_in_backward:
            self._prepare_update(unit)
        self._acquire_gradients(unit)
        check(lib.zr_unit_reduce(unit.handle))
        unit.reduced = True
        self._drop(unit)

    def _prepare_update(self, unit: Unit) -> None:
        """Its parameters change when it is reduced: nobody else has them then."""
        if unit.kept and not unit.keeps_grads:
            unit.kept = False
            self._kept.remove(unit)
            self._give_back(unit)
        self._end_lingering(forced=unit)
        for p in unit.params if self._is_last_backward() else ():
            if p in self._left_out or (self.world_size == 1 and not p.is_frozen and not p.has_grad):
                check(lib.zr_param_leave_out(p.handle))

    def _reduce_rest(self) -> None:
        self._find_left_out_at_end()
        for unit in self._order[self._n_reduced :]:
            self._reduce(unit)

    def _give_step_up(self, error: BaseException) -> None:
        """After an exception in backward: the micro-batches of this step are dropped, and the next backward starts it again.

        Units are reduced to the last, so that ranks stay together whose exceptions came at other places.
        """
        try:
            if isinstance(error, _c.Error) and not isinstance(error, (StateError, UnsupportedError)):
                raise error  # the library's
            self._give_all_back()
            self._end_lingering(is_forced=True)
            if self._syncs and self._is_open:
                self._find_left_out_at_end()
                for unit in self._order:
                    if not unit.reduced:
                        self._acquire_gradients(unit)
                        check(lib.zr_unit_reduce(unit.handle))
                        unit.reduced = True
                        self._drop(unit)
            try:
                check(lib.zr_runtime_drop_step(self._runtime))
            except StateError:
                self._is_mixed = self._get("update_at") == "backward"
                if not self._is_mixed:
                    raise
        except _c.Error:
            self._failed = f"{type(error).__name__} in backward"
        self._forget_gradients()
        self._is_open, self._n_done = False, 0

    # ---- gradients that the script sees, and changes ----

    def _forget_gradients(self) -> None:
        """The step has ended, or is dropped."""
        for p in self._trained:
            p.has_grad = p.is_pending = False
            set_grad(p.tensor, None)

    def _show_gradients(self) -> None:
        """Where they are whole, `grad` of parameters is the library's memory."""
        for p in self._trained:
            if p.shows_grad and p.has_grad:
                set_grad(p.tensor, self._kept_gradient(p))

    def _kept_gradient(self, p: Param) -> torch.Tensor:
        if p.kept_grad is None:
            p.kept_grad = tensor_at(lib.zr_param_kept_grad(p.handle), self.dtype, p.shape)
            p.references.append(weak_reference(p.kept_grad))
        return p.kept_grad

    def _follow_gradients(self) -> None:
        """What the script has made of them since."""
        for p in self._trained:
            gradient = grad_of(p.tensor)
            if not p.shows_grad or gradient is p.kept_grad:
                continue
            if gradient is not None:
                self._kept_gradient(p).copy_(gradient)
            elif p.has_grad:
                p.kept_grad.zero_()
            p.has_grad = gradient is not None

    def _leave_out(self) -> None:
        """Parameters that had no gradient on any rank are not updated, as PyTorch's optimizers skip a gradient of None."""
        missing = [i for i, p in enumerate(self._trained) if not p.has_grad]
        for i in self._missing_everywhere(missing):
            check(lib.zr_param_leave_out(self._trained[i].handle))

    def _missing_everywhere(self, missing: list[int]) -> list[int]:
        """Those of numbers of parameters that all ranks have."""
        if self._is_the_same(zlib.crc32(repr(missing).encode())):
            return missing
        n_bits = 48  # of a number that is exact
        result = []
        for first in range(0, len(self._trained), n_bits):
            own = sum(1 << (i - first) for i in missing if first <= i < first + n_bits)
            common = functools.reduce(int.__and__, map(int, self._share(float(own))))
            result += [first + bit for bit in range(n_bits) if common >> bit & 1]
        return result


def _leaves_of(loss: torch.Tensor) -> tuple[dict[int, torch.Tensor], dict[int, list[tuple[Any, int]]], bool]:
    """The leaves that a loss depends on, by id; of those that several nodes use, these and which of their inputs they are; and
    whether these are all: a node may begin a backward of its own, as reentrant checkpointing does."""
    leaves: dict[int, torch.Tensor] = {}
    uses: dict[Any, list[tuple[Any, int]]] = {}
    is_whole = True
    seen = {loss.grad_fn}
    nodes = [loss.grad_fn] if loss.grad_fn is not None else []
    while nodes:
        node = nodes.pop()
        variable = getattr(node, "variable", None)
        if variable is not None:
            leaves[id(variable)] = variable
        elif _runs_backward(getattr(node, "_forward_cls", None)):
            is_whole = False
        for i, (below, _) in enumerate(node.next_functions):
            if below is None:
                continue
            if hasattr(below, "variable"):
                uses.setdefault(below, []).append((node, i))
            if below not in seen:
                seen.add(below)
                nodes.append(below)
    apart = {id(leaf.variable): found for leaf, found in uses.items() if len(found) > 1 or _has_rows(found[0][0])}
    return leaves, apart, is_whole


@functools.cache
def _runs_backward(function: type | None) -> bool:
    """The backward of an autograd.Function calls another backward, as those of checkpointing do that recompute a forward."""
    code = getattr(inspect.unwrap(function.backward), "__code__", None) if function is not None else None
    return code is not None and "backward" in code.co_names


def _has_rows(node: Any) -> bool:
    """It is an embedding whose gradient is a sum of rows."""
    return node.name() == "EmbeddingBackward0" and not node._saved_sparse and not node._saved_scale_grad_by_freq


def rows_of(node: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Which rows an embedding has looked up, and what these add to its gradient, summed in the order of torch's own kernel."""
    places, parts = node._saved_indices.reshape(-1), gradient.reshape(-1, gradient.shape[-1])
    if 0 <= node._saved_padding_idx < 2**63:
        is_used = places != node._saved_padding_idx
        places, parts = places[is_used], parts[is_used]
    rows, row_of = places.unique(return_inverse=True)
    return rows, torch.zeros(len(rows), parts.shape[1], dtype=parts.dtype).index_add_(0, row_of, parts)
