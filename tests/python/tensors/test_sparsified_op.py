"""sparsified_op: results and gradients of torch functions in sparse formats, beside masked dense twins."""

from __future__ import annotations

import copy
import pickle
import threading
import warnings
from typing import Any

import pytest
import torch
from ell import Ell
from torch import Tensor
from torch.nn import functional

import sparseloom as sl
from sparseloom import Error, SparseTensor, ops
from sparseloom import layouts as L
from sparseloom import sparsify as S


def operand(seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape or (6, 8), generator=generator).requires_grad_()


#: Sparsifier -> layouts that store what it leaves.
FORMATS: dict[Any, tuple[Any, ...]] = {
    S.KeepAll(): (L.Dense, L.Csr, L.Coo, L.MaskedDense),
    S.ScalarFraction(0.75): (L.Dense, L.Csr, L.Coo, L.MaskedDense),
    S.ScalarThreshold(0.5): (L.Csr,),
    S.BlockwiseFraction(0.5, 2): (L.Csr, L.MaskedDense),
    S.BlockwiseFraction(0.5, 8): (L.Bsr,),
    S.ScalarFraction(0.9): (L.Bsr,),
    S.PerBlockNM(2, 4): (L.Semi24Layout, L.Csr, L.Nm),
    S.PerBlockNM(3, 5): (L.Nm,),
    S.PerBlockNM(1, 4): (L.Semi24Layout,),  # stores places that the mask does not name
    S.SameFormat(torch.arange(48).view(6, 8) % 3 == 0): (L.Csr, L.Dense),
}
CASES = [(sparsifier, layout) for sparsifier, layouts in FORMATS.items() for layout in layouts]


@pytest.mark.parametrize(("sparsifier", "layout"), CASES, ids=str)
def test_results_and_gradients_are_those_of_the_masked_twin(sparsifier: Any, layout: Any):
    one, other, dy = operand(0), operand(1), operand(2).detach()
    add = sl.sparsified_op(torch.add, [(S.KeepAll(), L.Dense, sparsifier, layout)])
    y = add(one, other)
    dense = (one + other).detach()
    mask = sparsifier.select_mask(dense)
    got = y if layout is L.Dense else y.to_dense()
    assert (type(y) is Tensor) if layout is L.Dense else (y.format is layout)
    assert torch.equal(got, dense.masked_fill(~mask, 0))
    (got * dy).sum().backward()
    for each in (one, other):
        assert torch.equal(each.grad, dy.masked_fill(~mask, 0))


def test_inline_then_external_as_in_the_seed():
    add = sl.sparsified_op(
        torch.add,
        out_fmt=[(S.KeepAll(), L.Coo, S.RandomFraction(0.5), L.Csr)],
        grad_out_fmt=[S.DENSE],
    )
    torch.manual_seed(0)
    one, other = operand(0, 40, 50), operand(1, 40, 50)
    y = add(one, other)
    assert y.format is L.Csr and 800 < y.stored.numel() < 1200
    mask = y.detach().to_dense() != 0
    assert torch.equal(y.detach().to_dense(), (one + other).detach().masked_fill(~mask, 0))
    y.to_dense().sum().backward()
    assert torch.equal(one.grad, mask.float()) and torch.equal(other.grad, mask.float())


@pytest.mark.parametrize("layout", [L.Dense, L.Csr, L.MaskedDense])
def test_gradients_become_sparse_before_the_operators_backward(layout: Any):
    sparsifier = S.ScalarFraction(0.5)
    multiply = sl.sparsified_op(torch.mul, [S.DENSE], [(sparsifier, "dense", S.KeepAll(), layout)])
    one, other, dy = operand(0), operand(1), operand(2).detach()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ops.DenseFallback)  # torch's own gradient of mul takes no Csr
        multiply(one, other).backward(dy)
    kept = sparsifier.sparsified(dy)
    torch.testing.assert_close(one.grad, kept * other.detach())
    torch.testing.assert_close(other.grad, kept * one.detach())


