"""Layers that train a dense weight and multiply with 2:4 of it, against masked twins in fp64."""

import pytest
import torch
import torch.nn.functional as F
from semi24_nets import MASKS, layer_of
from torch import nn

from sparseloom import Error
from sparseloom.nn import Semi24TrainingConv2d
from sparseloom.nn.masked import product24
from sparseloom.ops import semi24

SIZES = [(8, 16), (7, 13), (33, 50), (64, 32), (1, 3), (4, 4), (130, 70)]
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]


def within(actual, dense, exact):
    """House rule: at most twice the dense product's error, plus a floor of rounding. In fp64 the exact one is
    rounded as often, in an order of its own."""
    error = (actual.double() - exact).abs().max() if exact.numel() else torch.zeros(())
    allowed = (dense.double() - exact).abs().max() if exact.numel() else torch.zeros(())
    floor = torch.finfo(actual.dtype).eps * (exact.abs().max() if exact.numel() else 0)
    assert error <= 2 * allowed + (8 if actual.dtype == torch.float64 else 2) * floor, (error, allowed)


def gradients(weight, bias, x, dy, mask, dtype):
    """y, dx, G = dY^T x and db of the masked dense twin in that dtype."""
    weight, bias, x, dy = (each.detach().to(dtype) for each in (weight, bias, x, dy))
    weight = weight.masked_fill(~mask, 0)
    flat = x.reshape(-1, x.shape[-1]), dy.reshape(-1, dy.shape[-1])
    return F.linear(x, weight, bias), dy @ weight, flat[1].t() @ flat[0], flat[1].sum(0)


