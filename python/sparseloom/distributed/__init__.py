"""Sparse layers on several devices, by torch.distributed: docs/distributed.md says how to choose.

DistributedDataParallel and fully_shard take models with sparse layers as they are. ``BlockColwiseParallel``
and ``BlockRowwiseParallel`` are styles for torch's parallelize_module, and ``mlp_plan`` makes those of an
MLP. They are imported with the first use of their names, since DTensor takes two seconds to import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .ddp import prepare_ddp

if TYPE_CHECKING:
    from .plan import borders, mlp_plan
    from .styles import BlockColwiseParallel, BlockRowwiseParallel

__all__ = ["BlockColwiseParallel", "BlockRowwiseParallel", "borders", "mlp_plan", "prepare_ddp"]


def __getattr__(name: str) -> Any:
    if name in ("BlockColwiseParallel", "BlockRowwiseParallel"):
        from . import styles

        return getattr(styles, name)
    if name in ("borders", "mlp_plan"):
        from . import plan

        return getattr(plan, name)
    raise AttributeError(f"module 'sparseloom.distributed' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
