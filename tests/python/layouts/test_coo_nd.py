"""CooNd: coordinates in any number of dimensions, with and without dense ones, beside torch's own."""

from __future__ import annotations

import pickle
import warnings

import pytest
import torch
from torch import Tensor

from sparseloom import Error, SparseTensor, ops, sparsified_op
from sparseloom import sparsify as S
from sparseloom.layouts import CooNd

#: Shape -> the number of dense dimensions.
SHAPES = [
    ((7,), 0),
    ((6, 8), 0),
    ((6, 8), 1),
    ((3, 4, 5), 0),
    ((3, 4, 5), 1),
    ((3, 4, 5), 2),
    ((2, 3, 2, 4, 3), 2),
]
EACH = pytest.mark.parametrize(("shape", "dense_dim"), SHAPES)


def tensor(shape: tuple[int, ...], dense_dim: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Random entries, of which some two thirds are zero."""
    generator = torch.Generator().manual_seed(len(shape))
    sparse = shape[: len(shape) - dense_dim]
    kept = torch.rand(sparse, generator=generator) < 0.35
    kept[(0,) * len(sparse)] = True
    values = torch.randn(shape, generator=generator)
    return (values * kept.reshape(*sparse, *[1] * dense_dim)).to(dtype)


@EACH
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_it_stores_what_torch_stores(shape: tuple[int, ...], dense_dim: int, dtype: torch.dtype):
    dense = tensor(shape, dense_dim, dtype)
    theirs = dense.to_sparse(len(shape) - dense_dim)
    layout, values = CooNd.from_torch(theirs)
    made = CooNd.from_dense(dense, dense_dim=dense_dim)
    for each in (layout, made):
        assert each.indices.dtype == torch.int32 and torch.equal(each.indices.long(), theirs.indices())
        assert each.shape == shape and each.dense_dim == dense_dim
        each.require_consistent("test", values)
    assert torch.equal(values, theirs.values()) and torch.equal(made.pack(dense), values)
    assert torch.equal(layout.to_dense(values).reshape(shape), dense)
    again = layout.to_torch(values)
    assert again.is_coalesced() and torch.equal(again.to_dense(), dense)
    assert again.values().data_ptr() == values.data_ptr()


@pytest.mark.parametrize("dense_dim", [0, 1])
def test_unsorted_entries_and_duplicates_are_sorted_and_summed_once(dense_dim: int):
    indices = torch.tensor([[1, 0, 1, 0, 1], [2, 1, 2, 1, 0], [0, 3, 0, 0, 1]])
    values = torch.tensor([1.0, 5, 2**-9, 0, 7], dtype=torch.bfloat16)
    shape: tuple[int, ...] = (2, 3, 4)
    if dense_dim:
        values, shape = torch.stack([values, -values], 1), (2, 3, 4, 2)
    theirs = torch.sparse_coo_tensor(indices, values, shape)
    for layout, summed in (CooNd.from_entries(indices, values, shape), CooNd.from_torch(theirs)):
        assert layout.indices.tolist() == [[0, 0, 1, 1], [1, 1, 0, 2], [0, 3, 1, 0]]
        first = summed[:, 0] if dense_dim else summed
        assert first.tolist() == [0, 5, 7, 1]  # 1 + 2^-9 rounds to 1, once; a stored zero stays


def test_nan_and_a_row_of_one_element_are_stored_and_empty_is_empty():
    dense = torch.zeros(4, 3, 2)
    dense[1, 2, 1], dense[3, 0, 0] = float("nan"), -0.0
    assert CooNd.from_dense(dense).indices.tolist() == [[1], [2], [1]]
    assert CooNd.from_dense(dense, dense_dim=2).pack(dense).shape == (1, 3, 2)
    for shape, dense_dim in (((4, 3, 2), 1), ((0, 3), 0), ((4, 0), 1), ((4, 0), 0)):
        empty = torch.zeros(shape)
        layout = CooNd.from_dense(empty, dense_dim=dense_dim)
        values = layout.pack(empty)
        assert values.shape == (0, *shape[len(shape) - dense_dim :])
        assert torch.equal(layout.to_dense(values).reshape(shape), empty)
        layout.require_consistent("test", values)


def test_an_index_that_is_out_of_order_outside_or_too_short_is_refused():
    for indices, says in (
        ([[0, 0], [1, 1]], r"entry 1 at \[0, 1\] behind \[0, 1\].*from_entries"),
        ([[1, 0], [0, 2]], r"entry 1 at \[0, 2\] behind \[1, 0\]"),
        ([[0, 1], [0, 3]], "3 along dimension 1 of entry 1"),
        ([[-1, 1], [0, 2]], "-1 along dimension 0 of entry 0"),
    ):
        layout = CooNd.at(torch.tensor(indices), (2, 3, 4), 1)
        with pytest.raises(Error, match=says):
            SparseTensor.of(layout, torch.ones(2, 4), (2, 3, 4))
    layout = CooNd.at(torch.tensor([[0, 1], [0, 2]]), (2, 3, 4), 1)
    layout.require_consistent("test", torch.ones(2, 4))
    with pytest.raises(Error, match=r"values \[2, 4\]"):
        layout.require_consistent("test", torch.ones(2, 3))
    with pytest.raises(Error, match="7 along dimension 0 of entry 0"):
        CooNd.from_entries(torch.tensor([[7]]), torch.ones(1), (3,))
    with pytest.raises(Error, match="one entry for each place"):
        CooNd.from_entries(torch.tensor([[1]]), torch.ones(1, 2), (3, 3))
    with pytest.raises(Error, match="at least one sparse dimension"):
        CooNd.from_dense(torch.ones(2, 2), dense_dim=2)
    with pytest.raises(Error, match="4 elements"):
        CooNd.from_dense(torch.ones(2, 2), (3, 2))
    for other in (torch.ones(2, 2), torch.ones(2, 2).to_sparse_csr()):
        with pytest.raises(Error, match="a sparse_coo tensor"):
            CooNd.from_torch(other)


def test_too_many_entries_are_an_error_without_memory():
    many, meta = 2**31, torch.device("meta")
    index, says = torch.empty(many, dtype=torch.int64, device=meta), "at most 2\\^31 - 1 stored elements"
    with pytest.raises(Error, match=says):
        CooNd.at(index.expand(3, many), (2000, 2000, 2000))
    with pytest.raises(Error, match=says):
        CooNd.from_entries(index.expand(3, many), torch.empty(many, device=meta), (2000, 2000, 2000))
    with pytest.raises(Error, match="places along a dimension"):
        CooNd.at(torch.zeros(2, 1), (many, 2), 0)
    assert (
        CooNd.at(torch.zeros(3, 1, dtype=torch.long), (many - 1, many - 1, 2)).cols == 2
    )  # none is made dense


@EACH
def test_the_generic_operators_and_gradients_are_those_of_the_dense_tensor(
    shape: tuple[int, ...], dense_dim: int
):
    dense = tensor(shape, dense_dim).requires_grad_()
    made = SparseTensor.from_dense(dense, CooNd, shape=shape, dense_dim=dense_dim)
    assert made.shape == shape and torch.equal(made.to_dense(), dense)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ops.DenseFallback)
        kept = (2 * made).relu() + made.tanh().relu()
        assert kept.format is CooNd
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ops.DenseFallback)
        loss = (kept.sum(-1) * torch.arange(1.0, shape[-1] + 1).sum()).square().sum() + made.exp().sum()
        loss.backward()
    twin = dense.detach().clone().requires_grad_()
    want = (2 * twin).relu() + twin.tanh().relu()
    ((want.sum(-1) * torch.arange(1.0, shape[-1] + 1).sum()).square().sum() + twin.exp().sum()).backward()
    stored = CooNd.from_dense(dense, dense_dim=dense_dim)
    mask = stored.to_dense(torch.ones_like(stored.pack(dense))).reshape(shape)
    torch.testing.assert_close(dense.grad, twin.grad * mask)
    again = pickle.loads(pickle.dumps(made.detach()))
    assert again.format is CooNd and torch.equal(again.to_dense(), dense)
    assert made.detach().double().to_dense().dtype == torch.float64


@pytest.mark.parametrize("dense_dim", [0, 1])
def test_a_matrix_multiplies_and_an_optimizer_keeps_the_format(dense_dim: int):
    dense, x = tensor((6, 8), dense_dim), torch.randn(8, 3, generator=torch.Generator().manual_seed(1))
    made = SparseTensor.from_dense(dense, CooNd, dense_dim=dense_dim).requires_grad_()
    twin = dense.clone().requires_grad_()
    mask = made.layout_index.to_dense(torch.ones_like(made.stored))
    optimizers = [torch.optim.Adam([each], 0.1) for each in (made, twin)]
    for _ in range(3):
        for each, optimizer in zip((made, twin), optimizers, strict=True):
            optimizer.zero_grad()
            (each @ x).square().sum().backward()
            if each is twin:
                twin.grad *= mask
            optimizer.step()
    assert made.grad is not None and made.grad.format is CooNd  # type: ignore[attr-defined]
    torch.testing.assert_close(made.to_dense(), twin)


def test_sparsified_results_may_lie_in_it():
    add = torch.randn(5, 4), torch.randn(5, 4)
    made = sparsified_op(torch.add, [(S.ScalarThreshold(0.5), CooNd, S.KeepAll(), CooNd)])(*add)
    whole = add[0] + add[1]
    assert made.format is CooNd and torch.equal(made.to_dense(), whole * (whole.abs() > 0.5))


@pytest.mark.gpu
@EACH
def test_gpu_it_holds_and_gives_gradients(shape: tuple[int, ...], dense_dim: int):
    dense = tensor(shape, dense_dim).cuda().requires_grad_()
    made = SparseTensor.from_dense(dense, CooNd, shape=shape, dense_dim=dense_dim)
    assert made.is_cuda and torch.equal(made.to_dense(), dense)
    (2 * made).relu().to_dense().sum().backward()
    assert torch.equal(dense.grad, 2.0 * (dense.detach() > 0))
