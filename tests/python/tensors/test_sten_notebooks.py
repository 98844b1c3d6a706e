"""What STen's notebooks and its tests of dispatch do, in our words, each beside a masked dense twin."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import sparseloom as sl
from sparseloom import layouts as L
from sparseloom import ops
from sparseloom import sparsify as S


class OwnLinear(nn.Module):
    """A layer of a user that holds a sparse tensor as its weight, without the builder."""

    def __init__(self, inputs: int, outputs: int, fraction: float) -> None:
        super().__init__()
        sparsify = sl.sparsified_op(torch.clone, [(S.KeepAll(), L.Dense, S.RandomFraction(fraction), L.Csr)])
        self.weight = nn.Parameter(sparsify(torch.randn(outputs, inputs)))
        self.bias = nn.Parameter(torch.rand(outputs))
        self.linear = sl.sparsified_op(functional.linear, out_fmt=[S.DENSE], grad_out_fmt=[S.DENSE])

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x, self.weight, self.bias)
        return y


@pytest.mark.filterwarnings("error::sparseloom.ops.DenseFallback")
def test_a_perceptron_built_from_scratch_trains_as_its_masked_twin() -> None:
    torch.manual_seed(0)
    sizes, made, twin, masks = [50, 40, 30, 10], nn.Sequential(), nn.Sequential(), []
    for inputs, outputs in itertools.pairwise(sizes):
        layer, dense = OwnLinear(inputs, outputs, 0.8), nn.Linear(inputs, outputs)
        weight: Any = layer.weight
        with torch.no_grad():
            dense.weight.copy_(weight.to_dense())
            dense.bias.copy_(layer.bias)
        mask = weight.layout_index.to_dense(torch.ones_like(weight.stored)).detach()
        dense.weight.register_hook(lambda gradient, mask=mask: gradient * mask)
        masks.append(mask)
        made.extend([layer, nn.ReLU()])
        twin.extend([dense, nn.ReLU()])
    x = torch.randn(15, 50)
    for each in (made, twin):
        step = torch.optim.SGD(each.parameters(), 0.01, momentum=0.9)
        for _ in range(3):
            step.zero_grad()
            each(x).square().mean().backward()
            step.step()
    torch.testing.assert_close(made(x), twin(x), rtol=1e-4, atol=1e-5)
    for layer, dense, mask in zip(made[::2], twin[::2], masks, strict=True):
        got: Any = layer.weight
        torch.testing.assert_close(got.to_dense(), dense.weight, rtol=1e-4, atol=1e-6)
        assert 0 < int(mask.count_nonzero()) < mask.numel() / 2
        assert not bool(got.to_dense()[mask == 0].any())


def test_a_format_and_a_sparsifier_of_a_user_say_what_is_missing_until_it_is_there() -> None:
    """d = (a + b) c whose sum and whose gradient are made sparse, each in a format of the user's."""

    @L.register
    class Columns(L.Layout):
        """The stored elements, column by column; values [stored]."""

        name = "sten_columns"
        row: Tensor
        col: Tensor

        @classmethod
        def from_dense(cls, weight: Tensor) -> Columns:
            col, row = weight.t().nonzero(as_tuple=True)
            return cls(*weight.shape, row=row, col=col)

        def pack(self, dense: Tensor) -> Tensor:
            return dense[self.row, self.col]

        def to_dense(self, values: Tensor) -> Tensor:
            return values.new_zeros(self.rows, self.cols).index_put((self.row, self.col), values)

    class Checkered(S.ElementSparsifier):
        """Keeps every other element: a choice that the twin can repeat."""

        def select_mask(self, dense: Tensor, generator: Any = None) -> Tensor:
            return (torch.arange(dense.numel()) % 2 == 0).view(dense.shape)

    mine = ops.Registry(strict=True)
    formats = [(S.KeepAll(), L.Dense, Checkered(), Columns)]
    add = sl.sparsified_op(torch.add, formats, formats, registry=mine)
    a, b, c = (torch.randn(*size, requires_grad=True) for size in ((10, 20), (10, 20), (20, 30)))
    dy = torch.randn(10, 30)
    with mine.active(), pytest.raises(sl.Error, match=r"div.*(?s:.*)sten_columns"):
        torch.div(add(a, b), torch.rand(10, 20))

    @mine.register(torch.mm, inputs=(Columns, L.Dense), outputs=[(S.KeepAll, L.Dense)])
    class Product:
        @staticmethod
        def forward(ctx: Any, w: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(w, x)
            index = w.layout_index
            products = w.stored.unsqueeze(1) * x[index.col]
            return x.new_zeros(index.rows, x.shape[1]).index_add(0, index.row, products)

        @staticmethod
        def backward(ctx: Any, dy: Tensor) -> tuple[Any, Tensor]:
            w, x = ctx.saved_tensors
            index = w.layout_index
            stored = (dy[index.row] * x[index.col]).sum(1)
            dx = torch.zeros_like(x).index_add(0, index.col, w.stored.unsqueeze(1) * dy[index.row])
            return sl.SparseTensor(index, stored), dx

    y = torch.mm(add(a, b), c)
    assert type(y.grad_fn).__name__ == "ProductBackward"
    y.backward(dy)
    twins = [each.detach().clone().requires_grad_() for each in (a, b, c)]
    mask = Checkered().select_mask(twins[0])
    want = torch.mm((twins[0] + twins[1]) * mask, twins[2])
    want.backward(dy)
    torch.testing.assert_close(y, want)
    for each, twin in zip((a, b, c), twins, strict=True):
        grad: Any = each.grad
        if each is not c:
            assert isinstance(grad, sl.SparseTensor) and isinstance(grad.layout_index, Columns)
            grad = grad.to_dense()
        torch.testing.assert_close(grad, twin.grad)


@pytest.mark.parametrize(
    ("layout", "options"), [(L.Csr, {"density": 0.5}), (L.MaskedDense, {"mask": torch.eye(6, 8).bool()})]
)
@pytest.mark.filterwarnings("ignore::sparseloom.ops.DenseFallback")
def test_what_stens_tests_dispatch_is_torchs_result(layout: Any, options: Any) -> None:
    """Sums, statistics, stacks, comparisons, hashes, likes, sizes and in-place sums of sparse tensors."""
    torch.manual_seed(0)
    one: Any = sl.SparseTensor.from_dense(torch.randn(6, 8), layout, **options)
    dense, other = one.to_dense(), torch.randn(6, 8)

    def plain(x: Any) -> Tensor:
        y: Tensor = x.to_dense() if isinstance(x, sl.SparseTensor) else x
        return y

    for call in (
        lambda x: x + other,
        lambda x: torch.add(x, x),
        lambda x: other.clone().add_(x),
        lambda x: torch.std_mean(x),
        lambda x: torch.stack([x, x]),
        lambda x: torch.stack([x, other]),
        lambda x: x == other,
        lambda x: x.clone(),
        lambda x: x.detach(),
        lambda x: 2 * x,
        lambda x: x * 2,
        lambda x: torch.ones_like(x),
        lambda x: x.to(torch.float64),
    ):
        got, want = call(one), call(dense)
        pairs = zip(got, want, strict=True) if isinstance(got, tuple) else [(got, want)]
        for mine, his in pairs:
            torch.testing.assert_close(plain(mine), his)
    assert one in {one} and hash(one) == hash(one)
    assert one.size() == dense.size() and one.size(1) == 8 and one.dim() == 2
    assert layout.name in repr(one) or layout.__name__ in repr(one)
