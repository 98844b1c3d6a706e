"""MaskedLinear: an nn.Linear that trains a dense weight and multiplies with some blocks or elements of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._compile import _disable_dynamo

from ..._checks import gradient_rule
from ...errors import Error
from ...layouts import Layout
from ...layouts.csr import Csr
from ...ops.devices import require_one_device
from ...ops.transforms import exporting, transformed
from ...pattern import Block, Pattern, block_shape
from ...sparsify.grid import expanded
from .. import arguments
from ..held.options import WithOptions
from ..held.places import Places
from ..held.pruned_entries import accept_pruned
from ..held.sharded import is_sharded, local, parts_of
from ..in_layout.dense_entries import packed_layer
from ..linear import BlockSparseLinear
from .elements import layer_of
from .product import KeptBlocks, ProductOptions, factored, product

if TYPE_CHECKING:
    from ...sparsify.gates import Gate
    from ..in_layout.linear import SparseLinear
    from ..semi24.linear import Semi24Linear

_OP = "MaskedLinear"


class MaskedLinear(WithOptions):
    """Computes y = x (W * factors)^T + bias with a dense Parameter ``weight`` [out_features, in_features],
    for methods whose pruned blocks may return.

    The factors are the bool buffer ``mask`` [block rows, block columns], or what ``gate`` makes of the weight
    in each call; ``mask`` then holds the blocks of the last call. Forward and dX multiply with the blocks
    where the plan expects that to be faster, else with the dense W * factors. ``pack`` returns the sparse
    layer, ``pack_elements`` that of single elements.

    Args:
        in_features, out_features, bias, device, dtype: as in nn.Linear.
        block: int or (out features, in features) of one block, each of {8, 16, 32, 64, 128}; or 1, for a mask
            of single elements, whose products are dense ones in training.
        mask: which blocks are kept; None for all.
        gate: a ``sparsify.gates.Gate``.
        share, decay: the gradient of the pruned part of the weight: ``share`` times dY^T X, plus ``decay``
            times the weight itself. A ``sparsify.Run`` that knows the weight's optimizer adds ``decay`` once
            a step; without one each call's backward pass does, also to a gradient that is scaled.
        layout: the class of ``sparseloom.layouts`` in which ``pack_elements`` stores single elements.
        options: further arguments of its ``from_dense``, such as n and m.
        seed: an int or a torch.Generator, for the initial values.

    ``multiply = "blocks"`` or ``"dense"`` chooses all products instead of the plan ("auto"): rounding then
    does not depend on the speeds that a process measured. With "dense", neither share nor decay, and a gate
    that is on the device (or none), the host reads no mask: torch.compile traces the layer, and CUDA graphs
    that hold it see the next mask. ``strict`` and ``dense_copy`` are handed on to the packed layer.
    """

    mask: Tensor
    gate: Gate | None
    block: tuple[int, int]
    layout: type[Layout]
    multiply: str
    #: The values that ``multiply`` takes.
    multiplies: ClassVar[tuple[str, ...]] = ("auto", "blocks", "dense")
    weight: nn.Parameter
    #: Links averages of the weights to this layer, whose mask they take; see nn.held.places.
    _places: Places | None = None
    _factors: Tensor | None = None
    #: Whether a run adds ``decay`` to the gradient before each step, so that backward passes leave it out.
    _decays_in_step: bool = False
    strict: bool = False
    fuse: bool = True
    dense_copy: bool | Literal["auto"] = False

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        block: Block = 32,
        mask: Tensor | Pattern | None = None,
        gate: Gate | None = None,
        share: float = 0.0,
        decay: float = 0.0,
        layout: type[Layout] = Csr,
        options: Mapping[str, Any] | None = None,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        seed: torch.Generator | int | None = None,
    ) -> None:
        super().__init__()
        arguments.checked(
            in_features, out_features, 1.0, None, None, arguments.like_of(_OP, device, dtype), _OP
        )
        self.in_features, self.out_features = in_features, out_features
        self.block = block_shape(_OP, block)
        self.share, self.decay = gradient_rule(type(self).__name__, share, decay)
        self.layout, self.options = layout, dict(options or {})
        with arguments.drawing(_OP, seed, torch.empty(0, device=device).device):
            dense = nn.Linear(in_features, out_features, bias, device=device, dtype=dtype)
        self.weight = dense.get_parameter("weight")
        self.bias = dense.bias
        if mask is None:
            grid = -(-out_features // self.block[0]), -(-in_features // self.block[1])
            mask = torch.ones(grid, dtype=torch.bool, device="cpu")
        self.register_buffer("mask", self._checked(mask).to(self.weight.device))
        self.gate = gate
        self.multiply = "auto"
        self._kept: KeptBlocks | None = None

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Maps x [..., in_features] to [..., out_features], and adds the ``residual``, of the result's
        shape and dtype. Autocast casts as it does for nn.Linear. Raises Error when x or ``residual`` does not
        fit."""
        if (
            x.__class__ is not Tensor
            and (node := arguments.recorded_by_fx(self, x, residual=residual)) is not None
        ):
            return node
        arguments.require_tensor(x)
        if self.mask.device != x.device:
            require_one_device("linear", {"x": x, "mask": self.mask})
        leaves_host_out = self.gate is None or self.gate.on_device
        no_pruned_gradient = not self.share and not self.decay
        # torch.func needs every derivative, and torch.jit.trace records neither plans nor Functions.
        watched = transformed() or torch._C._get_tracing_state() is not None
        if watched and not no_pruned_gradient and not torch.compiler.is_compiling():
            got = "a gradient for the pruned part, which no function has"
            raise Error(_OP, "share=0 and decay=0 under torch.func and torch.jit", got, "call backward()")
        watched = watched or exporting()  # a program reads no mask on the host
        if no_pruned_gradient and (watched or (self.multiply == "dense" and leaves_host_out)):
            x, weight, bias = self._cast(x, self._masked(self._gates()))
            return arguments.added(F.linear(x, weight, bias), residual)
        return arguments.added(self._planned(x), residual)

    # It reads the mask on the host and asks for the plan in Python: Dynamo can trace neither.
    @_disable_dynamo
    def _planned(self, x: Tensor) -> Tensor:
        gates = self._gates()
        blocks = self._blocks()
        weight = self.weight
        x, _, bias = self._cast(x, weight[:0])  # the product casts what it multiplies with
        options = ProductOptions(blocks, self.share, self._backward_decay(), self.multiply)
        y = product(x.reshape(-1, self.in_features), weight, gates, bias, options)
        return y.reshape(*x.shape[:-1], y.shape[-1]) if x.dim() != 2 else y

    def _settle(self) -> None:
        """If this layer is an average whose weight was written since the last call, takes the factors of the
        layer that it follows: averaged scores and budgets would choose other blocks."""
        places = self._places
        if places is None or places.source is None or not places.written():
            return
        source = places.source
        mask, origin = source.tensor, source.layer
        if self.gate is not None:
            if source.numbers is not None:
                self.gate.budget, self.gate.progress = source.numbers
            factors = mask if origin is None else origin.factors()
            self._factors = None if factors is None else factors.to(self.weight.device)
            mask = None if self._factors is None else self._factors != 0
        if mask is not None:
            with torch.no_grad():
                self.mask.copy_(mask)

    @torch.no_grad()
    def factors(self) -> Tensor:
        """Returns the factors of the blocks in evaluation: the mask, or what the gate makes of the weight
        [block rows, block columns]."""
        gates, mask = self._final()
        return mask if gates is None else gates

    def _gates(self) -> Tensor | None:
        if self._places is not None and not torch.compiler.is_compiling():
            self._settle()
        if self._factors is not None:
            return self._factors.to(self.weight.device, self.weight.dtype)
        gates: Tensor | None = None if self.gate is None else self.gate(self.weight)
        if gates is not None:
            self.mask.copy_(gates.detach() != 0)
        return gates

    def _masked(self, gates: Tensor | None) -> Tensor:
        """Returns W * factors, differentiable. Pruned elements may hold anything, NaN included."""
        shape = (self.out_features, self.in_features)
        if gates is None:
            return self.weight.masked_fill(~expanded(self.mask, self.block, shape), 0)
        return self.weight * expanded(gates.to(self.weight.dtype), self.block, shape)

    def _cast(self, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Returns the operands in the dtype of autocast, if it is on. Raises Error when x does not fit."""
        bias: Tensor | None = self.bias
        x, weight, bias, _ = arguments.prologue(x, weight, bias)
        fits = x.dim() > 0 and x.shape[-1] == self.in_features
        if not fits or x.dtype != weight.dtype or x.device != weight.device:
            expected = f"x [..., {self.in_features}] of {weight.dtype} on {weight.device}"
            got = f"{list(x.shape)} of {x.dtype} on {x.device}"
            raise Error("linear", expected, got, "convert x or move it with .to()")
        return x, weight, bias

    @property
    def pattern(self) -> Pattern:
        """The blocks that are kept now. Raises Error for single elements: see ``mask``."""
        if self.block == (1, 1):
            raise Error(_OP, "blocks, which have a pattern", "single elements", "read its mask")
        return Pattern(self.out_features, self.in_features, self.block, self._blocks().mask)

    def _backward_decay(self) -> float:
        return 0.0 if self._decays_in_step else self.decay

    @torch.no_grad()
    def add_decay_(self, scale: Tensor | None = None) -> None:
        """Adds ``decay`` times the pruned weights to the weight's gradient, if it has one; times ``scale``
        [], by which GradScaler has multiplied the gradient."""
        gradient, weight, kept = self.weight.grad, self.weight.detach(), self._mask_of_parameter()
        if gradient is None:
            return
        if is_sharded(weight):  # each rank has some rows of the weight, and the whole mask
            ((weight, kept),) = parts_of(weight, kept)
            gradient = local(gradient)
        decay = self.decay * weight.masked_fill(kept, 0)
        gradient.add_(decay if scale is None else decay * scale.to(decay.device))

    def _mask_of_parameter(self) -> Tensor:
        return expanded(self.mask, self.block, (self.out_features, self.in_features))

    def set_mask_(self, mask: Tensor | Pattern) -> None:
        """Sets the mask in place. Raises Error for another shape, and for a layer with a gate."""
        if self.gate is not None:
            raise Error(
                _OP, "a layer without a gate", type(self.gate).__name__, "its gate chooses the blocks"
            )
        self.mask.copy_(self._checked(mask))

    @torch.no_grad()
    def effective(self) -> Tensor:
        """Returns W * factors [out_features, in_features] as evaluation multiplies with it."""
        return self._dense(*self._final())

    @torch.no_grad()
    def pack(self) -> BlockSparseLinear:
        """Returns a BlockSparseLinear of the kept blocks, their values copied bitwise where a mask or scores
        choose; factors between 0 and 1 are multiplied in. The bias is the same Parameter. Raises Error for
        single elements."""
        if self.block == (1, 1):
            raise Error(_OP, "blocks", "single elements", "call pack_elements()")
        gates, mask = self._final()
        pattern = Pattern(self.out_features, self.in_features, self.block, mask)
        layer = packed_layer(BlockSparseLinear, self._dense(gates, mask), pattern)
        layer.values.requires_grad_(self.weight.requires_grad)
        layer.bias = self.bias
        layer.strict, layer.fuse, layer.dense_copy = self.strict, self.fuse, self.dense_copy
        return layer.train(self.training)

    @torch.no_grad()
    def pack_elements(self) -> SparseLinear | Semi24Linear:
        """Does what ``pack`` does for single elements: returns a layer that stores them in ``layout``, which
        of 2:4 is a Semi24Linear. Raises Error for blocks, and for elements that the layout cannot store."""
        if self.block != (1, 1):
            raise Error(_OP, "single elements", f"blocks of {self.block}", "call pack()")
        gates, mask = self._final()
        layer = layer_of(self._dense(gates, mask), mask, self.layout, self.options)
        if layer.values.requires_grad:  # those of 2:4 do not train
            layer.values.requires_grad_(self.weight.requires_grad)
        layer.bias = self.bias
        layer.strict, layer.fuse = self.strict, self.fuse
        if self.dense_copy:
            layer.dense_copy = self.dense_copy
        return layer.train(self.training)

    @torch.no_grad()
    def to_dense(self) -> nn.Linear:
        """Returns an nn.Linear with the weight as evaluation multiplies with it, zero where the mask prunes
        (copied). The bias is the same Parameter."""
        dense = nn.Linear(self.in_features, self.out_features, False, device="meta", dtype=self.weight.dtype)
        dense.weight = nn.Parameter(self.effective(), self.weight.requires_grad)
        dense.bias = self.bias
        return dense.train(self.training)

    def stored_as(self) -> dict[str, Any]:
        """Returns the metadata that ``save`` writes for the layer; "gate" is the class of its gate, which a
        file cannot rebuild."""
        description = {"layout": "masked", "in_features": self.in_features, "out_features": self.out_features}
        elements = {"elements": self.layout.name, **self.options} if self.block == (1, 1) else {}
        gate = {} if self.gate is None else {"gate": type(self.gate).__name__}
        return {**description, "block": list(self.block), **elements, **gate}

    def masked(self, like_weight: Tensor) -> Tensor:
        """Returns a tensor of the weight's shape, such as its gradient, zero where evaluation prunes."""
        return factored(like_weight.detach(), None, KeptBlocks(self._final()[1], self.block))

    def _final(self) -> tuple[Tensor | None, Tensor]:
        """Returns the factors of evaluation (None without a gate) and the mask of those that are not zero."""
        self._settle()
        if self.gate is None:
            return None, self._blocks().mask
        if self._factors is not None:
            gates = self._factors.to(self.weight.device, self.weight.dtype)
            return gates, gates != 0
        training = self.gate.training
        gates = self.gate.eval()(self.weight).detach()
        self.gate.train(training)
        return gates, gates != 0

    def _dense(self, gates: Tensor | None, mask: Tensor) -> Tensor:
        return factored(self.weight.detach(), gates, KeptBlocks(mask, self.block))

    def _blocks(self) -> KeptBlocks:
        """Returns the index of the mask; it is made anew only after the mask has changed."""
        self._settle()
        mask, shape = self.mask, (self.out_features, self.in_features)
        if self.block == (1, 1):
            return KeptBlocks.of(mask, shape, self.block, mask.device)
        blocks, host = self._kept, mask.to("cpu")
        if (
            blocks is None
            or blocks.where().packed.device != mask.device
            or not torch.equal(blocks.mask, host)
        ):
            blocks = self._kept = KeptBlocks.of(host, shape, self.block, mask.device)
        return blocks

    def _checked(self, mask: Tensor | Pattern) -> Tensor:
        rows, cols = self.out_features, self.in_features
        if isinstance(mask, Pattern) and (mask.rows, mask.cols, mask.block) != (rows, cols, self.block):
            raise Error(_OP, f"a pattern of {rows} x {cols}", repr(mask), "make it for this layer's weight")
        if isinstance(mask, Pattern):
            return mask.mask
        if self.block != (1, 1):
            return Pattern(rows, cols, self.block, mask).mask
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.shape != (rows, cols):
            got = f"{mask.dtype} {list(mask.shape)}" if isinstance(mask, Tensor) else repr(mask)
            raise Error(_OP, f"a bool mask [{rows}, {cols}]", got, "make one entry for each element")
        return mask.detach().clone()

    def __dir__(self) -> list[str]:
        """Leaves out ``pattern`` where it raises: torch.jit.trace reads every attribute."""
        return [name for name in super().__dir__() if name != "pattern" or self.block != (1, 1)]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> MaskedLinear:
        """Applies .to(), .half(), .type() and their like; the mask stays bool."""
        super()._apply(arguments.exact(fn), recurse)
        return self

    def train(self, mode: bool = True) -> MaskedLinear:
        """Does what nn.Module.train does. An average of the weights takes its layer's mask here, so that
        compiled code has it, too."""
        self._settle()
        return super().train(mode)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        self._settle()
        super()._save_to_state_dict(destination, prefix, keep_vars)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        """Also takes the state dict of the dense layer: the mask stays, as stored blocks do."""
        accept_pruned(state_dict, prefix)
        if self.gate is None and prefix + "weight" in state_dict:
            state_dict.setdefault(prefix + "mask", self.mask)
        super()._load_from_state_dict(state_dict, prefix, *arguments)
        self._factors = None
        if self._places is not None:
            self._places.loaded()

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out the kept index, which a copy makes anew, and that a run adds the decay."""
        self._settle()
        return {**self.__dict__, "_kept": None, "_decays_in_step": False}

    def extra_repr(self) -> str:
        bm, bn = self.block
        density = f"density={float(self.mask.float().mean()):.4g}" if not self.mask.is_meta else "density=?"
        sizes = (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
        )
        return f"{sizes}, block={bm}x{bn}, {density}"


def masked_layers(model: nn.Module) -> dict[MaskedLinear, list[str]]:
    """Returns the masked layers of a model, each with all its names."""
    layers: dict[MaskedLinear, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, MaskedLinear):
            layers.setdefault(module, []).append(name)
    return layers
