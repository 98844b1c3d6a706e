"""GatedBlockSparseLinear: stored blocks with trained gates, such as those of L0."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from .. import ops
from ..errors import Error
from ..ops.devices import at_hand
from ..pattern import Pattern
from ..sparsify.gates import Gate, HardConcreteGate
from ..sparsify.scores import Learned
from . import arguments
from .held.options import WithOptions
from .held.sparse_weight import SparseWeight, held, held_descriptions
from .in_layout.dense_entries import packed_layer
from .linear import BlockSparseLinear
from .linears import in_blocks

_OP = "GatedBlockSparseLinear"


class GatedBlockSparseLinear(WithOptions):
    """Computes y = x (gates * W)^T + bias with one factor for each stored block of ``layer``. Forward, dX and
    dW take time for the blocks with a factor other than zero; nothing is read on the host. ``strict`` of
    ``layer`` holds here too; ``pack`` passes it and ``dense_copy`` on.

    Args:
        layer: the blocks and the bias, without an activation. It is kept as the child ``layer``.
        gate: a ``sparsify.gates.Gate``, which gets the values as a matrix [1, blocks * elements] whose blocks
            lie side by side, and returns factors [1, blocks]. None stands for the hard-concrete gates of L0
            (Louizos et al. 2018).
        strength, drop: for these gates: the factor of their expected number in ``penalty()``, and the share
            of gates that starts closed.
    """

    gate: Gate

    def __init__(
        self, layer: BlockSparseLinear, gate: Gate | None = None, strength: float = 1e-3, drop: float = 0.1
    ) -> None:
        super().__init__()
        if not in_blocks(layer):
            remedy = "make one with BlockSparseLinear.from_dense"
            raise Error(_OP, "a BlockSparseLinear", f"a {type(layer).__name__}", remedy)
        if layer.activation is not None:
            raise Error(_OP, "a layer without an activation", layer.activation, "apply it behind this layer")
        self.layer = layer
        if gate is None:
            blocks = layer.values.shape[0]
            gate = HardConcreteGate(Learned("open", drop), 1, blocks, strength).to(layer.values.device)
        self.gate = gate

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Maps x [..., in_features] to [..., out_features], and adds the ``residual``, of the result's
        shape and dtype. Raises Error when x or ``residual`` does not fit."""
        if (
            x.__class__ is not Tensor
            and (node := arguments.recorded_by_fx(self, x, residual=residual)) is not None
        ):
            return node  # type: ignore[no-any-return]
        layer = self.layer
        if not in_blocks(layer):
            remedy = "replace this layer as a whole, or pack() it first"
            raise Error(_OP, "its BlockSparseLinear as the child layer", f"a {type(layer).__name__}", remedy)
        if layer.activation is not None:
            got, remedy = layer.activation, "set layer.activation = None, and apply it behind this layer"
            raise Error(_OP, "a layer without an activation", got, remedy)
        with at_hand(layer):
            y = ops.gated_linear(x, layer.values, layer.index, self._gates(), layer.bias, layer.strict)
        return arguments.added(y, residual)

    def penalty(self) -> Tensor | None:
        """Returns the term to add to the loss; None for gates without a penalty."""
        return self.gate.penalty()

    @torch.no_grad()
    def pack(self) -> BlockSparseLinear:
        """Returns a BlockSparseLinear of the blocks that are open in evaluation, with their factors
        multiplied in. The bias is the same Parameter."""
        training, layer = self.gate.training, self.layer
        self.gate.eval()
        gates = self._gates()
        self.gate.train(training)
        index, values = layer.index, layer.values
        scaled = (values * gates[:, None, None]).to(values.dtype)
        dense = ops.call("unpack", scaled, index.crow, index.col, index.rows, index.cols)
        mask = layer.pattern.mask.clone()
        mask[mask.clone()] = (gates != 0).to(mask.device)  # blocks are stored in row-major order
        packed = packed_layer(
            BlockSparseLinear, dense, Pattern(index.rows, index.cols, (index.bm, index.bn), mask)
        )
        packed.bias = layer.bias
        packed.values.requires_grad_(values.requires_grad)
        packed.strict, packed.fuse, packed.dense_copy = layer.strict, layer.fuse, layer.dense_copy
        return packed.train(self.training)

    def to_dense(self) -> nn.Module:
        """Returns an nn.Linear with the values as evaluation multiplies with them, gates included, and zero
        elsewhere (copied)."""
        return self.pack().to_dense()

    def sparse_weights(self) -> dict[str, SparseWeight]:
        """Returns the weight of ``layer``, without the gates."""
        inner = held(self, {"layer": ("weight", "")})
        return {entry: replace(weight, gated=True) for entry, weight in inner.items()}

    def describe(self) -> dict[str, dict[str, Any]]:
        """Returns the data that rebuild ``layer`` without its values; see SparseModule."""
        return held_descriptions(self, ["layer"])

    def _gates(self) -> Tensor:
        values: Tensor = self.layer.values
        return self.gate(values.reshape(1, -1)).flatten()


def gated_layers(model: nn.Module) -> dict[GatedBlockSparseLinear, list[str]]:
    """Returns the gated layers of a model, each with all its names."""
    layers: dict[GatedBlockSparseLinear, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if GatedBlockSparseLinear in type(module).__mro__:
            layers.setdefault(cast("GatedBlockSparseLinear", module), []).append(name)
    return layers