def test_a_sparse_gradient_reaches_a_registered_backward():
    mine, seen = ops.Registry(), []

    class Double:
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return 2 * x

        @staticmethod
        def backward(ctx: Any, dy: Tensor) -> Tensor:
            seen.append(dy)
            return 2 * (dy.to_dense() if isinstance(dy, SparseTensor) else dy)

    mine.register(torch.ravel, inputs=(L.Dense,), outputs=[(S.KeepAll, L.Dense)])(Double)
    fmt = [(S.ScalarFraction(0.5), L.Dense, S.KeepAll(), L.Csr)]
    double = sl.sparsified_op(torch.ravel, [S.DENSE], fmt, registry=mine, strict=True)
    x, dy = operand(0), operand(1).detach()
    double(x).backward(dy)
    assert seen[0].format is L.Csr
    torch.testing.assert_close(x.grad, 2 * S.ScalarFraction(0.5).sparsified(dy))


def test_an_implementation_computes_operator_and_inline_sparsifier_in_one():
    mine = ops.Registry()

    class ReluCsr:
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> SparseTensor:
            (sparsifier,) = ctx.sparsifiers
            assert ctx.needs_input_grad[0]
            mask = x > sparsifier.threshold
            ctx.save_for_backward(mask)
            index = L.Csr.from_dense(x, mask=mask)
            return SparseTensor(index, index.pack(x))

        @staticmethod
        def backward(ctx: Any, dy: Tensor) -> Tensor:
            (mask,) = ctx.saved_tensors
            return dy.to_dense() * mask

    mine.register(torch.relu, inputs=(L.Dense,), outputs=[(S.ScalarThreshold, L.Csr)])(ReluCsr)
    relu = sl.sparsified_op(torch.relu, [(S.ScalarThreshold(0.5), L.Csr, S.KeepAll(), L.Csr)], registry=mine)
    x = operand(0)
    y = relu(x)
    assert y.format is L.Csr and type(y.grad_fn).__name__ == "ReluCsrBackward"
    want = x.detach().masked_fill(x.detach() <= 0.5, 0)
    assert torch.equal(y.detach().to_dense(), want)
    y.to_dense().sum().backward()
    assert torch.equal(x.grad, (want != 0).float())


def test_a_registered_way_sees_the_context():
    mine, seen = ops.Registry(), []

    @mine_register(mine, S.ScalarFraction, L.Dense, Ell)
    def to_ell(sparsifier: S.ScalarFraction, context: S.Context) -> Ell:
        seen.append(context)
        return Ell.from_dense(
            context.weight, width=round((1 - sparsifier.fraction) * context.weight.shape[1])
        )

    fmt = [(S.KeepAll(), L.Dense, S.ScalarFraction(0.75), Ell)]
    gelu = sl.sparsified_op(functional.gelu, fmt, registry=mine)
    x, dy = operand(0), operand(1).detach()
    y = gelu(x, approximate="tanh")
    assert y.format is Ell and y.stored.shape == (6, 2) and y.registry is mine
    want = functional.gelu(x, approximate="tanh")
    assert torch.equal(y.detach().to_dense(), y.layout_index.to_dense(y.layout_index.pack(want.detach())))
    y.backward(dy)
    grad = torch.autograd.grad(want, x, y.layout_index.to_dense(y.layout_index.pack(dy)))[0]
    torch.testing.assert_close(x.grad, grad)
    gelu(x)
    assert [each.step for each in seen] == [0, 1] and seen[0].shape == (6, 8)
    with pytest.raises(Error, match="registered for"):
        wrong = ops.Registry()
        mine_register(wrong, S.ScalarFraction, L.Dense, Ell)(lambda sparsifier, context: context.weight)
        sl.sparsified_op(torch.neg, fmt, registry=wrong)(x)


def mine_register(registry: ops.Registry, sparsifier: Any, source: Any, target: Any) -> Any:
    with registry.active():
        return S.register(sparsifier, source=source, target=target)


def test_a_way_may_bring_values_of_its_own():
    mine = ops.Registry()

    @mine_register(mine, S.RandomFraction, L.Dense, L.Csr)
    def rescaled(sparsifier: S.RandomFraction, context: S.Context) -> SparseTensor:
        index = L.Csr.from_dense(context.weight, mask=sparsifier.select(context))
        return SparseTensor(index, index.pack(context.weight) / (1 - sparsifier.fraction))

    drop = sl.sparsified_op(torch.neg, [(S.KeepAll(), L.Dense, S.RandomFraction(0.5), L.Csr)], registry=mine)
    x = operand(0)
    y = drop(x).detach().to_dense()
    assert torch.equal(y, torch.where(y != 0, -2 * x.detach(), 0)) and 0 < int((y != 0).sum()) < 48


