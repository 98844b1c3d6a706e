"""Layers in fp64 and their masked dense twins, for the tests of torch's transforms."""

import torch
from torch import nn

from sparseloom import ops
from sparseloom.nn import BlockSparseLinear, QuantizedBlockSparseLinear

ACTIVATIONS = list(ops.ACTIVATIONS)
F64 = {"dtype": torch.float64}


def layer_of(activation=None, bias=True, n_in=37, n_out=27, seed=0, **options):
    generator = torch.Generator().manual_seed(seed)
    sizes = {"density": 0.5, "block": (8, 16), "activation": activation, "generator": generator}
    return BlockSparseLinear(n_in, n_out, bias, **(F64 | sizes | options))


def weight_of(values, layer, crow=None, col=None):
    """The dense weight by torch's own differentiable operators."""
    crow, col = (layer.crow if crow is None else crow), (layer.col if col is None else col)
    bm, bn = layer.block
    rows, cols = -(-layer.out_features // bm), -(-layer.in_features // bn)
    counts = crow[1:] - crow[:-1]
    row = (torch.arange(len(col))[:, None] >= crow[None, 1:]).sum(1) if counts.numel() else col
    place = nn.functional.one_hot((row * cols + col).long(), rows * cols).to(values.dtype)
    blocks = torch.einsum("bp,bij->pij", place, values).unflatten(0, (rows, cols))
    return blocks.permute(0, 2, 1, 3).reshape(rows * bm, cols * bn)[: layer.out_features, : layer.in_features]


def twin(layer, x, values=None, bias=None, residual=None, crow=None, col=None):
    weight = weight_of(layer.values if values is None else values, layer, crow, col)
    y = ops.activate(x @ weight.t() + (layer.bias if bias is None else bias), layer.activation)
    return y if residual is None else y + residual


def parameters(layer):
    return {name: p.detach().clone() for name, p in layer.named_parameters()}


def x_of(*sizes, seed=1):
    return torch.randn(*sizes, 37, generator=torch.Generator().manual_seed(seed), **F64)


def close(actual, expected, **tolerance):
    torch.testing.assert_close(actual, expected, **tolerance)


def copied_or_quantized(kind):
    layer = layer_of("gelu", dtype=torch.float32).eval()
    if kind == "copied":
        layer.requires_grad_(False).dense_copy = True
        return layer
    quantized = QuantizedBlockSparseLinear.from_sparse(layer)
    quantized.kernel = "reference"  # every machine has it
    return quantized
