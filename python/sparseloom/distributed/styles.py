"""BlockColwiseParallel and BlockRowwiseParallel: parallelize_module cuts block-sparse layers with them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

from .. import ops
from .._arguments import named_init
from ..errors import Error
from ..nn.held.cut import Cut, require_borders
from ..nn.held.cut_state import cut_layers
from ..nn.held.parametrized import require_own_values
from ..nn.held.sparse_weight import SparseWeight, is_sparse
from ..nn.held.watch import Watch
from ..nn.linears import can_be_cut
from .ddp import require_equal
from .optimizer import guard

_OP = "parallelize_module"
_WHOLE: Placement = Replicate()


@named_init
class BlockColwiseParallel(ColwiseParallel):
    """Cuts a BlockSparseLinear across its block rows: every rank computes some of the outputs.

    The arguments and defaults are those of torch's ColwiseParallel, which this is for any dense layer: the
    input is replicated, or gathered from ``input_layouts`` (Shard(1): sequence parallel), and the output
    stays sharded on its last dimension. A fused activation stays fused.

    ``borders``: the output features where the parts begin, and the end, from ``borders`` or ``mlp_plan``;
    parts of as many features by default. Parts of different widths need an output that stays sharded and
    local (the defaults).

    All ranks must have the same pattern. The values are taken from rank 0, as torch's styles do. Raises Error
    where the block rows cannot be cut so, and for layers that cannot: see docs/distributed.md.
    """

    def __init__(
        self,
        *,
        borders: Sequence[int] | None = None,
        input_layouts: Placement | None = None,
        output_layouts: Placement | None = None,
        use_local_output: bool = True,
    ) -> None:
        super().__init__(
            input_layouts=input_layouts, output_layouts=output_layouts, use_local_output=use_local_output
        )
        self.borders = borders

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        if not _is_block_sparse(module, self.borders):
            return super()._apply(module, device_mesh)
        stays = self.use_local_output and self.output_layouts == (Shard(-1),)
        _cut(module, device_mesh, 0, self.borders, stays, self.src_data_rank)
        module.register_forward_pre_hook(partial(self._before, device_mesh))
        if not stays:
            module.register_forward_hook(partial(self._after, device_mesh))
        return module

    def _before(self, mesh: DeviceMesh, module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        x = inputs[0]
        if not isinstance(x, DTensor):
            x = DTensor.from_local(x, mesh, self.input_layouts, run_check=False)
        if x.placements != (Replicate(),):
            x = x.redistribute(placements=(Replicate(),))
        # Each rank's outputs give a summand of the gradient.
        return (x.to_local(grad_placements=(Partial(),)), *inputs[1:])

    def _after(self, mesh: DeviceMesh, module: nn.Module, inputs: Any, y: Tensor) -> Tensor:
        y_full = DTensor.from_local(y, mesh, (Shard(-1),), run_check=False)
        y_full = y_full.redistribute(placements=self.output_layouts)
        return y_full.to_local() if self.use_local_output else y_full


@named_init
class BlockRowwiseParallel(RowwiseParallel):
    """Cuts a BlockSparseLinear across its block columns: every rank computes a summand of all outputs.

    The arguments and defaults are those of torch's RowwiseParallel, which this is for any dense layer: the
    input is sharded on its last dimension, and the output summed by one all-reduce, or by one reduce-scatter
    with ``output_layouts=Shard(1)`` (sequence parallel). Bias and activation come after the sum.

    ``borders``: the input features where the parts begin, and the end, the same as those of the layers that
    give the input. See BlockColwiseParallel for the rest.
    """

    def __init__(
        self,
        *,
        borders: Sequence[int] | None = None,
        input_layouts: Placement | None = None,
        output_layouts: Placement | None = None,
        use_local_output: bool = True,
    ) -> None:
        super().__init__(
            input_layouts=input_layouts, output_layouts=output_layouts, use_local_output=use_local_output
        )
        self.borders = borders

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        if not _is_block_sparse(module, self.borders):
            return super()._apply(module, device_mesh)
        stays = self.input_layouts == (Shard(-1),)
        _cut(module, device_mesh, 1, self.borders, stays, self.src_data_rank)
        module.register_forward_pre_hook(partial(self._before, device_mesh))
        module.register_forward_hook(partial(self._after, device_mesh))
        return module

    def _before(self, mesh: DeviceMesh, module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        x = inputs[0]
        if not isinstance(x, DTensor):
            if self.input_layouts == (Shard(-1),):
                return inputs
            x = DTensor.from_local(x, mesh, self.input_layouts, run_check=False)
        if x.placements != (Shard(x.ndim - 1),):
            x = x.redistribute(placements=(Shard(-1),))
        return (x.to_local(), *inputs[1:])

    def _after(self, mesh: DeviceMesh, module: nn.Module, inputs: Any, summand: Tensor) -> Tensor:
        layer: Any = module
        y_full = DTensor.from_local(summand, mesh, (Partial(),), run_check=False)
        y_full = y_full.redistribute(placements=self.output_layouts)
        y, bias = y_full.to_local(), layer.bias
        if bias is not None:
            if self.output_layouts == (Replicate(),):
                bias = bias.to_local()
            else:  # each rank has the gradient of its own outputs; the backward of redistribute sums them
                bias = bias.redistribute(placements=(Replicate(),)).to_local(grad_placements=(Partial(),))
            y = y + bias.to(y.dtype)
        y = ops.activate(y, layer.activation)
        if self.use_local_output:
            return y
        return DTensor.from_local(y, mesh, y_full.placements, run_check=False)


def _is_block_sparse(module: Any, borders: Sequence[int] | None) -> bool:
    """Returns whether the module is cut here, and not by torch's style. Raises Error where neither can."""
    if can_be_cut(module):
        return True
    if is_sparse(module):
        got, remedy = type(module).__name__, "leave it out of the plan"
        raise Error(_OP, "a BlockSparseLinear with its own forward", got, remedy)
    if borders is not None:
        expected = "borders for a BlockSparseLinear alone"
        raise Error(_OP, expected, f"borders for {type(module).__name__}", "leave out borders")
    return False


