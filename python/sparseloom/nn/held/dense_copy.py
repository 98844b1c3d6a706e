"""DenseCopy: the dense copy of a layer's weight. Inference calls, and backward passes of values that need no
gradient, multiply with it where the layer's ``dense_copy`` allows that.

A copy must never be stale. torch counts in-place writes to a tensor, but neither those of its fused
optimizers nor those that a CUDA graph repeats when it is replayed. So we never refresh a copy: the first
write that is seen, or the first gradient that arrives at the values (also during graph capture), invalidates
it, and from then on the layer multiplies with its stored blocks. Captured graphs and compiled, exported and
traced programs never read a copy, because nothing could invalidate it for them.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ... import ops
from ...errors import Error
from ...ops.devices import require_one_device
from ...ops.operators import tf32_of
from ...ops.transforms import gradient_batched, transformed
from ...ops.verbs import Weight, multiply

if TYPE_CHECKING:
    from .with_copy import WithCopy

#: A product by the layer's own kernels: (x or dY, values, bias) -> result.
Stored = Callable[[Tensor, Tensor, Tensor | None], Tensor]

_UNSETTLED = "the values may have changed unseen: assign dense_copy once they stay as they are"
#: Whether the copy is faster, keyed by all that a plan depends on: layers of one shape share the entries.
_faster: dict[tuple[Any, ...], bool] = {}
_MOST_ANSWERS = 1 << 16


class DenseCopy:
    """The dense copy, once a call has made it, and the identity and version of the values and index tensors
    at the time ``dense_copy`` was assigned."""

    def __init__(self, values: Tensor | None, index: tuple[Tensor, ...] = ()) -> None:
        self._weight: Tensor | None = None
        self._hook: RemovableHandle | None = None
        self._values: Callable[[], Tensor | None] = _gone
        self._index: list[tuple[Callable[[], Tensor | None], int]] = []
        # Sharded and fake tensors are Parameters of other types. torch counts no writes to inference tensors,
        # and none by other processes (it calls all memory on CUDA shared).
        self._settled = type(values) is nn.Parameter and all(map(_counted, (values, *index)))
        if values is not None and self._settled:
            self._values, self._version = weakref.ref(values), values._version
            self._address = values.data_ptr()
            self._index = [(weakref.ref(part), part._version) for part in index]
            if values.requires_grad:
                self._hook = values.register_post_accumulate_grad_hook(lambda _: self.end())
        self._hooked = self._hook is not None

    def end(self) -> None:
        """Invalidates the copy because the values change. Drops the weak references: torch cannot swap a
        tensor that has one, as module.to() may do (torch.__future__)."""
        self._settled, self._weight = False, None
        self._values, self._index = _gone, []
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def forget(self) -> None:
        """Drops the copy; the next call makes a new one."""
        self._weight = None

    def note_training(self, layer: WithCopy) -> None:
        """Invalidates the copy for a call that needs the gradient of the values if no hook will see it."""
        if not self._hooked or getattr(layer, "fuse_wgrad_accumulation", False):
            self._settled, self._weight = False, None

    def serves(self, layer: WithCopy) -> bool:
        """Returns whether the copy is valid: values is the same Parameter at the same address, not written
        to, without a gradient that an optimizer could apply, and the index is unchanged."""
        values = layer._parameters.get("values")
        if not self._settled or values is None or values is not self._values():
            return False  # the copy stays valid: functional_call lends other values for one call
        unchanged = (
            values._version == self._version
            and values.data_ptr() == self._address
            and values.grad is None
            and (self._hooked or not values.requires_grad)
            and self._lie_where_they_did(layer._copied_index())
        )
        if not unchanged:
            self.end()
        return unchanged

    def _lie_where_they_did(self, index: tuple[Tensor, ...]) -> bool:
        return len(index) == len(self._index) and all(
            part is was() and part._version == version
            for part, (was, version) in zip(index, self._index, strict=True)
        )

    def weight(self, layer: WithCopy, values: Tensor) -> Tensor:
        """Returns the copy of ``values`` (the layer's own, in the dtype of the product). Makes it if there is
        none of that dtype. The current stream waits for the stream that made the copy."""
        weight = self._weight
        if weight is None or weight.dtype != values.dtype:
            self._weight = None  # frees its memory for the new one
            with torch.inference_mode(False), torch.no_grad():  # autograd cannot save an inference tensor
                weight = layer._unpacked(values.detach())
            if weight.is_cuda:
                self._stream = torch.cuda.current_stream(weight.device)
                self._made = self._stream.record_event()
            self._weight = weight
        elif weight.is_cuda and (stream := torch.cuda.current_stream(weight.device)) != self._stream:
            stream.wait_event(self._made)
            weight.record_stream(stream)
        return weight


def _gone() -> None:
    """Stands for a weak reference to a deleted tensor."""


def _counted(tensor: Tensor) -> bool:
    """Returns whether torch's version counter sees all writes: no inference tensor, no shared memory."""
    return not tensor.is_inference() and (tensor.is_cuda or not tensor.is_shared())


def begin(layer: WithCopy, setting: bool | Literal["auto"]) -> None:
    """Starts a new, valid state for the layer's current values; with setting False, removes the copy."""
    if layer._copy is not None:
        layer._copy.end()
    layer._copy = DenseCopy(layer._parameters.get("values"), layer._copied_index()) if setting else None


def require_setting(op: str, setting: Any, strict: bool) -> None:
    """Raises Error unless ``setting`` is a valid value of dense_copy; with strict, only False is."""
    if not isinstance(setting, bool) and not (isinstance(setting, str) and setting == "auto"):
        raise Error(op, "dense_copy to be False, True or 'auto'", repr(setting), "pass one of them")
    if setting and strict:
        remedy = "strict forbids dense products: leave one of them out"
        raise Error(op, "dense_copy=False with strict=True", f"dense_copy={setting!r}", remedy)


@contextmanager
def own_writes(layer: WithCopy) -> Iterator[None]:
    """Lets the body change values or index. A copy that was valid before is made anew afterwards."""
    copy = layer._copy
    serves = copy is not None and copy.serves(layer)
    if copy is not None:
        copy.end()
    try:
        yield
    finally:
        if serves:
            begin(layer, True)


def serving(op: str, layer: WithCopy, x: Tensor, values: Tensor) -> DenseCopy | None:
    """Returns the layer's DenseCopy if a call with x may multiply with it, None if it uses the stored blocks.
    Raises Error in the name of ``op`` for a ``strict`` layer with a dense copy."""
    if getattr(layer, "strict", False):
        require_setting(op, layer.dense_copy, True)
    copy = layer._copy
    if copy is None:
        return None
    if torch.is_grad_enabled() and values.requires_grad:
        copy.note_training(layer)  # in compiled code too
        return None
    if torch.compiler.is_compiling() or layer._no_copy() or not _eager(x) or not copy.serves(layer):
        return None
    return copy


def product(
    layer: WithCopy, x: Tensor, values: Tensor, bias: Tensor | None, residual: Tensor | None
) -> Tensor | None:
    """Returns act(x W^T + bias) + residual by torch's dense product with the copy; None if the call uses the
    stored blocks. Raises Error for a ``strict`` layer with a dense copy."""
    copy = serving("linear", layer, x, values)
    if copy is None:
        return None
    if bias is not None and bias.device != x.device:
        require_one_device("linear", {"x": x, "bias": bias})
    copied = layer.dense_copy != "auto" or _is_faster(
        layer, x, "forward", bias is not None, residual is not None
    )
    if not _needs_gradient(x, bias, residual):
        if not copied:
            return None
        y = F.linear(x, copy.weight(layer, values), bias)
    else:
        if not copied and not (x.requires_grad and _is_faster(layer, x, "dx")):
            return None
        deep = x.dim() > 4  # more than the layer's own products take
        y = multiply(x.flatten(0, -2) if deep else x, values, bias, _Frozen(layer, copied))
        y = y.reshape(*x.shape[:-1], layer.out_features) if deep else y
    y = ops.activate(y, layer.activation)
    if residual is None:
        return y
    ops.require_residual(residual, y)
    return y + residual


class _Frozen(Weight):
    """Values that need no gradient. Each product uses the copy if it is valid when that product runs, else
    the stored blocks."""

    def __init__(self, layer: WithCopy, copied: bool) -> None:
        self.layer, self.copy, self.copied = layer, layer._copy, copied
        self.forward, self.stored = layer._stored()
        # We save the values and the index, not the copy: a write to them before the backward pass is then an
        # error, as it is without a copy.
        self._watched = layer._copied_index()

    def linear(self, x: Tensor, values: Tensor, bias: Tensor | None, *fused: Any) -> Tensor:
        if self.copied:
            assert self.copy is not None
            return F.linear(x, self.copy.weight(self.layer, values), bias)
        return self.forward(x, values, bias)

    def dx(self, dy: Tensor, values: Tensor) -> Tensor:
        if _serves_dx(self.layer, self.copy, dy):
            assert self.copy is not None
            return dy @ self.copy.weight(self.layer, values)
        return self.stored(dy, values, None)


def _serves_dx(layer: WithCopy, copy: DenseCopy | None, dy: Tensor) -> bool:
    """Returns whether a backward pass multiplies with the copy. It does not if it is differentiated again or
    batched, or if the layer has begun another copy since, which may be of other values."""
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or not _eager(dy) or gradient_batched(dy):
        return False
    if copy is None or layer._copy is not copy or layer._no_copy() or not copy.serves(layer):
        return False
    return layer.dense_copy != "auto" or _is_faster(layer, dy, "dx")


def _eager(x: Tensor) -> bool:
    """Returns whether the call runs eagerly on a plain tensor: it is not captured, traced or transformed."""
    watched = torch._C._get_tracing_state() is not None or torch._C._len_torch_dispatch_stack() > 0
    return not (
        watched
        or transformed()
        or type(x) is not Tensor
        or (x.is_cuda and torch.cuda.is_current_stream_capturing())
    )


def _needs_gradient(*operands: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(
        operand is not None and operand.requires_grad for operand in operands
    )


def _is_faster(
    layer: WithCopy, operand: Tensor, direction: str, bias: bool = False, residual: bool = False
) -> bool:
    """Returns whether the plan for a product with this operand expects the copy to be faster."""
    tokens = operand.numel() // operand.shape[-1] if operand.shape[-1] else 0
    weight = (layer.out_features, layer.in_features, *layer._copy_key())
    call = (direction, tokens, operand.dtype, bias, layer.activation, residual)
    key = (*weight, *call, operand.device, tf32_of(operand), ops.get_num_threads())
    faster = _faster.get(key)
    if faster is None:
        plan = layer.plan(tokens, direction, operand.dtype, residual=residual)
        if len(_faster) >= _MOST_ANSWERS:
            _faster.clear()
        faster = _faster[key] = ops.copy_is_faster(plan)
    return faster


def explained(
    layer: WithCopy,
    plan: dict[str, Any],
    dtype: torch.dtype,
    direction: str = "forward",
    faster: bool | None = None,
) -> dict[str, Any]:
    """Returns a plan of forward or dx extended by the entry ``dense_copy``: ``bytes``, ``predicted_us`` (None
    where no dense product runs), ``used`` (whether an eager inference call, or a backward pass of values that
    need no gradient, multiplies with the copy) and ``reason``, why not; the text says the same. Both
    directions share one copy. ``faster``: whether the copy is expected to be faster, where another plan than
    this one decides."""
    us, size = plan["dense_copy_us"], math.prod(layer.dense_shape) * dtype.itemsize
    reason = _reason(layer, direction, ops.copy_is_faster(plan) if faster is None else faster)
    predicted = "" if us is None else f", predicted {us:.{1 if us < 100 else 0}f} us"
    calls = "for inference" if direction == "forward" else "in backward passes"
    used = f"not used: {reason}" if reason else f"used {calls}"
    copy_info = {"bytes": size, "predicted_us": us, "used": not reason, "reason": reason}
    line = f"  dense copy of W, {size} bytes{predicted}; {used}\n"
    return plan | {"dense_copy": copy_info, "text": plan["text"] + line}


def _reason(layer: WithCopy, direction: str, faster: bool) -> str:
    if not layer.dense_copy:
        return "dense_copy is False"
    if reason := layer._no_copy():
        return reason
    if layer._copy is None or not layer._copy.serves(layer):
        return _UNSETTLED
    if direction == "dx" and layer.values.requires_grad:
        return "the values train"
    if layer.dense_copy == "auto" and not faster:
        return "what is stored is expected to be faster"
    return ""
