"""Parts of a SparseTensor: dense copies, which are read as any tensor and refuse writes."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from sparseloom import Error, SparseTensor

pytestmark = pytest.mark.filterwarnings("ignore::sparseloom.ops.DenseFallback")


def made() -> SparseTensor:
    dense = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
    return SparseTensor.from_dense(dense, "csr", density=0.3)


def test_a_write_to_a_part_is_refused():
    """A part of a SparseTensor is a dense copy, so that the write was lost."""
    tensor = made()
    before = tensor.to_dense()
    for where in (0, slice(1, 3), (..., 2), before[0] > 0):
        with pytest.raises(Error, match="to_dense"):
            tensor[where] = 1.0
    writes: list[Callable[[Tensor], Any]] = [
        lambda part: part.zero_(),
        lambda part: part.add_(1),
        lambda part: part.unsqueeze(0).fill_(2),
        lambda part: part.detach().t().copy_(part.detach().t()),
        lambda part: part.__setitem__(..., 1.0),
        lambda part: part.__iadd__(1),
        lambda part: torch.add(part, 1, out=part),
        lambda part: torch._foreach_zero_([part]),
        lambda part: nn.init.normal_(part),
        lambda part: functional.relu(part, inplace=True),
    ]
    takes: list[Callable[[Tensor], Tensor]] = [
        lambda t: t[0],
        lambda t: t[1:3, 2],
        lambda t: t.T,
        lambda t: next(iter(t)),
        lambda t: t.unbind()[-1],
        lambda t: t.chunk(2)[1],
        lambda t: nn.Parameter(t)[2],
    ]
    for take in takes:
        for write in writes:
            with torch.no_grad(), pytest.raises(Error, match="to_dense"):
                write(take(tensor))
    assert torch.equal(tensor.to_dense(), before)
    other = torch.zeros(6, 8)
    other[:] = tensor.to_dense()
    assert torch.equal(other, before)


def test_a_part_is_read_as_any_tensor():
    tensor = made().requires_grad_()
    before = tensor.detach().to_dense()
    row = tensor[1]
    assert torch.equal(row, before[1]) and type(row + 1) is type(row.clone()) is Tensor
    assert torch.equal(row.clone().zero_(), torch.zeros(8))
    assert torch.equal(torch.zeros(8).add_(row), before[1])
    for other in (pickle.loads(pickle.dumps(tensor.detach()[1])), copy.deepcopy(tensor.detach()[1])):
        assert type(other) is Tensor and torch.equal(other, before[1])
    row.square().sum().backward()
    assert torch.equal(tensor.grad.to_dense()[1], 2 * before[1]) and not tensor.grad.to_dense()[0].any()
    with torch.inference_mode():
        assert torch.equal(tensor[1], before[1]) and torch.equal(tensor.t() * 2, before.t() * 2)
