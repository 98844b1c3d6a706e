"""Prepares block-sparse layers for DistributedDataParallel.

fully_shard (FSDP2) needs no preparation: it shards the values by blocks and leaves the index whole on
every rank.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from .errors import Error
from .nn.sparse_weight import joined, sparse_layers


def prepare_ddp(model: nn.Module, process_group: Any = None) -> nn.Module:
    """Prepares the model for DistributedDataParallel; returns the model. Call it on every rank just before
    DistributedDataParallel(model).

    It compares the patterns of all ranks, and excludes the index from what DistributedDataParallel
    broadcasts before every forward pass. Raises Error, on every rank, that names the first layer whose
    pattern is not the same everywhere.
    """
    weights = {layer.name: layer.weight for layer in sparse_layers(model)}
    mine = {name: weight.content_hash for name, weight in weights.items()}
    if dist.is_available() and dist.is_initialized():
        gathered: list[dict[str, int]] = [{} for _ in range(dist.get_world_size(process_group))]
        dist.all_gather_object(gathered, mine, process_group)
        for rank, theirs in enumerate(gathered):
            for name in sorted(theirs.keys() | gathered[0].keys()):
                if theirs.get(name) != gathered[0].get(name):
                    remedy = (
                        "give BlockSparse a seed, choose by magnitude of equal "
                        "weights, or load one checkpoint on all ranks"
                    )
                    raise Error(
                        "prepare_ddp",
                        f"one pattern of {name} on all ranks",
                        f"another on rank {rank} than on rank 0",
                        remedy,
                    )
    known = set(getattr(model, "_ddp_params_and_buffers_to_ignore", ()))
    indices = {joined(name, buffer) for name, weight in weights.items() for buffer in weight.index_buffers}
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, sorted(known | indices))
    return model
