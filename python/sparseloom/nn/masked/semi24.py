"""Semi24Training: an nn.Linear that trains a dense weight and multiplies with 2:4 of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import Error
from ...layouts.semi24 import Semi24Layout
from ...ops import semi24
from ...ops.devices import require_one_device
from ...ops.transforms import exporting, transformed
from ...pattern import Pattern
from .. import arguments
from ..held.sharded import is_sharded, local, parts_of
from . import product24
from .linear import MaskedLinear

if TYPE_CHECKING:
    from ..in_layout.linear import SparseLinear
    from ..semi24.linear import Semi24Linear

_OP = "Semi24Training"


class Semi24Training(MaskedLinear):
    """Computes y = x (W * mask)^T + bias with a dense Parameter ``weight`` [out_features, in_features] and a
    2:4 ``mask``, bool of its shape: Y and dX by 2:4 kernels, dW dense.

    W * mask is packed in each call, W^T with it where ``prune`` is transposable: dX of any other mask is a
    dense product, since its W^T is not 2:4. ``refresh_`` chooses the mask anew; a ``sparsify.Run`` calls it
    (``InLayout("semi24", method=methods.semi24(...))``). ``pack_elements`` returns the Semi24Linear.

    Args:
        in_features, out_features, bias, device, dtype: as in nn.Linear; any sizes.
        seed: an int or a torch.Generator, for the initial values.
        prune: "transposable_greedy", "transposable_exact" or "magnitude": see ``ops.semi24.METHODS``.
        mask: what is kept at first, bool [out_features, in_features]; None for what ``prune`` chooses.
        share, decay: the gradient of the pruned part: ``share`` times dY^T X plus ``decay`` times the weight.
        soft: multiplies with the kept weights less the largest pruned magnitude of their group, times a
            factor that is fixed when the layer is made (S-STE, Hu et al. 2024, arXiv 2409.09099).

    ``multiply`` is "semi24", "dense", or "auto": 2:4 kernels on GPUs, in 16 bits, for many tokens. ``flips``
    float32 [] is the share of the mask that the last refresh changed, NaN before the first. No call and no
    refresh on a GPU is read by the host, so that CUDA graphs hold them and see each next mask; torch.compile
    traces calls.
    """

    flips: Tensor
    scale: Tensor | None
    #: Whether all elements are kept, as in a dense tail.
    is_whole: bool = False
    multiplies = ("auto", "semi24", "dense")

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        prune: str = "transposable_greedy",
        mask: Tensor | None = None,
        share: float = 1.0,
        decay: float = 0.0,
        soft: bool = False,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        seed: torch.Generator | int | None = None,
    ) -> None:
        layout: Any = Semi24Layout
        rule: dict[str, Any] = {"share": share, "decay": decay, "layout": layout, "seed": seed}
        super().__init__(in_features, out_features, bias, block=1, device=device, dtype=dtype, **rule)
        self._begin(prune, mask, soft)

    @classmethod
    def over(cls, dense: nn.Module, weight: nn.Parameter, mask: Tensor | None, **rule: Any) -> Semi24Training:
        """Returns a layer without bias over the Parameter of a dense module; ``rule`` is as in the class."""
        rows, cols = weight.shape
        layer = cls(cols, rows, False, device="meta", dtype=weight.dtype, **rule)
        layer._hold(weight, mask)
        return layer

    def _hold(self, weight: nn.Parameter, mask: Tensor | None) -> None:
        self.weight = weight
        for name in ("mask", "flips", "scale"):
            if (buffer := self._buffers[name]) is not None:
                self._buffers[name] = torch.ones(buffer.shape, dtype=buffer.dtype, device=weight.device)
        self._begin(self.prune, mask, self.soft)

    def _begin(self, prune: str, mask: Tensor | None, soft: bool) -> None:
        if prune is None:
            raise Error(_OP, "prune to name what stays", "None", 'pass prune="transposable_greedy"')
        semi24.require_method(_OP, prune)
        if soft and prune != "magnitude":
            expected = 'prune="magnitude" with soft=True, whose threshold is that of a group of a row'
            raise Error(_OP, expected, repr(prune), 'pass prune="magnitude"')
        self.prune, self.soft = prune, soft
        self._kind = product24.ANY
        like = self.weight
        self.register_buffer(
            "flips", torch.full((), float("nan"), dtype=torch.float32, device=like.device), False
        )
        one = torch.ones((), dtype=torch.float32, device=like.device) if soft else None
        self.register_buffer("scale", one)
        if mask is not None:
            self.set_mask_(mask)
        elif not like.is_meta:
            self.refresh_()
            self.flips.fill_(float("nan"))  # there was no mask before that one
        self.rescale_()

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Maps x [..., in_features] to [..., out_features], and adds the ``residual``, of the result's
        shape and dtype. Autocast casts as it does for nn.Linear. Raises Error when x or ``residual`` does not
        fit."""
        if self.gate is not None:
            return super().forward(x, residual)
        if (
            x.__class__ is not Tensor
            and (node := arguments.recorded_by_fx(self, x, residual=residual)) is not None
        ):
            return node  # type: ignore[no-any-return]
        arguments.require_tensor(x)
        if self.mask.device != x.device:
            require_one_device("linear", {"x": x, "mask": self.mask})
        x, weight, bias = self._cast(x, self._effective())
        if self._by_kernels(x, x.numel() // max(1, self.in_features)):
            y = self._product(x.reshape(-1, self.in_features), weight, bias)
            return arguments.added(y.reshape(*x.shape[:-1], self.out_features), residual)
        return arguments.added(F.linear(x, weight, bias), residual)

    def _product(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return product24.product(x, weight, bias, self._kind == product24.TRANSPOSABLE)

    def _by_kernels(self, x: Tensor, tokens: int) -> bool:
        if self._kind == product24.ANY or self.multiply == "dense" or self._followed():
            return False
        sizes = self.out_features, self.in_features
        return self.multiply == "semi24" or product24.pays(x, tokens, *sizes)

    def _followed(self) -> bool:
        """Returns whether torch.func, torch.jit or torch.export see the call, which record no Functions."""
        return transformed() or torch._C._get_tracing_state() is not None or exporting()

    def _effective(self) -> Tensor:
        """Returns the weight that is multiplied with, differentiable."""
        if self._places is not None and not torch.compiler.is_compiling():
            self._settle()
        weight = self._ordered(self.weight)
        if self.is_whole:
            return weight
        mask = self._of_weight(self.mask)
        if not self._followed():
            return product24.pruned(weight, mask, self.share, self._backward_decay(), self.scale)
        if self.share or self.decay:
            trains = torch.is_grad_enabled() and self.weight.requires_grad
            if trains and not exporting():
                got = "a gradient for the pruned part, which no function has"
                raise Error(_OP, "share=0 and decay=0 under torch.func and torch.jit", got, "call backward()")
        if self.scale is not None:
            return product24.softened(weight, mask) * self.scale.to(weight.dtype)
        return weight.masked_fill(~mask, 0)

    def _ordered(self, weight: Tensor) -> Tensor:
        """Returns the weight with the inputs that make a group last (a view)."""
        return weight

    def _of_weight(self, mask: Tensor) -> Tensor:
        """Returns the mask in the order and the shape of ``_ordered`` (a view)."""
        return mask

    @torch.no_grad()
    def refresh_(self) -> None:
        """Chooses the mask anew by the weight's magnitudes and ``prune``. On a GPU the host waits for
        nothing, and does not see a NaN; on the CPU one raises Error. Under fully_shard all ranks call it."""
        weight = self.matrix(self._whole())
        if weight.is_cpu and not torch.compiler.is_compiling() and bool(weight.isnan().any()):
            remedy = "look for a NaN in the weight or its gradient"
            raise Error("refresh_", "a weight without NaN", "NaN", remedy)
        self._take_mask(semi24.mask(weight.contiguous(), self.prune))
        turns = self.prune != "magnitude"
        self._kind = product24.TRANSPOSABLE if turns else product24.ROWS
        self.is_whole = False

    def _take_mask(self, mask: Tensor) -> None:
        self.flips.copy_((mask ^ self.mask).sum() / max(1, mask.numel()))
        self.mask.copy_(mask)

    def _whole(self) -> Tensor:
        """Returns the whole weight, which fully_shard may have cut up."""
        weight: Any = self.weight.detach()
        return weight.full_tensor() if is_sharded(weight) else weight  # type: ignore[no-any-return]

    def matrix(self, like_weight: Tensor) -> Tensor:
        """Returns a tensor of the weight's shape as the matrix whose rows are 2:4; the mask has its shape."""
        return like_weight

    @torch.no_grad()
    def rescale_(self) -> None:
        """Recomputes the factor of the softened weights from the present weight and mask; does nothing
        without ``soft``."""
        if self.scale is not None and not self.weight.is_meta:
            self.scale.copy_(product24.scale_of(self.matrix(self._whole()), self.mask))

    @torch.no_grad()
    def dense_tail_(self) -> None:
        """Keeps all elements from now on: the layer is an nn.Linear of its master, until ``refresh_``."""
        self.mask.fill_(True)
        self._kind, self.is_whole = product24.ANY, True

    @torch.no_grad()
    def decay_pruned_(self, amount: float, adaptive: bool = False, second: Tensor | None = None) -> None:
        """Multiplies the pruned weights by 1 - ``amount``. ``adaptive`` moves them to zero by ``amount``
        instead, over the root of Adam's ``second`` moment of the weight, scaled to a mean of 1, where there
        is one."""
        weight: Any = self.weight.detach()
        pruned, steps = ~self._mask_of_parameter(), None
        if adaptive and second is not None:
            mean: Any = second.sqrt().mean()
            mean = mean.full_tensor() if is_sharded(mean) else mean
            steps = amount * mean / local(second).sqrt().clamp(min=1e-12)
        if is_sharded(weight):  # each rank has some rows of the weight, and the whole mask
            ((weight, pruned),) = parts_of(weight, pruned)
        if not adaptive:
            weight.copy_(torch.where(pruned, weight * (1 - amount), weight))
            return
        least = weight.abs() - (amount if steps is None else steps)
        weight.copy_(torch.where(pruned, least.clamp(min=0) * weight.sign(), weight))

    def _mask_of_parameter(self) -> Tensor:
        return self.mask

    def set_mask_(self, mask: Tensor | Pattern) -> None:
        """Sets the mask in place. The host reads whether it is 2:4, and transposable; any other mask is
        multiplied with in dense products. Raises Error for another shape."""
        super().set_mask_(mask)
        self._read_mask()

    def _read_mask(self) -> None:
        if not self.mask.is_meta:
            self._kind = product24.kind_of(self.mask)
            self.is_whole = bool(self.mask.all()) and self._kind == product24.ANY

    @torch.no_grad()
    def pack_elements(self) -> SparseLinear | Semi24Linear:
        """Returns a Semi24Linear of what is multiplied with. Raises Error where the mask is not 2:4."""
        if self.gate is None and not self.mask.is_meta and product24.kind_of(self.mask) == product24.ANY:
            got = "a dense tail" if self.is_whole else "another one"
            remedy = "densify_ ends a dense tail; refresh_() makes a 2:4 mask"
            raise Error("pack", "a 2:4 mask, whose elements semi24 can store", got, remedy)
        return super().pack_elements()

    @torch.no_grad()
    def effective(self) -> Tensor:
        """Returns the weight that is multiplied with [out_features, in_features]."""
        if self.gate is not None:
            return super().effective()
        self._settle()
        return self._effective().detach().clone()

    def _dense(self, gates: Tensor | None, mask: Tensor) -> Tensor:
        return super()._dense(gates, mask) if gates is not None else self.effective()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Semi24Training:
        """Applies .to(), .half() and their like; ``flips`` and the factor of soft weights stay float32."""
        before = {name: self._buffers[name] for name in ("flips", "scale")}
        super()._apply(fn, recurse)
        arguments.keep_float32(self._buffers, before)
        return self

    def _settle(self) -> None:
        places = self._places
        super()._settle()
        if places is not None and places.source is not None:
            self._read_mask()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        """Also takes the state dict of the dense layer: the mask, and the factor of soft weights, stay."""
        if self.scale is not None and prefix + "weight" in state_dict:
            state_dict.setdefault(prefix + "scale", self.scale)
        super()._load_from_state_dict(state_dict, prefix, *arguments)
        self._read_mask()

    def stored_as(self) -> dict[str, Any]:
        """Returns the metadata that ``save`` writes for the layer."""
        if self.gate is not None:
            return super().stored_as()
        rule = {"prune": self.prune, "soft": self.soft, "share": self.share, "decay": self.decay}
        return {**super().stored_as(), **rule}

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, prune={self.prune}" + (", soft=True" if self.soft else "")