def test_learned_sparsifiers_are_sparsifiers():
    class Signed(S.Learned):
        def scores(self, context: S.Context) -> Tensor:
            return context.weight

    neg = sl.sparsified_op(torch.neg, [(S.KeepAll(), L.Dense, Signed(0.5), L.Csr)])
    y = neg(operand(0)).detach().to_dense().flatten()
    assert set(y.nonzero().flatten().tolist()) == set((-operand(0)).flatten().topk(24).indices.tolist())


def test_same_format_keeps_what_is_stored():
    tensor = SparseTensor.from_dense(operand(0).detach(), "csr", density=0.25)
    double = sl.sparsified_op(torch.mul, [(S.SameFormat(), L.Csr, S.SameFormat(), L.Csr)])
    assert double(tensor, 2).layout_index.col is tensor.layout_index.col
    with pytest.raises(Error, match="mask of what was kept"):
        double(operand(0), 2)


def test_several_results_copies_pickles_and_refusals():
    fmt = (S.KeepAll(), L.Dense, S.ScalarFraction(0.5), L.Csr)
    both = sl.sparsified_op(torch.aminmax, [fmt, S.DENSE])
    low, high = both(operand(0), dim=1)
    assert low.format is L.Csr and type(high) is Tensor
    for again in (copy.deepcopy(both), pickle.loads(pickle.dumps(both))):
        assert again(operand(0), dim=1)[0].format is L.Csr
    x = operand(0)
    with pytest.raises(Error, match="1 results of neg"):
        sl.sparsified_op(torch.neg, [fmt, fmt])(x)
    with pytest.raises(Error, match="1 results of equal, a bool"):
        sl.sparsified_op(torch.equal, [S.DENSE])(x, x)
    for formats in (None, 3, S.DENSE[1]):
        with pytest.raises(Error, match="a list as out_fmt"):
            sl.sparsified_op(torch.neg, formats)
    with pytest.raises(Error, match="Registry"):
        sl.sparsified_op(torch.neg, [fmt], registry=3)
    with pytest.raises(Error, match="a gradient's format for each result"):
        sl.sparsified_op(torch.neg, [fmt], [S.DENSE, S.DENSE])
    for wrong in (None, (S.KeepAll, L.Dense, S.KeepAll(), L.Csr), (S.KeepAll(), L.Dense, L.Csr, L.Csr)):
        with pytest.raises(Error):
            sl.sparsified_op(torch.neg, [wrong])
    with pytest.raises(Error, match=r"semi24"):
        sl.sparsified_op(torch.neg, [(S.KeepAll(), L.Dense, S.ScalarFraction(0.1), L.Semi24Layout)])(x)
    with pytest.raises(Error, match=r"\[ell_rows\] expected elements that it can store, got 43 of"):
        sl.sparsified_op(torch.neg, [(S.KeepAll(), L.Dense, S.ScalarFraction(0.1), Ell)])(x)
    with pytest.raises(Error, match="a sparsifier with its arguments"):
        sl.sparsified_op(torch.neg, [(S.KeepAll(), L.Dense, object(), L.Csr)])
    unregistered = type("Unregistered", (), {})()  # its class may be registered until the first use
    with pytest.raises(Error, match="a mask or a registered way"):
        sl.sparsified_op(torch.neg, [(S.KeepAll(), L.Dense, unregistered, L.Csr)])(x)


def test_strict_reaches_the_operator():
    tensor = SparseTensor.from_dense(operand(0).detach(), "csr", density=0.25)
    softmax = sl.sparsified_op(torch.softmax, [S.DENSE], strict=True)
    with pytest.raises(Error, match=r"_softmax"):
        softmax(tensor, 1)


def test_a_backward_pass_in_another_thread_finds_the_registry_of_the_forward_pass():
    mine = ops.Registry()
    mine_register(mine, S.ScalarFraction, L.Dense, Ell)(
        lambda sparsifier, context: Ell.from_dense(context.weight, width=1)
    )
    x, dy = operand(0), operand(1).detach()
    with mine.active():
        y = sl.sparsified_op(torch.mul, [S.DENSE], [(S.KeepAll(), L.Dense, S.ScalarFraction(0.5), Ell)])(x, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ops.DenseFallback)
        thread = threading.Thread(target=y.backward, args=(dy,))
        thread.start()
        thread.join()
    assert torch.equal(x.grad != 0, dy.abs() == dy.abs().amax(1, keepdim=True))
