"""unpack_: sparse layers train a dense weight under their mask, and pack_ makes them what they were."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sparseloom import BlockSparse, Error, InLayout, Semi24, pack_, sparsify_, unpack_
from sparseloom.nn import MaskedLinear

RECIPES = {
    "blocks": BlockSparse(8, density=0.5),
    "semi24": Semi24(),
    "csr": InLayout("csr", density=0.3),
    "coo": InLayout("coo", density=0.3),
    "bitmap": InLayout("bitmap", density=0.3),
    "nm": InLayout("nm", n=1, m=4),
}


def net(recipe):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 48), nn.ReLU(), nn.Linear(48, 16))
    with torch.no_grad():  # 2:4 and n:m take what already fits
        if not isinstance(recipe, BlockSparse):
            for layer in (model[0], model[2]):
                best = layer.weight.abs().unflatten(1, (-1, 4)).argsort(-1, descending=True).argsort(-1)
                layer.weight.mul_((best < (1 if "nm" in repr(recipe) else 2)).flatten(1))
    sparsify_(model, {"[02]": recipe})
    return model


@pytest.mark.parametrize("kind", RECIPES)
def test_a_layer_trains_under_its_mask_and_returns_to_its_layout(kind):
    model = net(RECIPES[kind])
    x, target = torch.randn(8, 32), torch.randn(8, 16)
    expected, kinds = model(x).detach(), [type(layer) for layer in model]
    mask = model[0].to_dense()
    mask = (mask[0] if isinstance(mask, nn.Sequential) else mask).weight != 0
    density = model[0].density
    done = unpack_(model)
    assert [change.layout for change in done.changed] == ["masked", "masked"]
    assert isinstance(model[0], MaskedLinear)
    torch.testing.assert_close(model(x), expected)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        F.mse_loss(model(x), target).backward()
        optimizer.step()
    trained = model(x).detach()
    assert not torch.allclose(trained, expected)
    pack_(model)
    assert [type(layer) for layer in model] == kinds
    assert model[0].density == density
    torch.testing.assert_close(model(x), trained)
    dense = model[0].to_dense()
    dense = dense[0] if isinstance(dense, nn.Sequential) else dense
    assert not dense.weight[~mask].any()


def test_gradients_and_moments_move_and_another_optimizer_is_told():
    model = net(RECIPES["blocks"])
    optimizer, other = torch.optim.Adam(model.parameters()), torch.optim.SGD(model.parameters(), 0.1)
    model(torch.randn(4, 32)).sum().backward()
    optimizer.step()
    weight = model[2].sparse_weights()["values"]
    grad = weight.unpacked(model[2].values.grad)
    moment = weight.unpacked(optimizer.state[model[2].values]["exp_avg"])
    unpack_(model, optimizer=optimizer)
    assert torch.equal(model[2].weight.grad, grad)
    assert torch.equal(optimizer.state[model[2].weight]["exp_avg"], moment)
    with pytest.raises(RuntimeError, match="in no model any more"):
        other.step()


def test_names_choose_and_what_cannot_change_is_told():
    model = net(RECIPES["csr"])
    unpack_(model, "0")
    assert isinstance(model[0], MaskedLinear) and not isinstance(model[2], MaskedLinear)
    before = copy.deepcopy(model.state_dict())
    for names, words in (("1", "sparse linear layer"), ("[", "regular expression")):
        with pytest.raises(Error, match=words):
            unpack_(model, names)
    with pytest.raises(Error, match="the model itself"):
        unpack_(model[2])
    assert before.keys() == model.state_dict().keys()
