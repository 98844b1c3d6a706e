"""Sparseloom: block-sparse and 2:4 layers for PyTorch that train, save and run, faster than dense ones.

>>> import torch, sparseloom
>>> layer = sparseloom.nn.BlockSparseLinear(1024, 4096, density=0.25)
>>> y = layer(torch.randn(8, 1024))
"""

import importlib
from typing import TYPE_CHECKING, Any

from . import layouts, nn, ops, optim, pattern, sparsify
from .advise import advise
from .advise.advice import Advice
from .attention import AttentionPattern as AttentionPattern
from .attention import attention
from .distributed import prepare_ddp
from .errors import Error
from .io import load, save
from .ops import info
from .patch import (
    BlockSparse,
    BlockSparseModelPatcher,
    InLayout,
    Semi24,
    densify_,
    pack_,
    sparsify_,
    unpack_,
)
from .pattern import Pattern
from .quantize import quantize_
from .recover import Distillation, recover
from .report import Report, report

if TYPE_CHECKING:
    from .builder import SparsityBuilder
    from .permute import permute_channels_
    from .prune import prune_
    from .shrink import shrink_
    from .tensors import SparseTensor, sparsified_op

__all__ = [
    "Advice",
    "BlockSparse",
    "BlockSparseModelPatcher",
    "Distillation",
    "Error",
    "InLayout",
    "Pattern",
    "Report",
    "Semi24",
    "SparseTensor",
    "SparsityBuilder",
    "advise",
    "attention",
    "densify_",
    "info",
    "layouts",
    "load",
    "nn",
    "ops",
    "optim",
    "pack_",
    "pattern",
    "permute_channels_",
    "prepare_ddp",
    "prune_",
    "quantize_",
    "recover",
    "report",
    "save",
    "shrink_",
    "sparsified_op",
    "sparsify",
    "sparsify_",
    "unpack_",
]


#: The modules of names that are imported on first use, because few programs need them.
_LATER = {
    "SparseTensor": "tensors",
    "SparsityBuilder": "builder",
    "permute_channels_": "permute",
    "prune_": "prune",
    "shrink_": "shrink",
    "sparsified_op": "tensors",
}
#: Modules that have more than the names above, and are imported on first use too.
_ROOMS = ("permute", "prune", "shrink")


def __getattr__(name: str) -> Any:
    if name == "__version__":  # there is one version number, compiled into the C++ core
        return ops.operators.call("version")
    if name in _ROOMS:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _LATER:
        return getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
    raise AttributeError(f"module 'sparseloom' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_ROOMS, "__version__"})