def _cut(
    layer: Any,
    mesh: DeviceMesh,
    dim: int,
    borders: Sequence[int] | None,
    any_widths: bool,
    source: int | None,
) -> None:
    """Makes the layer hold this rank's part of its weight."""
    _require_cuttable(layer, mesh)
    layer.fix_topology_()
    require_equal(_OP, {"": SparseWeight(layer)}, mesh.get_group())
    pattern = layer.pattern
    if borders is None:
        borders = _even((pattern.rows, pattern.cols)[dim], pattern.block[dim], mesh.size())
    require_borders(_OP, pattern, dim, borders, mesh.size())
    cut = Cut(pattern, dim, tuple(borders), mesh.get_local_rank())
    if len(set(cut.widths)) > 1 and not any_widths:
        remedy = "keep activations between the layers sharded and local, or leave out borders"
        raise Error(_OP, "parts of one width where they are gathered", str(list(cut.widths)), remedy)
    layer.dense_copy = False
    values, bias = layer.values, layer.bias
    parts = cut.in_parts(values.detach(), cut.place_of_blocks, cut.places)
    parameter = distribute_tensor(parts, mesh, (Shard(0),), src_data_rank=source)
    layer.register_parameter("values", nn.Parameter(parameter, requires_grad=values.requires_grad))
    if bias is not None:
        parts, placement = bias.detach(), _WHOLE
        if dim == 0:
            parts, placement = cut.in_parts(parts, cut.place_of_features, max(cut.widths)), Shard(0)
        parameter = distribute_tensor(parts, mesh, (placement,), src_data_rank=source)
        layer.register_parameter("bias", nn.Parameter(parameter, requires_grad=bias.requires_grad))
    own_pattern = cut.own_pattern
    layer.out_features, layer.in_features = own_pattern.rows, own_pattern.cols
    layer._cut = cut
    layer._set_index(own_pattern, layer.packed_index.device)
    cut_layers.add(layer)
    guard()


def _even(features: int, side: int, parts: int) -> list[int]:
    if features % (side * parts):
        expected = f"features in {parts} parts at multiples of {side}"
        remedy = "pass borders=sparseloom.distributed.borders(...), or another block"
        raise Error(_OP, expected, str(features), remedy)
    return [features // parts * part for part in range(parts + 1)]


def _require_cuttable(layer: Any, mesh: DeviceMesh) -> None:
    """Raises Error for a layer that was cut before, or that has more than an ordinary layer."""
    require_own_values(_OP, layer)
    reason = ""
    if mesh.ndim != 1:
        reason, remedy = f"a mesh of {mesh.ndim} dimensions", "pass one dimension of it, such as mesh['tp']"
    elif layer._cut is not None:
        reason, remedy = "one that is cut already", "name each layer once in the plan"
    elif hasattr(layer.values, "placements"):
        reason, remedy = "one that fully_shard has cut up", "call parallelize_module first, then fully_shard"
    elif layer.capacity is not None:
        reason, remedy = "one with a capacity", "call fix_topology_ first"
    elif layer.fuse_wgrad_accumulation:
        reason, remedy = "fuse_wgrad_accumulation=True", "leave it out"
    elif any(isinstance(hook, Watch) and hook.held is not None for hook in layer._forward_hooks.values()):
        reason, remedy = "one that a method drives", "train with the method under DistributedDataParallel"
    if reason:
        raise Error(_OP, "an ordinary BlockSparseLinear and a mesh of one dimension", reason, remedy)
