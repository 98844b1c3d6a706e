"""borders and mlp_plan: where to cut the layers of an MLP so that every rank has about as many blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ParallelStyle, PrepareModuleInput

from .. import ops
from .._arguments import named_arguments
from ..errors import Error
from ..nn.linears import can_be_cut
from .styles import BlockColwiseParallel, BlockRowwiseParallel

_OP = "borders"


@named_arguments
def borders(columns: Sequence[nn.Module], rows: Sequence[nn.Module], parts: int) -> list[int] | None:
    """Returns where to cut the features that some layers give to others, for ``parts`` ranks.

    Args:
        columns: layers whose outputs they are, to be cut across block rows.
        rows: layers whose inputs they are, to be cut across block columns.

    The cut lies between blocks of all of them, where the stored blocks before it, of all layers together, are
    nearest to their share. What imbalance remains is at most the blocks of one line of blocks at each border;
    a cut layer's repr tells its own. Returns None, which cuts evenly, where any of them is dense. Raises
    Error where there are fewer lines of blocks than ranks, or layers of different features.
    """
    layers: list[tuple[Any, int]] = [(layer, 0) for layer in columns] + [(layer, 1) for layer in rows]
    features = sorted({int((layer.out_features, layer.in_features)[dim]) for layer, dim in layers})
    if len(features) != 1:
        remedy = "name the layers that share the hidden features"
        raise Error(_OP, "layers with one number of features between them", str(features), remedy)
    if not all(can_be_cut(layer) for layer, _ in layers):
        return None
    total, side = features[0], math.lcm(*(layer.block[dim] for layer, dim in layers))
    stored = torch.zeros(-(-total // side), dtype=torch.int64, device="cpu")
    for layer, dim in layers:
        lines = layer.pattern.mask.sum(1 - dim)
        stored.index_add_(0, torch.arange(len(lines), device="cpu") * layer.block[dim] // side, lines)
    cut = ops.call("cut_lines", stored.tolist(), parts).tolist()
    return [min(line * side, total) for line in cut]


@named_arguments
def mlp_plan(
    mlp: nn.Module,
    columns: Sequence[str],
    rows: str,
    mesh: DeviceMesh,
    *,
    sequence_dim: int | None = None,
) -> dict[str, ParallelStyle]:
    """Returns the plan with which parallelize_module cuts an MLP, with one all-reduce in each direction.

    Args:
        mlp: the module that has the layers. Between them it may act on each feature alone: an activation or
            a product, but no normalization over the features. A residual path has to lie outside of it.
        columns: the names of the layers that give the hidden features, such as gate_proj and up_proj.
        rows: the name of the layer that takes them, such as down_proj.
        mesh: the dimension of the mesh that the ranks lie on, such as mesh["tp"].
        sequence_dim: the dimension of the mlp's input and output that is sharded over the ranks (sequence
            parallel): an all-gather and a reduce-scatter then take the place of each all-reduce. By default
            both are replicated.

    All layers are cut at one list of ``borders``. The mlp's forward has to take one positional input.
    """
    givers = [mlp.get_submodule(name) for name in columns]
    row_borders = borders(givers, [mlp.get_submodule(rows)], mesh.size())
    outside = Replicate() if sequence_dim is None else Shard(sequence_dim)
    plan: dict[str, ParallelStyle] = {
        # The gradients of several layers stay summands until they are added, and are reduced once.
        "": PrepareModuleInput(input_layouts=(outside,), desired_input_layouts=(Replicate(),))
    }
    for name in columns:
        plan[name] = BlockColwiseParallel(borders=row_borders)
    plan[rows] = BlockRowwiseParallel(borders=row_borders, output_layouts=outside)
    return plan
