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
from .permute import permute_channels_
from .quantize import quantize_
from .recover import Distillation, recover
from .report import Report, report
from .shrink import shrink_

if TYPE_CHECKING:
    from .builder import SparsityBuilder
    from .prune import prune_
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
    "prune_": "prune",
    "sparsified_op": "tensors",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":  # there is one version number, compiled into the C++ core
        return ops.operators.call("version")
    if name == "prune":  # its evaluators and budgets, beside prune_
        return importlib.import_module(f"{__name__}.prune")
    if name in _LATER:
        return getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
    raise AttributeError(f"module 'sparseloom' has no attribute {name!r}")
