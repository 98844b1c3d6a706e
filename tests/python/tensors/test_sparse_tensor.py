"""SparseTensor: values, gradients, copies, devices, files, and optimizers that write into one."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from typing import Any

import pytest
import torch
from ell import Ell
from torch import Tensor, nn

from sparseloom import Error, SparseTensor, ops
from sparseloom.layouts import Bsr, Coo, CooNd, Csr, MaskedDense, Nm, Nmg, Semi24Layout

#: Layout -> options that store some of a weight [6, 8].
LAYOUTS: dict[Any, dict[str, Any]] = {
    Csr: {"density": 0.3},
    Coo: {"density": 0.3},
    CooNd: {"dense_dim": 1},
    Bsr: {"block": 8},
    Nm: {"n": 1, "m": 4},
    Nmg: {"n": 1, "m": 4, "g": 2},
    Ell: {"width": 3},
    MaskedDense: {"mask": torch.arange(48).view(6, 8) % 3 == 0},
    Semi24Layout: {"prune": "magnitude"},
}
ALL = pytest.mark.parametrize("layout", LAYOUTS)


@pytest.fixture(autouse=True)
def nothing_computes_densely() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error", ops.DenseFallback)
        yield


def weight(seed: int = 0) -> Tensor:
    return torch.randn(6, 8, generator=torch.Generator().manual_seed(seed))


def made(layout: Any, dense: Tensor | None = None) -> SparseTensor:
    return SparseTensor.from_dense(weight() if dense is None else dense, layout, **LAYOUTS[layout])


@ALL
def test_it_holds_what_the_layout_stores(layout: Any):
    tensor = made(layout)
    mask = tensor.to_dense() != 0
    assert tensor.format is layout and tensor.shape == (6, 8) and 0 < int(mask.sum()) <= 48
    assert torch.equal(tensor.to_dense(), weight().masked_fill(~mask, 0))
    assert tensor.dtype == torch.float32 and not tensor.requires_grad and layout.name in repr(tensor)
    names, meta = tensor.__tensor_flatten__()
    parts = {name: getattr(tensor, name) for name in names}
    assert all(type(each) is Tensor for each in parts.values())
    again = SparseTensor.__tensor_unflatten__(parts, meta, tensor.shape, tensor.stride())
    assert again.stored is tensor.stored and torch.equal(again.to_dense(), tensor.to_dense())


@ALL
def test_copies_pickles_and_moves(layout: Any):
    tensor = made(layout).requires_grad_()
    buffer = io.BytesIO()
    torch.save(tensor, buffer)
    buffer.seek(0)
    others = pickle.loads(pickle.dumps(tensor)), copy.deepcopy(tensor), torch.load(buffer, weights_only=False)
    for other in others:
        assert other.format is layout and other.requires_grad and other.stored is not tensor.stored
        assert torch.equal(other.detach().to_dense(), tensor.detach().to_dense())
    assert tensor.detach().stored.data_ptr() == tensor.stored.data_ptr()
    assert tensor.clone().stored.data_ptr() != tensor.stored.data_ptr()
    half, meta = tensor.to(torch.bfloat16), tensor.to("meta")
    assert half.dtype == half.stored.dtype == torch.bfloat16 and half.requires_grad
    assert meta.device.type == meta.stored.device.type == "meta"
    assert all(part.is_meta for part in meta.layout_index.tensors().values())
    assert torch.equal(half.float().to_dense(), tensor.to_dense().bfloat16().float())


@ALL
def test_gradients_go_both_ways_through_it(layout: Any):
    dense = weight().requires_grad_()
    tensor = made(layout, dense)
    factor = weight(1)
    (tensor.to_dense() * factor).sum().backward()
    mask = tensor.detach().to_dense() != 0
    assert torch.equal(dense.grad, factor.masked_fill(~mask, 0))
    leaf = made(layout).requires_grad_()
    (leaf.to_dense() * factor).sum().backward()
    assert leaf.grad.format is layout and torch.equal(leaf.grad.to_dense(), dense.grad)
    stored = leaf.stored.clone().requires_grad_()
    (SparseTensor.of(leaf.layout_index, stored).to_dense() * factor).sum().backward()
    assert torch.equal(stored.grad, leaf.layout_index.pack(factor))


@pytest.mark.parametrize("layout", [Csr, Bsr, Nmg])
def test_a_second_derivative_of_a_product_is_refused(layout: Any):
    """The gradient of a gradient by the stored values got lost, and no error said so."""
    tensor, x = made(layout).requires_grad_(), torch.randn(8, 3, requires_grad=True)
    rows = torch.randn(3, 8, requires_grad=True)
    for y, by in (
        (tensor @ x, x),
        (nn.functional.linear(rows, tensor), rows),
        (nn.functional.linear(tensor, rows), rows),
    ):
        (gradient,) = torch.autograd.grad(y.square().sum(), by, create_graph=True)
        with pytest.raises(RuntimeError, match="differentiate twice"):
            gradient.square().sum().backward()


@ALL
def test_nothing_is_copied_but_what_is_asked_for(layout: Any):
    dense, tensor = weight(), made(layout)
    stored = tensor.stored.data_ptr()
    kept = SparseTensor(tensor.layout_index, tensor.stored, (6, 2, 4))
    for other in (kept, tensor.view(2, 3, 8), tensor.detach(), nn.Parameter(tensor, requires_grad=False)):
        assert other.stored.data_ptr() == stored
        for name, part in other.layout_index.tensors().items():
            assert part.data_ptr() == tensor.layout_index.tensors()[name].data_ptr()
    assert torch.equal(kept.to_dense(), tensor.to_dense().view(6, 2, 4)) and dense.equal(weight())


def test_any_shape_is_stored_as_a_matrix():
    dense = torch.randn(4, 3, 5)
    tensor = SparseTensor.from_dense(dense, "csr")
    assert (tensor.layout_index.rows, tensor.layout_index.cols) == (12, 5) and torch.equal(
        tensor.to_dense(), dense
    )
    assert torch.equal(SparseTensor.from_dense(dense[0, 0], "coo").to_dense(), dense[0, 0])
    with pytest.raises(Error, match="a matrix of the elements"):
        SparseTensor.of(tensor.layout_index, tensor.stored, (15, 5))
    with pytest.raises(Error, match="layout's name"):
        SparseTensor.from_dense(dense, 3)  # type: ignore[arg-type]
    with pytest.raises(Error, match="a matrix of the elements"):
        SparseTensor.from_dense(torch.ones(5, 12), tensor.layout_index)
    for wrong in (None, [1.0], torch.ones(2, 2).to_sparse()):
        with pytest.raises(Error, match="a dense tensor"):
            SparseTensor.from_dense(wrong, "csr")  # type: ignore[arg-type]
    with pytest.raises(Error, match="without a graph"):
        copy.deepcopy(SparseTensor.from_dense(dense.requires_grad_(), "csr"))


@pytest.mark.parametrize("shape", [(4, 0), (0, 8), (2, 3, 0)])
def test_a_tensor_without_elements(shape: tuple[int, ...]):
    dense = torch.zeros(shape, requires_grad=True)
    tensor = SparseTensor.from_dense(dense, "csr")
    assert tensor.layout_index.cols == shape[-1] and tensor.to_dense().shape == shape
    tensor.to_dense().sum().backward()
    assert dense.grad.shape == shape


def test_a_mask_of_all_elements_writes_where_they_are_stored():
    tensor = made(Csr)
    before = tensor.to_dense()
    tensor[weight() > 0] = 3.0
    assert torch.equal(tensor.to_dense(), before.masked_fill(before > 0, 3))


@ALL
def test_draws_fill_what_is_stored(layout: Any):
    tensor = made(layout)
    mask = tensor.layout_index.to_dense(torch.ones_like(tensor.stored)) != 0
    for draw in (nn.init.normal_, nn.init.uniform_, nn.init.xavier_uniform_):
        stored = draw(tensor.zero_()).to_dense()
        assert bool((stored[mask] != 0).all()) and not stored[~mask].any()
        tensor.layout_index.require_consistent("test", tensor.stored)


@ALL
def test_writes_take_others_at_the_stored_places(layout: Any):
    tensor, other = made(layout), weight(3)
    mask = tensor.to_dense() != 0
    want = (tensor.to_dense() + 2 * other).masked_fill(~mask, 0)
    tensor.add_(other, alpha=2)
    torch.testing.assert_close(tensor.to_dense(), want)
    tensor.mul_(other[:1])
    torch.testing.assert_close(tensor.to_dense(), want * other[:1])
    tensor.copy_(other)
    assert torch.equal(tensor.to_dense(), other.masked_fill(~mask, 0))
    assert int(tensor.zero_().stored.count_nonzero()) == 0


@pytest.mark.parametrize("layout", [Bsr, Nm, Nmg, Semi24Layout])
def test_writes_leave_padding_zero(layout: Any):
    """Blocks and groups reach over the edge of W. What an optimizer divides there, 0 / 0, is NaN, which the
    next product would multiply."""
    dense = torch.randn(5, 7, generator=torch.Generator().manual_seed(0))
    tensor = SparseTensor.from_dense(dense, layout, **LAYOUTS[layout])
    index, mask = tensor.layout_index, tensor.to_dense() != 0
    assert index.padded and not Csr.from_dense(dense).padded and not Bsr.from_dense(weight()[:0], 8).padded
    tensor.addcdiv_(torch.ones(5, 7), torch.full((5, 7), 2.0))
    torch.testing.assert_close(tensor.to_dense(), (dense + 0.5).masked_fill(~mask, 0))
    for write in (lambda t: t.add_(1), lambda t: t.fill_(2.0), lambda t: t.copy_(torch.tensor(3.0))):
        write(tensor)
        index.require_consistent("test", tensor.stored)
    assert torch.equal(tensor.to_dense(), mask * 3.0)


def test_adagrad_trains_blocks_that_reach_over_the_edge():
    parameter = nn.Parameter(SparseTensor.from_dense(weight()[:5, :7], Bsr, block=8))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ops.DenseFallback)  # the sum of squares is dense
        optimizer = torch.optim.Adagrad([parameter], 0.1)
        for _ in range(2):
            (parameter @ torch.ones(7, 2)).square().sum().backward()
            optimizer.step()
    assert bool(parameter.detach().stored.isfinite().all())


def test_what_leaves_zero_zero_stays_sparse_and_is_right():
    tensor = made(Csr)
    dense = tensor.to_dense()
    for function in (
        torch.relu,
        torch.abs,
        torch.tanh,
        torch.neg,
        lambda t: t * 3,
        lambda t: t / 2,
        lambda t: t + t,
    ):
        got = function(tensor)
        assert got.format is Csr
        torch.testing.assert_close(got.to_dense(), function(dense))


def test_a_module_holds_one_as_a_parameter():
    module = nn.Module()
    module.weight = nn.Parameter(made(Ell))
    module.double()
    assert module.weight.dtype == torch.float64 and module.weight.format is Ell
    other = nn.Module()
    other.weight = nn.Parameter(torch.zeros_like(module.weight))
    other.load_state_dict(module.state_dict())
    assert torch.equal(other.weight.detach().to_dense(), module.weight.detach().to_dense())


def test_gradients_are_clipped_and_unscaled_where_they_are_stored():
    parameter = nn.Parameter(made(Csr))
    twin = nn.Parameter(parameter.detach().to_dense())
    factor, scaler = weight(1), torch.amp.GradScaler("cpu", init_scale=4.0)
    optimizers = [torch.optim.SGD([each], 0.1) for each in (parameter, twin)]
    mask = twin.detach() != 0
    for each, optimizer in ((parameter, optimizers[0]), (twin, optimizers[1])):
        dense = each.to_dense() if each is parameter else each * mask
        scaler.scale((dense * factor).sum()).backward()
        scaler.unscale_(optimizer)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ops.DenseFallback)  # the norm
            torch.nn.utils.clip_grad_norm_([each], 0.5)
        scaler.step(optimizer)
    torch.testing.assert_close(parameter.grad.to_dense(), twin.grad)
    torch.testing.assert_close(parameter.detach().to_dense(), twin.detach())


class Saved:
    """Pickles as a call of ``rebuild``."""

    def __init__(self, rebuild: Any, state: Any) -> None:
        self.state = rebuild, state

    def __reduce__(self) -> Any:
        return self.state


def loaded(value: Any, weights_only: bool = True) -> Any:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=weights_only)


@ALL
def test_torch_load_reads_one_with_weights_only(layout: Any):
    """It was refused, since no class of it was a safe global."""
    parameter = nn.Parameter(made(layout))
    other = loaded({"weight": parameter})["weight"]
    assert isinstance(other, SparseTensor) and isinstance(other, nn.Parameter) and other.format is layout
    assert torch.equal(other.detach().to_dense(), parameter.detach().to_dense())
    assert other.layout_index.describe() == parameter.layout_index.describe()


DAMAGES: dict[str, Any] = {
    "a column outside": lambda fields: fields["col"].__setitem__(0, 8),
    "a row outside": lambda fields: fields["crow"].__setitem__(-1, 99),
    "a field too few": lambda fields: fields.pop("col"),
    "a field too many": lambda fields: fields.update(more=1),
    "a field of another kind": lambda fields: fields.update(col="col"),
    "rows of another shape": lambda fields: fields.update(crow=fields["crow"][:-1]),
}


@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_index_in_a_file_is_refused(damage: str, weights_only: bool):
    rebuild, (index, *rest) = made(Csr).__reduce_ex__(2)
    name, rows, cols, fields, strict = copy.deepcopy(index)
    DAMAGES[damage](fields)
    with pytest.raises(Error):
        loaded(Saved(rebuild, ((name, rows, cols, fields, strict), *rest)), weights_only)


@pytest.mark.parametrize("layout", [Csr, Coo, Bsr, Nm, Ell])
def test_values_that_do_not_belong_to_the_index_of_a_file_are_refused(layout: Any):
    rebuild, (index, stored, *rest) = made(layout).__reduce_ex__(2)
    name, rows, cols, fields, strict = index
    for wrong in (
        (index, stored[:0], *rest),
        (index, "stored", *rest),
        (index, stored, (5, 8), *rest[1:]),
        ((name, "rows", cols, fields, strict), stored, *rest),
        (("nobody's", rows, cols, fields, strict), stored, *rest),
        (index[:2], stored, *rest),
        (None, stored, *rest),
    ):
        with pytest.raises(Error):
            loaded(Saved(rebuild, wrong))
