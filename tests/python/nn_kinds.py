"""Every kind of layer, how to make one, and the shape of its input, for tests of what all kinds answer."""

from torch import nn

import sparseloom as sl
from sparseloom import pattern
from sparseloom.attention import patterns


def linear(**how):
    return sl.BlockSparseLinear(64, 64, density=0.5, block=16, **how)


def eight_bit(layer):
    model = nn.Sequential(layer)
    sl.quantize_(model)
    return model[0]


KINDS = {
    "linear": linear,
    "transformers conv1d": lambda: sl.BlockSparseTransformersConv1D(64, 64, density=0.5, block=16),
    "conv1x1": lambda: sl.BlockSparseConv1x1(linear(), 2, (1, 1)),
    "gated": lambda: sl.GatedBlockSparseLinear(linear()),
    "mha": lambda: sl.BlockSparseMultiheadAttention(nn.MultiheadAttention(64, 2), None, linear()),
    "attention": lambda: sl.BlockSparseSelfAttention(64, 2, pattern=patterns.full(64)),
    "conv": lambda: sl.BlockSparseConv2d(64, 64, 3, density=0.5, block=16),
    "transposed": lambda: sl.BlockSparseConvTranspose2d(64, 64, 3, density=0.5, block=16),
    "lstm": lambda: sl.BlockSparseLSTM(32, 32, density=0.5, block=16),
    "gru": lambda: sl.BlockSparseGRU(32, 32, density=0.5, block=16),
    "small world": lambda: sl.SmallWorldLSTM(32, 32, pattern=lambda step: pattern.random(32, 32, 16, 0.5)),
    "csr": lambda: sl.SparseLinear(64, 64, layout="csr", density=0.1),
    "coo": lambda: sl.SparseLinear(64, 64, layout="coo", density=0.1),
    "bitmap": lambda: sl.SparseLinear(64, 64, layout="bitmap", density=0.1),
    "nm": lambda: sl.SparseLinear(64, 64, layout="nm", n=2, m=8),
    "nmg": lambda: sl.SparseLinear(64, 64, layout="nmg", n=1, m=8, g=2),
    "semi24": lambda: sl.Semi24Linear(64, 64),
    "quantized": lambda: eight_bit(linear()),
    "quantized 2:4": lambda: eight_bit(sl.Semi24Linear(64, 64)),
    "masked": lambda: sl.MaskedLinear(64, 64, block=16),
    "masked 2:4": lambda: sl.Semi24Training(64, 64),
}
#: Shapes of inputs that are not [8, 64].
SHAPES = {
    "conv": [1, 64, 8, 8],
    "transposed": [1, 64, 8, 8],
    "attention": [1, 64, 64],
    "lstm": [4, 2, 32],
    "gru": [4, 2, 32],
    "small world": [8, 32],
}
#: Shapes of what a kind is called with, where its plan takes another.
CALLED = {**SHAPES, "conv1x1": [1, 64, 4, 4]}
#: What a kind refuses to answer, in our Error.
REFUSED = {
    ("masked", "plan"),
    ("masked 2:4", "plan"),
    ("attention", "density"),
    ("attention", "to_dense"),
    ("small world", "to_dense"),
    ("mha", "residual"),  # these four return tuples
    ("lstm", "residual"),
    ("gru", "residual"),
    ("small world", "residual"),
    ("quantized", "plan"),  # without 8-bit kernels on this CPU
    ("quantized 2:4", "plan"),
}
