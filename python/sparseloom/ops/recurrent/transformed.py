"""Recurrent layers under torch.func, vmap and forward mode: steps made of torch's operators and of products
with every derivative."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..index import Index
from ..products import FORWARD, product
from .walk import Walk, Weight


def multiplied(x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
    """Returns x W^T + bias."""
    if weight.packed is None:
        return F.linear(x, weight.values, bias)
    blocks, rows, cols, bm, bn, digest, strict, *_ = weight.numbers
    index = Index(weight.packed, blocks, rows, cols, bm, bn, digest)
    return product(FORWARD, x, weight.values, bool(strict), index, bias=bias)


def lstm_cell(z: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """Returns h and c of one step; the arguments are those of ``steps.lstm_cell``."""
    i, f, g, o = z.to(c.dtype).chunk(4, -1)
    new_c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return (o.sigmoid() * new_c.tanh()).to(z.dtype), new_c


def gru_cell(x: Tensor, g: Tensor, h: Tensor) -> Tensor:
    """Returns h after one step, of the products of the input and of the state [rows, 3 hidden]."""
    (xr, xz, xn), (gr, gz, gn) = x.chunk(3, -1), g.chunk(3, -1)
    z = (xz + gz).sigmoid()
    return (1 - z) * (xn + (xr + gr).sigmoid() * gn).tanh() + z * h


def sequence(
    gx: Tensor, h0: Tensor, c0: Tensor | None, weight: Weight, bias: Tensor | None,
    projection: Weight | None, walk: Walk,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Returns what ``sequences.sequence`` returns, with c in c0's dtype; differentiable to any order."""
    h, c, outputs, ends = h0, c0, dict[int, Tensor](), list[int]()
    for size in walk.sizes:
        ends.append((ends[-1] if ends else 0) + size)
    order = range(len(ends))
    for step in reversed(order) if walk.reverse else order:
        size = walk.sizes[step]
        x, z = gx[ends[step] - size : ends[step]], multiplied(h[:size], weight, bias)
        if c is None:
            y = gru_cell(x, z, h[:size])
        else:
            y, new_c = lstm_cell(x + z, c[:size])
            c = _begun(new_c, c)
            y = y if projection is None else multiplied(y, projection)
        h = _begun(y, h)
        outputs[step] = y
    data = torch.cat([outputs[step] for step in order])
    return (data, h) if c is None else (data, h, c)


def _begun(new: Tensor, old: Tensor) -> Tensor:
    """Returns the states of all sequences after a step of the first ones."""
    return new if len(new) == len(old) else torch.cat([new, old[len(new) :]])
