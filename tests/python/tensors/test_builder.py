"""SparsityBuilder: weights, intermediates and gradients by name, in copies and in place, beside twins."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from builder_nets import Mlp, Net, inputs, masked, net, run
from torch import Tensor, nn
from torch.nn import functional

from sparseloom import SparsityBuilder
from sparseloom import layouts as L
from sparseloom import sparsify as S
from sparseloom.nn import SparseLinear

HALF = S.ScalarFraction(0.5)
pytestmark = pytest.mark.filterwarnings("ignore::sparseloom.ops.DenseFallback")


@pytest.mark.parametrize("in_place", [False, True])
def test_weights_are_those_of_the_masked_twin(in_place: bool):
    model, twin, x = net(), net(), inputs()
    builder = SparsityBuilder(model)
    builder.set_weight(r"layer\..*\.weight", initial_sparsifier=S.ScalarFraction(0.9), out_format=L.Csr)
    builder.set_weight("conv.weight", S.ScalarFraction(0.75), out_format=L.Coo)
    builder.set_weight("head.weight", HALF, out_format=L.MaskedDense)
    for weight, sparsifier in (
        (twin.layer.up.weight, S.ScalarFraction(0.9)),
        (twin.layer.down.weight, S.ScalarFraction(0.9)),
        (twin.conv.weight, S.ScalarFraction(0.75)),
        (twin.head.weight, HALF),
    ):
        masked(weight, sparsifier)
    bias, norm = model.layer.up.bias, model.norm.weight
    before = copy.deepcopy(model.state_dict())
    made: Any = model
    if in_place:
        builder.sparsify_model_inplace()
        assert model.layer.up.bias is bias and model.norm.weight is norm
    else:
        made = builder.get_sparse_model()
        assert type(model.layer.up) is nn.Linear
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert (
        isinstance(made.layer.up, SparseLinear) and made.layer.up.values.numel() == 13
    )  # of 128: 90 % are gone
    assert made.conv.weight.format is L.Coo and made.conv.weight.stored.numel() == 18  # of 72
    for got, want in zip(run(made, x), run(twin, x), strict=True):
        torch.testing.assert_close(got, want)
    up = made.layer.up
    torch.testing.assert_close(up.values.grad, up.layout.pack(twin.layer.up.weight.grad))
    original = made.conv.parametrizations.weight.original
    index = made.conv.parametrizations.weight[0].layout_index
    torch.testing.assert_close(original.grad, index.pack(twin.conv.weight.grad.flatten(1)))
    torch.testing.assert_close(made.conv.bias.grad, twin.conv.bias.grad)


def test_training_keeps_the_format_and_equals_the_masked_twin():
    model, twin = net(), net()
    masks = [masked(twin.layer.up.weight, HALF), masked(twin.conv.weight, HALF)]
    builder = SparsityBuilder(model)
    builder.set_weight("layer.up.weight", HALF, out_format=L.Csr)
    builder.set_weight("conv.weight", HALF, out_format=L.Csr)
    made: Any = builder.get_sparse_model()
    steps = [torch.optim.AdamW(each.parameters(), 0.01, weight_decay=0.1) for each in (made, twin)]
    for _ in range(5):
        for each, step in zip((made, twin), steps, strict=True):
            step.zero_grad()
            each(inputs()).square().sum().backward()
            step.step()
    for weight, mask, dense in (
        (made.layer.up.to_dense().weight, masks[0], twin.layer.up.weight),
        (made.conv.weight.to_dense(), masks[1], twin.conv.weight),
    ):
        torch.testing.assert_close(weight, dense)
        assert torch.equal(weight != 0, mask)


def test_optimizers_go_along_in_place():
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    run(model, inputs())
    optimizer.step()
    moment = optimizer.state[model.conv.weight]["exp_avg"].flatten(1).clone()
    builder = SparsityBuilder(model)
    builder.set_weight("(conv|layer.up).weight", HALF)
    builder.sparsify_model_inplace(optimizer)
    original: Any = model.conv.parametrizations.weight.original  # type: ignore[union-attr]
    index: Any = model.conv.parametrizations.weight[0].layout_index  # type: ignore[union-attr,index]
    assert torch.equal(optimizer.state[original]["exp_avg"], index.pack(moment))
    held = {id(each) for group in optimizer.param_groups for each in group["params"]}
    assert held == {id(each) for each in model.parameters()}
    optimizer.zero_grad()
    run(model, inputs())
    optimizer.step()


def test_sparse_copies_save_load_copy_and_move():
    builder = SparsityBuilder(net())
    builder.set_weight("(conv|layer.down).weight", HALF)
    builder.set_interm("layer.gelu", external_sparsifier=HALF, out_format=L.Csr)
    made, x = builder.get_sparse_model(), inputs()
    want = made(x)
    torch.testing.assert_close(copy.deepcopy(made)(x), want)
    other = builder.get_sparse_model()
    with torch.no_grad():
        for each in other.parameters():
            each.zero_()
    other.load_state_dict(made.state_dict())
    torch.testing.assert_close(other(x), want)
    assert made.double()(x.double()).dtype == torch.float64
    builder = SparsityBuilder(net())
    builder.set_weight("(conv|layer.down).weight", HALF)
    assert builder.get_sparse_model().to("meta")(x.to("meta")).is_meta


@pytest.mark.parametrize("into", [L.Dense, L.Csr, L.MaskedDense])
def test_gradients_of_weights_become_sparse(into: Any):
    model, twin = net(), net()
    builder = SparsityBuilder(model)
    builder.set_weight("layer.up.weight", HALF)
    builder.set_weight("conv.weight", HALF)
    masks = [masked(twin.layer.up.weight, HALF), masked(twin.conv.weight, HALF)]
    fraction = S.ScalarFraction(0.8)
    for name in ("layer.up.weight", "conv.weight", "head.weight"):
        builder.set_weight_grad(name, external_sparsifier=fraction, out_format=into)
    made: Any = builder.get_sparse_model()
    run(made, inputs())
    run(twin, inputs())
    up, index = made.layer.up, made.conv.parametrizations.weight[0].layout_index
    head = made.head.weight.grad
    assert type(head) is Tensor if into is L.Dense else head.format is into
    head = head if into is L.Dense else head.to_dense()
    # the twin's activations come of dense products, which round otherwise
    torch.testing.assert_close(head, fraction.sparsified(twin.head.weight.grad))
    assert int((head != 0).sum()) == 3
    want = fraction.sparsified(twin.layer.up.weight.grad * masks[0])
    torch.testing.assert_close(up.values.grad, up.layout.pack(want))
    want = fraction.sparsified((twin.conv.weight.grad * masks[1]).flatten(1))
    torch.testing.assert_close(made.conv.parametrizations.weight.original.grad, index.pack(want))


class Twin(Net):
    """The masked dense twin of a Net whose GELU and norm are sparsified, forward and backward."""

    def forward(self, x: Tensor) -> Tensor:
        x = MaskBoth.apply(self.norm(self.conv(x)), S.ScalarThreshold(0.2), S.KeepAll())
        gelu = functional.gelu(self.layer.up(x))
        return self.head(x + self.layer.down(MaskBoth.apply(gelu, HALF, S.ScalarFraction(0.25))))


class MaskBoth(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, out: S.ElementSparsifier, grad: S.ElementSparsifier) -> Tensor:
        mask = out.select_mask(x)
        ctx.save_for_backward(mask)
        ctx.grad = grad
        return x * mask

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        (mask,) = ctx.saved_tensors
        return ctx.grad.sparsified(dy * mask), None, None


@pytest.mark.parametrize("into", [L.Dense, L.Csr, L.Coo, L.MaskedDense])
@pytest.mark.parametrize("gelu", ["layer.gelu", r".*\.gelu"])
def test_intermediates_and_their_gradients_are_those_of_the_twin(into: Any, gelu: str):
    model = net()
    builder = SparsityBuilder(model)
    builder.set_interm("norm", external_sparsifier=S.ScalarThreshold(0.2), out_format=into)
    builder.set_interm(gelu, inline_sparsifier=HALF, tmp_format=into, out_format=into)
    builder.set_interm_grad(gelu, external_sparsifier=S.ScalarFraction(0.25), out_format=into)
    made = builder.get_sparse_model()
    twin = Twin()
    twin.load_state_dict(net().state_dict())
    for got, want in zip(run(made, inputs()), run(twin, inputs()), strict=True):
        torch.testing.assert_close(got, want)
    want = {name: each.grad for name, each in twin.named_parameters()}
    for name, each in made.named_parameters():
        torch.testing.assert_close(each.grad, want[name])
    assert not model.norm._forward_hooks and isinstance(model.layer, Mlp)
    builder.sparsify_model_inplace()
    torch.testing.assert_close(model(inputs()), made(inputs()))
