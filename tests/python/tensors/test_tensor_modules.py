"""SparseTensors as Parameters of any module: inference mode, checkpoints of another index, torch.func."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from ell import Ell
from torch import Tensor, nn

from sparseloom import Error, SparseTensor, ops
from sparseloom.layouts import Bsr, Coo, Csr, MaskedDense, Nm

#: Layout -> options that store some of a weight [6, 8].
LAYOUTS: dict[Any, dict[str, Any]] = {
    Csr: {"density": 0.3},
    Coo: {"density": 0.3},
    Bsr: {"block": 8},
    Nm: {"n": 1, "m": 4},
    Ell: {"width": 3},
    MaskedDense: {"mask": torch.arange(48).view(6, 8) % 3 == 0},
}
X = torch.randn(3, 8, generator=torch.Generator().manual_seed(9))


def weight(seed: int = 0) -> Tensor:
    return torch.randn(6, 8, generator=torch.Generator().manual_seed(seed))


def module(layout: Any = Csr, seed: int = 0, **options: Any) -> nn.Linear:
    made = nn.Linear(8, 6)
    chosen = options or LAYOUTS[layout]
    made.weight = nn.Parameter(SparseTensor.from_dense(weight(seed), layout, **chosen))
    return made


@pytest.mark.parametrize("layout", LAYOUTS)
def test_inference_mode_reads_tensors_from_outside_and_makes_its_own(layout: Any):
    outside = module(layout).weight
    dense = outside.detach().to_dense()
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore", ops.DenseFallback)
        made = [outside.detach(), outside.data, outside.view(6, 8)]
        assert all(isinstance(each, SparseTensor) and not each.is_inference() for each in made)
        assert all(torch.equal(each.to_dense(), dense) for each in made)
        assert torch.equal(outside.t(), dense.t()) and torch.equal(outside[2], dense[2])
        new = outside * 2
        assert isinstance(new, SparseTensor) and new.is_inference() and new.detach().is_inference()
        assert torch.equal(new.detach().to_dense(), 2 * dense)
        inside = SparseTensor.from_dense(weight(), layout, **LAYOUTS[layout])
        assert torch.equal(inside.detach().to_dense(), dense) and not inside.detach().requires_grad
        outside.mul_(3)
        copied = copy.deepcopy(outside)
    assert torch.equal(outside.detach().to_dense(), 3 * dense) and torch.equal(copied.to_dense(), 3 * dense)
    with pytest.raises(RuntimeError, match="nference"):
        new.requires_grad_()
    outside.sum().backward()
    assert isinstance(outside.grad, SparseTensor)


@pytest.mark.parametrize("layout", [Csr, Coo, Ell])
def test_a_checkpoint_of_another_index_is_refused_or_assigned(layout: Any):
    saved, other = module(layout), module(layout, 1)
    before = other.weight.detach().to_dense().clone()
    with pytest.raises(RuntimeError, match=r"load_state_dict\(assign=True\) takes the index"):
        other.load_state_dict(saved.state_dict())
    assert torch.equal(other.weight.to_dense(), before)
    with torch.no_grad(), pytest.raises(Error, match=r"SparseTensor\.copy_"):
        other.weight.copy_(saved.weight)
    other.load_state_dict(saved.state_dict(), assign=True)
    assert torch.equal(other.weight.to_dense(), saved.weight.to_dense())
    other(X).square().sum().backward()
    saved(X).square().sum().backward()
    assert isinstance(other.weight.grad, SparseTensor) and other.weight.grad.format is layout
    assert torch.equal(other.weight.grad.to_dense(), saved.weight.grad.to_dense())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_checkpoint_of_the_same_index_is_copied(layout: Any):
    saved, other = module(layout), module(layout)
    with torch.no_grad():
        saved.weight.mul_(2)
    other.load_state_dict(copy.deepcopy(saved.state_dict()))
    assert torch.equal(other.weight.to_dense(), saved.weight.to_dense())


def test_an_index_with_room_for_all_elements_takes_them_and_a_dense_tensor_is_cut():
    few, more = module(density=0.2), module(density=0.7)
    assert few.weight.stored.numel() < more.weight.stored.numel()  # the larger ones of one weight
    more.load_state_dict(few.state_dict())
    assert torch.equal(more.weight.to_dense(), few.weight.to_dense())
    assert more.weight.stored.numel() == module(density=0.7).weight.stored.numel()
    mask = few.weight.detach().to_dense() != 0
    few.load_state_dict({"weight": weight(5), "bias": few.bias})
    assert torch.equal(few.weight.to_dense(), weight(5) * mask)
    blocks = module(Bsr)
    blocks.load_state_dict(few.state_dict())
    assert torch.equal(blocks.weight.to_dense(), few.weight.to_dense())


@pytest.mark.filterwarnings("ignore::sparseloom.ops.DenseFallback")
def test_torch_func_gives_the_dense_gradient_which_the_index_packs():
    layer = module()

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(layer, parameters, (X,)).square().sum()

    dense = torch.func.grad(loss)(dict(layer.named_parameters()))["weight"]
    loss(dict(layer.named_parameters())).backward()
    want = layer.weight.grad
    assert type(dense) is Tensor and isinstance(want, SparseTensor)
    got = SparseTensor.from_dense(dense, layer.weight.layout_index)
    torch.testing.assert_close(got.to_dense(), want.to_dense())
    (torchs,) = torch.autograd.grad(loss(dict(layer.named_parameters())), [layer.weight])
    assert isinstance(torchs, SparseTensor) and torch.equal(torchs.to_dense(), want.to_dense())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_data_that_is_assigned_counts(layout: Any):
    parameter, other = module(layout).weight, module(layout).weight
    doubled = 2 * weight() * (parameter.detach().to_dense() != 0)
    parameter.data = other.detach() * 2  # it was ignored
    assert torch.equal(parameter.to_dense(), doubled) and isinstance(parameter, nn.Parameter)
    parameter.data = 2 * torch.ones(6, 8)
    assert torch.equal(parameter.to_dense(), 2.0 * (doubled != 0))
    nn.utils.vector_to_parameters(nn.utils.parameters_to_vector([other]) * 2, [parameter])
    assert torch.equal(parameter.to_dense(), doubled)
    for wrong in (torch.ones(3), other.detach().double(), 3):
        with pytest.raises(Error, match=r"SparseTensor\.data"):
            parameter.data = wrong
    parameter.to_dense().sum().backward()
    assert isinstance(parameter.grad, SparseTensor)


def test_data_of_another_index_is_refused():
    parameter = module().weight
    with pytest.raises(Error, match=r"SparseTensor\.copy_"):
        parameter.data = module(seed=1).weight.detach()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_processes_share_what_is_stored(layout: Any):
    """torch itself shared the storage of a wrapper that has none, and crashed."""
    layer = module(layout)
    y = layer(X).detach()
    assert not layer.weight.is_shared() and layer.share_memory() is layer
    assert layer.weight.is_shared() and layer.weight.stored.is_shared() and torch.equal(layer(X), y)
    with pytest.raises(Error, match="DLPack"):
        torch.from_dlpack(layer.weight.detach())


def test_initialisers_write_what_is_stored():
    parameter = module().weight
    mask = parameter.detach().to_dense() != 0
    for draw in (
        nn.init.orthogonal_,
        nn.init.kaiming_normal_,
        nn.init.trunc_normal_,
        nn.init.xavier_uniform_,
    ):
        before = parameter.detach().to_dense().clone()
        draw(parameter)
        after = parameter.detach().to_dense()
        assert not torch.equal(after, before) and bool((after[~mask] == 0).all())


def test_a_module_on_meta_takes_its_index_from_a_checkpoint():
    layer = module()
    y, saved = layer(X).detach(), copy.deepcopy(layer.state_dict())
    layer.to("meta")
    assert layer.weight.is_meta and isinstance(layer.weight, SparseTensor)
    with pytest.raises(Error, match=r"load_state_dict\(assign=True\)"):
        layer.to_empty(device="cpu")
    layer.load_state_dict(saved, assign=True)
    assert torch.equal(layer(X), y)


X5 = torch.randn(5, 8, generator=torch.Generator().manual_seed(5))
TRANSFORMS: dict[str, Any] = {
    "vmap": lambda model: torch.vmap(model)(X5),
    "jvp": lambda model: torch.func.jvp(model, (X5,), (X5 + 1,))[1],
    "vjp": lambda model: torch.func.vjp(model, X5)[1](model(X5).detach())[0],
    "jacrev": lambda model: torch.func.jacrev(model)(X5[0]),
    "jacfwd": lambda model: torch.func.jacfwd(model)(X5[0]),
}


@pytest.mark.filterwarnings("ignore::sparseloom.ops.DenseFallback", "ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_torch_func_takes_a_module_with_one(layout: Any, transform: str):
    """torch asked for a setup_context, which no implementation has."""
    layer, dense = module(layout), nn.Linear(8, 6)
    with torch.no_grad():
        dense.weight.copy_(layer.weight.to_dense())
        dense.bias.copy_(layer.bias)
    torch.testing.assert_close(TRANSFORMS[transform](layer), TRANSFORMS[transform](dense))
    torch.vmap(layer)(X5).square().sum().backward()
    torch.vmap(dense)(X5).square().sum().backward()
    got, mask = layer.weight.grad, layer.weight.detach().to_dense() != 0
    assert isinstance(got, SparseTensor)
    torch.testing.assert_close(got.to_dense() * mask, dense.weight.grad * mask)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_torch_func_and_jit_cannot_do_is_refused_in_words(layout: Any):
    """torch.jit.save of a traced or scripted one ended the process."""
    layer = module(layout)
    tensor = layer.weight.detach()
    for what in (
        lambda x: tensor.to_dense() @ x,
        lambda x: SparseTensor.of(tensor.layout_index, tensor.stored) @ x,
        lambda x: SparseTensor.from_dense(x.reshape(1, -1), Csr, density=0.5).sum(),
    ):
        with pytest.raises(Error, match=r"outside of torch\.func"):
            torch.vmap(what)(X5)
    with pytest.raises(Error, match=r"torch\.jit\.trace"):
        torch.jit.trace(layer, (X5,))
    for held in (layer, copy.deepcopy(layer), nn.Sequential(layer)):
        with pytest.raises(Error, match=r"torch\.jit\.script"):
            torch.jit.script(held)
    with ops.strict(), pytest.raises(Error, match="an implementation"):
        torch.vmap(layer)(X5)
