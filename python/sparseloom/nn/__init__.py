"""Layers with sparse weights."""

from .attention import BlockSparseMultiheadAttention
from .conv.layers import BlockSparseConv1d, BlockSparseConv2d, BlockSparseConv3d
from .conv.transpose import (
    BlockSparseConvTranspose1d,
    BlockSparseConvTranspose2d,
    BlockSparseConvTranspose3d,
)
from .gated import GatedBlockSparseLinear
from .held.sparse_weight import SparseModule, SparseWeight
from .in_layout.linear import SparseLinear
from .in_layout.quantized import QuantizedSparseLinear
from .linear import BlockSparseLinear
from .masked.conv24 import Semi24TrainingConv2d
from .masked.linear import MaskedLinear
from .masked.semi24 import Semi24Training
from .quantized import QuantizedBlockSparseLinear
from .recurrent.layers import BlockSparseGRU, BlockSparseLSTM
from .recurrent.small_world import SmallWorldLSTM
from .self_attention import BlockSparseSelfAttention
from .semi24.feed_forward import Semi24Dropout, Semi24FeedForward
from .semi24.linear import Semi24Linear
from .semi24.quantized import QuantizedSemi24Linear
from .variants import BlockSparseConv1D, BlockSparseConv1x1, BlockSparseTransformersConv1D

__all__ = [
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
    "BlockSparseMultiheadAttention",
    "BlockSparseSelfAttention",
    "BlockSparseTransformersConv1D",
    "GatedBlockSparseLinear",
    "MaskedLinear",
    "QuantizedBlockSparseLinear",
    "QuantizedSemi24Linear",
    "QuantizedSparseLinear",
    "Semi24Dropout",
    "Semi24FeedForward",
    "Semi24Linear",
    "Semi24Training",
    "Semi24TrainingConv2d",
    "SmallWorldLSTM",
    "SparseLinear",
    "SparseModule",
    "SparseWeight",
]
