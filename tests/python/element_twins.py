"""The sparsifiers of single elements by torch's operators, which sort."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sparseloom.ops.scores import scores_on_device
from sparseloom.sparsify import (
    BlockwiseFraction,
    ElementSparsifier,
    KeepAll,
    PerBlockNM,
    RandomFraction,
    ScalarFraction,
    ScalarThreshold,
)
from sparseloom.sparsify.elements import highest


def magnitudes(dense: Tensor) -> Tensor:
    """|x| in a dtype that compares exactly, with Inf in the place of NaN."""
    wider = torch.float32 if dense.is_floating_point() else torch.float64
    return dense.detach().to(torch.promote_types(dense.dtype, wider)).abs().nan_to_num(math.inf, math.inf)


def mask_by_torch(sparsifier: ElementSparsifier, matrix: Tensor, seed: int) -> Tensor:
    match sparsifier:
        case KeepAll():
            return torch.ones_like(matrix, dtype=torch.bool)
        case RandomFraction(fraction):
            counter = torch.arange(1, matrix.numel() + 1, device=matrix.device).reshape(matrix.shape)
            bits = mix64(counter * signed(0x9E3779B97F4A7C15) + seed)
            return shifted(bits, 11).double() * 2.0**-53 >= fraction
        case ScalarThreshold(threshold):
            dtype = matrix.dtype if matrix.is_floating_point() else torch.float64
            return magnitudes(matrix) > torch.tensor(threshold, dtype=dtype, device=matrix.device)
        case ScalarFraction(fraction):
            return highest(magnitudes(matrix), fraction)
        case BlockwiseFraction(fraction, block):
            bm, bn = block if isinstance(block, tuple) else (block, block)
            exact = matrix if matrix.is_floating_point() else matrix.double()
            stays = highest(scores_on_device(exact, (bm, bn), "l1").nan_to_num(math.inf), fraction)
            rows, cols = matrix.shape
            return stays.repeat_interleave(bm, 0)[:rows].repeat_interleave(bn, 1)[:, :cols]
        case PerBlockNM(n, m):
            rows, cols = matrix.shape
            groups = -(-cols // m)
            # -1 lies below every magnitude, so that what lies beyond the edge never takes a place.
            padded = torch.nn.functional.pad(magnitudes(matrix), (0, groups * m - cols), value=-1.0)
            order = padded.reshape(rows, groups, m).argsort(dim=-1, descending=True, stable=True)
            chosen = torch.zeros_like(order, dtype=torch.bool).scatter_(-1, order[..., :n], True)
            return chosen.flatten(1)[:, :cols]
    raise AssertionError(f"no twin of {sparsifier}")


def mix64(x: Tensor) -> Tensor:
    """SplitMix64's output function, as in src/core/mix64.h, over int64, whose products wrap."""
    x = (x ^ shifted(x, 30)) * signed(0xBF58476D1CE4E5B9)
    x = (x ^ shifted(x, 27)) * signed(0x94D049BB133111EB)
    return x ^ shifted(x, 31)


def shifted(x: Tensor, bits: int) -> Tensor:
    """x >> bits, with zeros from the left."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def signed(word: int) -> int:
    return word - (1 << 64)