@pytest.mark.parametrize("multiply", ["semi24", "dense"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", MASKS)
def test_products_and_gradients_are_those_of_the_masked_twin(kind, dtype, multiply):
    torch.manual_seed(0)
    for rows, cols in SIZES:
        for tokens in ((5,), (), (2, 3), (0,), (2, 1, 2, 1, 3)):
            layer = layer_of(rows, cols, kind, dtype)
            layer.multiply = multiply
            x = torch.randn(*tokens, cols, dtype=dtype, requires_grad=True)
            dy = torch.randn(*tokens, rows, dtype=dtype)
            y = layer(x)
            y.backward(dy)
            mine = y, x.grad, layer.weight.grad, layer.bias.grad
            operands = layer.weight, layer.bias, x, dy, layer.mask
            dense, exact = gradients(*operands, dtype), gradients(*operands, torch.float64)
            for got, one, other in zip(mine, dense, exact, strict=True):
                assert got.dtype == dtype and got.shape == other.shape
                within(got, one, other)


def test_dx_never_packs_the_transpose_of_a_mask_that_is_not_transposable(monkeypatch):
    """The published fault: half of W^T was lost there."""
    packed = []
    compress = semi24.compress
    monkeypatch.setattr(semi24, "compress", lambda *a: packed.append(a[1:]) or compress(*a))
    kinds = {"rows": product24.ROWS, "columns": product24.ANY, "any": product24.ANY}
    for kind in MASKS:
        layer, x = layer_of(16, 16, kind), torch.randn(3, 16, requires_grad=True)
        layer.multiply = "semi24"
        packed.clear()
        layer(x).sum().backward()
        wanted = kinds.get(kind, product24.ROWS if kind == "magnitude" else product24.TRANSPOSABLE)
        assert layer._kind == wanted == product24.kind_of(layer.mask)
        assert [each[1] for each in packed] == [wanted == product24.TRANSPOSABLE][: int(wanted > 0)]
        torch.testing.assert_close(x.grad, layer.effective().sum(0).expand(3, 16))


@pytest.mark.parametrize("share, decay", [(1.0, 0.0), (0.0, 0.0), (1.0, 0.1), (0.5, 0.1), (0.0, 0.1)])
@pytest.mark.parametrize("multiply", ["semi24", "dense"])
def test_the_pruned_part_gets_share_times_g_plus_decay_times_w(share, decay, multiply):
    layer = layer_of(12, 20, dtype=torch.float64, share=share, decay=decay)
    layer.multiply = multiply
    x, dy = torch.randn(6, 20, dtype=torch.float64), torch.randn(6, 12, dtype=torch.float64)
    layer(x).backward(dy)
    g, w = dy.t() @ x, layer.weight.detach()
    torch.testing.assert_close(layer.weight.grad, torch.where(layer.mask, g, share * g + decay * w))


def test_soft_thresholds_are_continuous_where_the_mask_changes():
    torch.manual_seed(0)
    layer = layer_of(6, 10, "magnitude", torch.float64, soft=True)
    w, scale = layer.weight.detach().clone(), float(layer.scale)
    groups = F.pad(w, (0, 2)).view(6, 3, 4)
    third = groups.abs().sort(-1, descending=True).values[..., 2:3]
    soft = ((groups.abs() - third).clamp(min=0) * groups.sign()).flatten(1)[:, :10]
    torch.testing.assert_close(layer.effective(), scale * soft)
    assert scale == pytest.approx(float((w * soft).sum() / soft.square().sum()), rel=1e-6)
    with torch.no_grad():  # the second and third of a group change places
        layer.weight[0, :4] = torch.tensor([3.0, 1.0, 1.0 + 1e-6, 0.5])
    layer.refresh_()
    one = layer.effective()[0, :4].clone()
    with torch.no_grad():
        layer.weight[0, :4] = torch.tensor([3.0, 1.0 + 1e-6, 1.0, 0.5])
    layer.refresh_()
    assert float(layer.flips) == pytest.approx(2 / 60)
    torch.testing.assert_close(layer.effective()[0, :4], one, atol=1e-5, rtol=0)
    assert layer.scale == scale
    layer(torch.ones(1, 10, dtype=torch.float64)).sum().backward()
    assert bool((layer.weight.grad == 1).all())
    with pytest.raises(Error, match="threshold"):
        layer_of(6, 10, "transposable_greedy", soft=True)


CONVOLUTIONS = [
    (8, 8, 3, {"padding": 1}),
    (3, 5, 3, {"padding": 1, "stride": 2}),
    (6, 7, (2, 3), {"padding": "same", "dilation": (1, 2)}),
    (5, 4, 3, {"padding": (1, 2), "padding_mode": "circular", "bias": False}),
    (4, 6, 1, {"stride": 2}),
    (9, 8, 1, {"padding": 1}),
]


@pytest.mark.parametrize("prune", semi24.METHODS)
@pytest.mark.parametrize("multiply", ["semi24", "dense"])
@pytest.mark.parametrize("n_in, n_out, kernel, options", CONVOLUTIONS)
def test_convolutions_keep_two_of_four_channels_of_each_tap(n_in, n_out, kernel, options, multiply, prune):
    torch.manual_seed(0)
    dense = nn.Conv2d(n_in, n_out, kernel, **options, dtype=torch.float64)
    layer = Semi24TrainingConv2d(dense, prune=prune, share=0.5, decay=0.1)
    layer.multiply = multiply
    assert layer.weight is dense.weight
    kept = layer.effective() != 0
    channels = F.pad(kept.permute(0, 2, 3, 1).int(), (0, -n_in % 4)).unflatten(-1, (-1, 4)).sum(-1)
    outputs = F.pad(kept.permute(1, 2, 3, 0).int(), (0, -n_out % 4)).unflatten(-1, (-1, 4)).sum(-1)
    assert int(channels.max()) <= 2 and (prune == "magnitude" or int(outputs.max()) <= 2)
    twin = layer.to_dense()
    for sizes in ((2, n_in, 7, 9), (n_in, 6, 6)):
        x = torch.randn(sizes, dtype=torch.float64, requires_grad=True)
        x_twin = x.detach().clone().requires_grad_()
        layer.weight.grad = twin.weight.grad = None
        y, wanted = layer(x), twin(x_twin)
        dy = torch.randn_like(wanted)
        y.backward(dy)
        wanted.backward(dy)
        g = twin.weight.grad
        torch.testing.assert_close(y, wanted)
        torch.testing.assert_close(x.grad, x_twin.grad)
        rule = torch.where(kept, g, 0.5 * g + 0.1 * dense.weight.detach())
        torch.testing.assert_close(layer.weight.grad, rule)


def test_torch_func_differentiates_where_the_rule_has_a_derivative():
    x = torch.randn(3, 16)
    layer = layer_of(8, 16, share=0.0)
    for layer.multiply in ("semi24", "dense"):
        wanted = x.new_ones(3, 8) @ layer.effective()
        torch.testing.assert_close(torch.func.grad(lambda v: layer(v).sum())(x), wanted)
    with pytest.raises(Error, match="share=0"):
        torch.func.grad(lambda v: layer_of(8, 16)(v).sum())(x)
