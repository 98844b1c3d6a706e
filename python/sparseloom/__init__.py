"""Sparseloom: block-sparse and 2:4 layers for PyTorch that train, save and run, faster than dense ones.

>>> import torch, sparseloom
>>> layer = sparseloom.BlockSparseLinear(1024, 4096, density=0.25)
>>> y = layer(torch.randn(8, 1024))
"""

import importlib
from typing import TYPE_CHECKING, Any

from . import layouts, ops, pattern, sparsify
from . import nn as nn
from . import optim as optim
from ._rooms import missing
from .advise.advice import Advice
from .attention import AttentionPattern as AttentionPattern
from .attention import attention
from .distributed import prepare_ddp
from .errors import Error
from .io import load, save
from .nn import (
    BlockSparseConv1D,
    BlockSparseConv1d,
    BlockSparseConv1x1,
    BlockSparseConv2d,
    BlockSparseConv3d,
    BlockSparseConvTranspose1d,
    BlockSparseConvTranspose2d,
    BlockSparseConvTranspose3d,
    BlockSparseGRU,
    BlockSparseLinear,
    BlockSparseLSTM,
    BlockSparseMultiheadAttention,
    BlockSparseSelfAttention,
    BlockSparseTransformersConv1D,
    GatedBlockSparseLinear,
    MaskedLinear,
    QuantizedBlockSparseLinear,
    QuantizedSemi24Linear,
    QuantizedSparseLinear,
    Semi24Dropout,
    Semi24FeedForward,
    Semi24Linear,
    Semi24Training,
    Semi24TrainingConv2d,
    SmallWorldLSTM,
    SparseLinear,
    SparseModule,
    SparseWeight,
)
from .ops import info
from .patch import (
    Bitmap,
    BlockSparse,
    BlockSparseModelPatcher,
    Coo,
    Csr,
    InLayout,
    Nm,
    Semi24,
    densify_,
    fold_batchnorm_,
    pack_,
    sparsify_,
    unpack_,
)
from .pattern import Pattern
from .quantize import quantize_
from .recover import Distillation
from .report import Report

if TYPE_CHECKING:
    from .advise import advise
    from .builder import SparsityBuilder
    from .permute import permute_channels_
    from .prune import prune_
    from .recover import recover
    from .report import report
    from .shrink import shrink_
    from .tensors import SparseTensor, sparsified_op
else:  # modules that can be called: `import sparseloom.report` gives what sparseloom.report is
    from . import advise, recover, report

__all__ = [
    "Advice",
    "Bitmap",
    "BlockSparse",
    "BlockSparseConv1D",
    "BlockSparseConv1d",
    "BlockSparseConv1x1",
    "BlockSparseConv2d",
    "BlockSparseConv3d",
    "BlockSparseConvTranspose1d",
    "BlockSparseConvTranspose2d",
    "BlockSparseConvTranspose3d",
    "BlockSparseGRU",
    "BlockSparseLSTM",
    "BlockSparseLinear",
    "BlockSparseModelPatcher",
    "BlockSparseMultiheadAttention",
    "BlockSparseSelfAttention",
    "BlockSparseTransformersConv1D",
    "Coo",
    "Csr",
    "Distillation",
    "Error",
    "GatedBlockSparseLinear",
    "InLayout",
    "MaskedLinear",
    "Nm",
    "Pattern",
    "QuantizedBlockSparseLinear",
    "QuantizedSemi24Linear",
    "QuantizedSparseLinear",
    "Report",
    "Semi24",
    "Semi24Dropout",
    "Semi24FeedForward",
    "Semi24Linear",
    "Semi24Training",
    "Semi24TrainingConv2d",
    "SmallWorldLSTM",
    "SparseLinear",
    "SparseModule",
    "SparseTensor",
    "SparseWeight",
    "SparsityBuilder",
    "advise",
    "attention",
    "densify_",
    "fold_batchnorm_",
    "info",
    "layouts",
    "load",
    "ops",
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
    raise missing(__name__, name, __all__)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_ROOMS, "__version__"})
