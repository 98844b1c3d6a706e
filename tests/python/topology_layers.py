"""Layers, masks and dense twins for the tests of a topology that changes in place."""

import torch

from sparseloom import ops
from sparseloom.nn import BlockSparseLinear


def make(out=70, features=100, block=16, density=0.4, dtype=torch.float32, seed=0):
    torch.manual_seed(seed)
    return BlockSparseLinear(features, out, density=density, block=block, dtype=dtype)


def other(layer, seed=0):
    """A mask of as many blocks at other places."""
    mask = layer.pattern.mask
    order = torch.randperm(mask.numel(), generator=torch.Generator().manual_seed(seed))
    return mask.flatten()[order].reshape(mask.shape)


def cells(layer, mask):
    """bool [out, in]: elements of the blocks that the mask names."""
    bm, bn = layer.block
    whole = mask.repeat_interleave(bm, 0).repeat_interleave(bn, 1)
    return whole[: layer.out_features, : layer.in_features]


def dense_of(layer, values=None):
    index = layer.index
    values = layer.values.detach() if values is None else values
    return ops.call("unpack", values.contiguous(), index.crow, index.col, index.rows, index.cols)


def train(layer, optimizer, steps=2):
    for _ in range(steps):
        optimizer.zero_grad()
        layer(torch.randn(9, layer.in_features)).square().mean().backward()
        optimizer.step()
