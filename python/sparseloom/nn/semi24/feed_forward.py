"""Feed-forward layers whose hidden activations are 2:4: the largest of squared ReLU, or random pairs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..._arguments import named_init
from ..._checks import share as checked_share
from ...errors import Error
from ...ops import semi24
from ...ops.once import once
from ...ops.verbs import Map, mapped
from .. import arguments
from ..held.options import WithOptions
from . import pairs

_OP = "Semi24FeedForward"
#: The activations, which are zero below zero, and their derivatives.
_ACTIVATIONS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "relu2": (lambda u: F.relu(u).square(), lambda u: 2 * F.relu(u)),
    "relu": (F.relu, lambda u: (u > 0).to(u.dtype)),
}


class Options(NamedTuple):
    """What a call decides on the host: the activation, whether 2:4 kernels run, whether what stays is 2:4
    along tokens too, and what kept elements are multiplied with."""

    activation: str
    by_kernels: bool
    transposable: bool
    factor: float


def _rows(h: Tensor, weight: Tensor, whole: Tensor | None, by_kernels: bool) -> Tensor:
    """Returns h W^T [tokens, out] of h [tokens, hidden] that is 2:4 along features but for those in
    ``whole``."""
    if not by_kernels:
        return h @ weight.t()
    inside = h if whole is None else h.index_fill(1, whole, 0)
    values, positions, *_ = semi24.compress(inside, "magnitude")
    metadata = semi24.order(positions, h.shape[1])
    # the sparse operand is the weight of a 2:4 product, which gives (h W^T)^T
    y = semi24.linear(weight.contiguous(), values, positions, h.shape[1], metadata=metadata).t()
    if whole is None:
        return y.contiguous()
    return y + _part(h, whole) @ weight.index_select(1, whole).t()


def _part(h: Tensor, whole: Tensor) -> Tensor:
    """Returns the features of h that stay whole; those that a ragged group names twice count once."""
    again = F.pad(whole[1:] == whole[:-1], (1, 0))
    return h.index_select(1, whole).masked_fill(again, 0)


def _columns(dy: Tensor, h: Tensor, whole: Tensor | None, by_kernels: bool) -> Tensor:
    """Returns dY^T h [out, hidden] of h [tokens, hidden] that is 2:4 along tokens but for features in
    ``whole``."""
    if not by_kernels:
        return dy.t() @ h
    inside = (h if whole is None else h.index_fill(1, whole, 0)).t().contiguous()
    values, positions, *_ = semi24.compress(inside, "magnitude")
    metadata = semi24.order(positions, h.shape[0])
    dw = semi24.linear(dy.t().contiguous(), values, positions, h.shape[0], metadata=metadata)
    return dw if whole is None else dw.index_copy(1, whole, dy.t() @ h.index_select(1, whole))


class _FeedForward(Map):
    """Maps x, the weights and biases of both layers, act's input u and what stays of it to the result."""

    def __init__(self, options: Options) -> None:
        self.options = options

    def run(  # type: ignore[override]
        self, ctx: Any, x: Tensor, up: Tensor, up_bias: Tensor | None, down: Tensor, down_bias: Tensor | None,
        u: Tensor, kept: Tensor, whole: Tensor | None,
    ) -> Tensor:  # fmt: skip
        activation, by_kernels, _, factor = self.options
        ctx.save_for_backward(x, up, down, u, kept, whole)
        h = _ACTIVATIONS[activation][0](u).masked_fill(~kept, 0) * factor
        y = _rows(h, down, whole, by_kernels)
        return y if down_bias is None else y + down_bias

    def gradients(self, ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        result: tuple[Tensor | None, ...] = once(_OP, self._gradients, ctx, dy)
        return result

    def _gradients(self, ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, up, down, u, kept, whole = ctx.saved_tensors
        activation, by_kernels, transposable, factor = self.options
        need_x, _, need_up, need_up_bias, need_down, need_down_bias, *_ = ctx.needs_input_grad
        act, slope = _ACTIVATIONS[activation]
        along_tokens = by_kernels and transposable
        ddown = None
        if need_down:
            h = act(u).masked_fill(~kept, 0) * factor
            ddown = _columns(dy, h, whole, along_tokens)
        du = (dy @ down * slope(u)).masked_fill(~kept, 0) * factor
        dx = _rows(du, up.t(), whole, by_kernels) if need_x else None
        # up's gradient is du^T x, the transpose of what _columns gives
        dup = _columns(x, du, whole, along_tokens).t() if need_up else None
        return (
            dx, dup, du.sum(0) if need_up_bias else None, ddown, dy.sum(0) if need_down_bias else None,
            None, None, None,
        )  # fmt: skip


def require_own_forward(name: str, layer: nn.Module) -> None:
    """Raises Error for a layer that computes more than the nn.Linear of its weight and bias, which are all
    that a Semi24FeedForward reads of it."""
    hooks = layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks
    own = type(layer).forward is nn.Linear.forward and "forward" not in vars(layer)
    if not own or hooks or layer._backward_pre_hooks:
        got = f"a {type(layer).__name__}" + (" with hooks" if hooks or layer._backward_pre_hooks else "")
        remedy = "keep it dense and without hooks or adapters, or call the two layers yourself"
        raise Error(_OP, f"{name} to be an nn.Linear, of which weight and bias are read", got, remedy)


@named_init
class Semi24Dropout(nn.Module):
    """Drops two random elements of each four consecutive features in training, and doubles the others: a
    dropout of 0.5 whose result is 2:4. In evaluation it returns its input.

    The pairs follow from a seed of the device's generator and the group's number, so that checkpointing
    computes them again. Of a last group of fewer than four, each element stays with probability 0.5 too.
    """

    def __init__(self) -> None:  # nn.Module's own takes any arguments, and refuses them itself
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        """Maps x [..., features] to the same shape."""
        if not self.training or not x.numel():
            return x
        kept = pairs.drawn(x.shape, pairs.seed(x.device))
        return torch.where(kept, 2 * x, 0)


class Semi24FeedForward(WithOptions):
    """Computes y = down(h), where h is 2:4 of act(up(x)) (Haziza et al. 2025, arXiv 2503.16672).

    Of each four consecutive hidden features of a token the two largest stay, except in the ``dense`` share of
    groups that would lose most: those stay whole. Products with h, and with its gradient, run by 2:4 kernels
    with ``multiply = "semi24"``: y and dX; with a transposable ``prune`` both weights' gradients too.

    Args:
        up, down: the nn.Linear layers; Parameters stay the same.
        activation: "relu2" (squared ReLU) or "relu".
        dense: the share of groups that stay whole, 0.05 in the paper.
        prune: "magnitude", or "transposable_greedy" or "transposable_exact", which keep two of four tokens.
        choose: "largest"; or "dropout": in training two random ones of each token, doubled, whatever
            ``prune`` and ``dense`` say; in evaluation h is whole.

    ``sparse = False`` is the dense warm-up: h stays whole until it is True again; a state dict has it.
    ``lost`` float32 [] is the share of sum |h| that the last call dropped, ``overflowed`` that of groups with
    more than two nonzeros; both are read when you ask. Raises Error for other arguments.
    """

    lost: Tensor
    overflowed: Tensor
    sparse: bool
    activation: str
    multiply: str = "dense"
    multiplies = ("dense", "semi24")

    def __init__(
        self,
        up: nn.Linear,
        down: nn.Linear,
        activation: str = "relu2",
        dense: float = 0.05,
        prune: str = "magnitude",
        choose: Literal["largest", "dropout"] = "largest",
    ) -> None:
        super().__init__()
        for name, layer in (("up", up), ("down", down)):
            require_own_forward(name, layer)
        if activation not in _ACTIVATIONS:
            raise Error(
                _OP, "activation 'relu2' or 'relu'", repr(activation), "others leave few zeros: pass 'relu2'"
            )
        if choose not in ("largest", "dropout"):
            raise Error(_OP, "choose 'largest' or 'dropout'", repr(choose), "pass one of them")
        semi24.require_method(_OP, prune)
        if prune is None or not 0 <= checked_share(_OP, dense, "dense") <= 1:
            raise Error(_OP, "prune by name and dense in [0, 1]", f"{prune!r}, {dense!r}", "leave them out")
        if up.out_features != down.in_features:
            got = f"{up.out_features} and {down.in_features}"
            raise Error(_OP, "as many outputs of up as inputs of down", got, "pass one feed-forward's layers")
        self.up, self.down, self.activation = up, down, activation
        self.prune, self.choose = prune, choose
        self.dense_groups = math.ceil(dense * -(-up.out_features // 4)) if choose == "largest" else 0
        zero = torch.zeros((), dtype=torch.float32, device=up.weight.device)
        self.register_buffer("lost", zero, False)
        self.register_buffer("overflowed", zero.clone(), False)
        self.sparse = True

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Semi24FeedForward:
        """Applies .to(), .half() and their like; ``lost`` and ``overflowed`` stay float32."""
        before = {name: self._buffers[name] for name in ("lost", "overflowed")}
        super()._apply(fn, recurse)
        arguments.keep_float32(self._buffers, before)
        return self

    def get_extra_state(self) -> Tensor:
        """Returns ``sparse`` for the state dict."""
        return torch.tensor(self.sparse)

    def set_extra_state(self, state: Tensor) -> None:
        """Takes what ``get_extra_state`` returned."""
        self.sparse = bool(state)

    def forward(self, x: Tensor) -> Tensor:
        """Maps x [..., features] to [..., features of down]. Autocast casts as it does for nn.Linear. Raises
        Error when ``up`` or ``down`` have hooks, or are no nn.Linear any more."""
        require_own_forward("up", self.up)
        require_own_forward("down", self.down)
        x, up, up_bias, _ = arguments.prologue(x, self.up.weight, self.up.bias)
        _, down, down_bias, _ = arguments.prologue(x, self.down.weight, self.down.bias)
        act = _ACTIVATIONS[self.activation][0]
        if not self.sparse or (self.choose == "dropout" and not self.training):
            return F.linear(act(F.linear(x, up, up_bias)), down, down_bias)
        with torch.no_grad():
            u = F.linear(x, up, up_bias).reshape(-1, self.up.out_features)
            kept, whole = self._chosen(act(u))
        options = Options(
            self.activation, self.multiply == "semi24",
            # random pairs are none along tokens: to pack them there would lose some
            self.prune != "magnitude" and self.choose == "largest",
            2.0 if self.choose == "dropout" else 1.0,
        )  # fmt: skip
        y: Tensor = mapped(
            x.reshape(-1, self.up.in_features), _FeedForward(options), up, up_bias, down, down_bias, u, kept,
            whole,
        )  # fmt: skip
        return y.reshape(*x.shape[:-1], self.down.out_features)

    def _chosen(self, h: Tensor) -> tuple[Tensor, Tensor | None]:
        """Returns what stays of h [tokens, hidden], and the features that stay whole."""
        whole: Tensor | None = None
        dropping = self.choose == "dropout"
        kept = pairs.drawn(h.shape, pairs.seed(h.device)) if dropping else pairs.largest(h, self.prune)
        if self.dense_groups and h.numel():
            whole = pairs.overflow(h, kept, self.dense_groups)
            kept = kept.index_fill(-1, whole, True)
        total = h.abs().sum(dtype=torch.float32).clamp(min=1e-30)
        self.lost.copy_(h.abs().masked_fill(kept, 0).sum(dtype=torch.float32) / total)
        full = F.pad(h != 0, (0, -h.shape[-1] % 4)).unflatten(-1, (-1, 4)).sum(-1) > 2
        self.overflowed.copy_(full.sum() / max(1, full.numel()))
        return kept, whole

    def extra_repr(self) -> str:
        how = f"activation={self.activation}, choose={self.choose}, prune={self.prune}"
        return f"{how}, dense_groups={self.dense_groups}"
