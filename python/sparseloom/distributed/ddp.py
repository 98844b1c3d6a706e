"""Prepares models with sparse layers for DistributedDataParallel, when it is made.

It would broadcast the layers' indices before every forward pass, and where the ranks' patterns differ it
would add the gradients of different blocks. It would broadcast weights of 8 bits as well, which are buffers
and never train: gloo cannot send float8 (findings/gloo-sends-no-float8.sh). Masks are buffers too: unless
they are broadcast, the weights of rank 0 would meet each rank's own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook
from torch.nn.parallel import DistributedDataParallel

from .._arguments import named_arguments
from ..errors import Error
from ..nn.arguments import require_module
from ..nn.eight_bit import EightBit
from ..nn.held.sparse_weight import SparseWeight, joined, sparse_layers
from ..nn.masked.linear import MaskedLinear, masked_layers
from ..tensors.sparse_tensor import SparseTensor


@named_arguments
def prepare_ddp(model: nn.Module, process_group: Any = None) -> nn.Module:
    """Prepares a model for DistributedDataParallel, which also does this itself; returns the model.

    Compares the patterns of all ranks, their weights of 8 bits and their masks, and excludes the first two
    from the buffers that DistributedDataParallel broadcasts before every forward pass. Raises Error on every
    rank, with the name of the first layer whose pattern, 8-bit weight or mask is not the same everywhere, and
    for a SparseTensor among the Parameters.
    """
    require_module("prepare_ddp", model)
    _require_plain("prepare_ddp", model)
    weights = _weights(model)
    if dist.is_available() and dist.is_initialized():
        require_equal("prepare_ddp", weights, process_group)
        _require_equal_masks("prepare_ddp", model, process_group)
    ignored_names = set(getattr(model, "_ddp_params_and_buffers_to_ignore", ()))
    ignored = sorted(ignored_names | _ignored(weights))
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ignored)
    return model


def require_equal(op: str, weights: dict[str, SparseWeight], process_group: Any) -> None:
    """Raises Error, on every rank of the group, unless all have the same patterns and weights of 8 bits."""
    own_hashes = {name: (weight.content_hash, _digest(weight)) for name, weight in weights.items()}
    gathered: list[dict[str, tuple[int, str]]] = [{} for _ in range(dist.get_world_size(process_group))]
    dist.all_gather_object(gathered, own_hashes, process_group)
    for rank, hashes in enumerate(gathered):
        for name in sorted(hashes.keys() | gathered[0].keys()):
            if hashes.get(name) != gathered[0].get(name):
                remedy = (
                    "give BlockSparse a seed, choose by magnitude of equal "
                    "weights, or load one checkpoint on all ranks"
                )
                what = "pattern and 8-bit weight" if _fixed(weights.get(name)) else "pattern"
                expected = f"one {what} of {name or 'the layer'} on all ranks"
                raise Error(op, expected, f"another on rank {rank} than on rank 0", remedy)


def _require_equal_masks(op: str, model: nn.Module, process_group: Any) -> None:
    """Raises Error, on every rank of the group, unless all have the same masks. A gate's follow from
    Parameters."""
    layers = {names[0]: layer for layer, names in masked_layers(model).items() if layer.gate is None}
    if not layers:
        return
    own = {name: _sha256([layer.mask, *_scale(layer)]) for name, layer in layers.items()}
    gathered: list[dict[str, str]] = [{} for _ in range(dist.get_world_size(process_group))]
    dist.all_gather_object(gathered, own, process_group)
    for rank, digests in enumerate(gathered):
        for name in sorted(digests.keys() | gathered[0].keys()):
            if digests.get(name) != gathered[0].get(name):
                remedy = "seed all ranks alike before sparsify_, or load one checkpoint on all ranks"
                expected = f"one mask of {name or 'the layer'} on all ranks"
                raise Error(op, expected, f"another on rank {rank} than on rank 0", remedy)


def _scale(layer: MaskedLinear) -> list[torch.Tensor]:
    """Returns the fixed factor of a soft 2:4 layer."""
    scale = layer._buffers.get("scale")
    return [] if scale is None else [scale]


def _sha256(tensors: Iterable[torch.Tensor]) -> str:
    content = [each.detach().cpu().contiguous().flatten().view(torch.uint8) for each in tensors]
    return hashlib.sha256(b"".join(each.numpy().tobytes() for each in content)).hexdigest()


def _require_plain(op: str, model: nn.Module) -> None:
    """Raises Error for a SparseTensor among the Parameters: DistributedDataParallel would copy the values of
    rank 0 into other blocks where the ranks' patterns differ, or, for a single Parameter, into a dense tensor
    that is dropped."""
    for name, parameter in model.named_parameters():
        if isinstance(parameter, SparseTensor):
            remedy = "let sparsify_ or SparsityBuilder make a layer of it, whose values are a plain Parameter"
            raise Error(op, "Parameters that are plain tensors", f"{name}, a SparseTensor", remedy)


def _weights(model: nn.Module) -> dict[str, SparseWeight]:
    return {layer.name: layer.weight for layer in sparse_layers(model)}


def _ignored(weights: dict[str, SparseWeight]) -> set[str]:
    """Returns the buffers that need no broadcast: every rank has them."""
    return {
        joined(name, buffer)
        for name, weight in weights.items()
        for buffer in {*weight.index_buffers, *_fixed(weight)}
    }


def _fixed(weight: SparseWeight | None) -> dict[str, torch.Tensor]:
    """Returns the buffers of an 8-bit layer by name; none of another one."""
    if weight is None or not isinstance(weight.owner, EightBit):
        return {}
    return {name: each for name, each in weight.owner._buffers.items() if each is not None}


def _digest(weight: SparseWeight) -> str:
    """Returns a SHA-256 of what an 8-bit layer holds, "" of another one."""
    fixed = _fixed(weight)
    return _sha256(fixed.values()) if fixed else ""


def _on_registration(parent: nn.Module, name: str, child: nn.Module | None) -> None:
    """Runs when DistributedDataParallel registers its model, before it lists the buffers."""
    if name != "module" or child is None or not isinstance(parent, DistributedDataParallel):
        return
    _require_plain("DistributedDataParallel", child)
    weights = _weights(child)
    if weights:
        require_equal("DistributedDataParallel", weights, parent.process_group)
        parent.parameters_to_ignore = set(parent.parameters_to_ignore) | _ignored(weights)
    try:
        _require_equal_masks("DistributedDataParallel", child, parent.process_group)
    except Error:  # those of rank 0 may reach the others, which no attribute says by now
        vars(parent)["_sparseloom_masks"] = parent.register_forward_pre_hook(_on_first_call)


def _on_first_call(wrapper: Any, inputs: Any) -> None:
    """Raises Error, on every rank, where masks that differed were not broadcast."""
    synced = getattr(wrapper, "forward_sync_buffers", None)  # torch 2.13 warns of the other name
    if not (wrapper.broadcast_buffers if synced is None else synced):
        _require_equal_masks("DistributedDataParallel", wrapper.module, wrapper.process_group)
    wrapper._sparseloom_masks.remove()


register_module_module_registration_hook(_on_registration)
