"""Weights of tiles that are dense, 2:4 or absent, against masked dense twins by torch in fp64."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from tile_twins import KINDS, kinds_of, made, twin_mask
from torch import Tensor, nn
from torch.nn import functional as F

import sparseloom
from sparseloom import Error, InLayout
from sparseloom.layouts import Tiles, tiles
from sparseloom.layouts.tiles import ABSENT, DENSE, HALF, chosen_kinds
from sparseloom.nn import SparseLinear
from sparseloom.ops import tiles as tiles_ops


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("name", KINDS)
def test_tiles_store_what_their_kinds_say(name: str, dtype: torch.dtype) -> None:
    weight, layout = made(name, dtype)
    mask = twin_mask(weight, kinds_of(name), layout.side)
    values = layout.pack(weight)
    assert torch.equal(layout.to_dense(values), torch.where(mask, weight, 0))
    assert torch.equal(layout.pack(layout.to_dense(values)), values)
    assert torch.equal(layout.kinds.long(), kinds_of(name))
    layout.require_consistent("test", values)
    again = Tiles.from_mask(weight, mask, layout.side)
    assert torch.equal(again.to_dense(again.pack(weight)), torch.where(mask, weight, 0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_products_and_gradients_are_those_of_the_masked_twin(
    name: str, dtype: torch.dtype, device: str
) -> None:
    weight, layout = made(name, dtype)
    torch.manual_seed(2)
    linear = nn.Linear(weight.shape[1], weight.shape[0], dtype=dtype)
    with torch.no_grad():
        linear.weight.copy_(weight / 16)
    layer = SparseLinear.from_dense(linear, layout).to(device)
    mask = layout.to_dense(layout.pack(torch.ones_like(weight))) != 0
    twin = (linear.weight.detach().double() * mask).requires_grad_()
    x = torch.randn(3, 11, weight.shape[1]).to(dtype)
    mine, its = x.to(device, copy=True).requires_grad_(), x.double().requires_grad_()
    y, expected = layer(mine), F.linear(its, twin, linear.bias.double())
    dy = torch.randn(y.shape).to(dtype)
    y.backward(dy.to(device))
    expected.backward(dy.double())
    assert mine.grad is not None and its.grad is not None and twin.grad is not None
    wanted = layout.pack((twin.grad * mask).float())
    for got, want in ((y, expected), (mine.grad, its.grad), (layer.values.grad, wanted.double())):
        # A rounding of the result; in fp32 also those of sums of up to 384 products.
        scale = float(want.detach().abs().max()) if want.numel() else 0.0
        limit = 16 * torch.finfo(dtype).eps * max(scale, 1)
        assert float((got.double().cpu() - want).detach().abs().amax() if want.numel() else 0) <= limit
    with torch.no_grad():
        fused = layer(x.to(device)).relu()
        layer.activation = "relu"
        torch.testing.assert_close(layer(x.to(device)), fused, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_the_plan_says_which_products_expand(dtype: torch.dtype) -> None:
    layout = made("mixed", dtype)[1]
    for direction in ("forward", "dx", "dw"):
        text = layout.plan(16, direction, dtype, False)["text"]
        whole = layout._runs_whole() and direction != "dw" and dtype != torch.float64
        assert ("layout=tiles" in text) == whole and ("2:4, expanded" in text) == (not whole)


@pytest.mark.parametrize("name", ["mixed", "ragged"])
def test_a_device_that_wants_multiples_of_eight_gets_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = made(name)[1]
    torch.manual_seed(0)
    layer = SparseLinear.from_dense(nn.Linear(layout.cols, layout.rows), layout)
    layer.activation = "relu"
    x, residual = torch.randn(7, layout.cols), torch.randn(7, layout.rows)
    wide, tall = layout.cols + -layout.cols % 8, layout.rows + -layout.rows % 8
    assert (wide, tall) != (layout.cols, layout.rows)
    shapes, linear = [], tiles_ops.linear

    def seen(x: Tensor, *operands: Any, **options: Any) -> Tensor:
        y = linear(x, *operands, **options)
        shapes.append((x.shape[1], y.shape[1]))
        return y

    monkeypatch.setattr(tiles_ops, "linear", seen)
    with torch.no_grad():
        want = layer(x, residual)
        monkeypatch.setitem(tiles._MULTIPLE, "cpu", 8)
        got = layer(x, residual)
    assert shapes == [(layout.cols, layout.rows), (wide, tall)] and got.is_contiguous()
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    assert f"W=[{tall}, {wide}]" in layout.plan(7, "forward", torch.float32, True)["text"]


def test_gradients_have_gradients() -> None:
    weight, layout = made("mixed")
    dense = layout.to_dense(layout.pack(weight / 16))
    twins = []
    for values, product_of in (
        (layout.pack(weight / 16), lambda x, w: sparseloom.layouts.products.linear(x, w, None, layout)),
        (dense, lambda x, w: F.linear(x, w)),
    ):
        x = torch.randn(5, 300, generator=torch.Generator().manual_seed(4)).requires_grad_()
        w = values.requires_grad_()
        (dx,) = torch.autograd.grad(product_of(x, w).square().sum(), x, create_graph=True)
        dw = torch.autograd.grad(dx.sin().sum(), w)[0]
        twins.append(dw if dw.dim() == 1 else layout.pack(dw))
    torch.testing.assert_close(twins[0], twins[1], rtol=1e-3, atol=1e-2)


def lost(importance: Tensor, kinds: Tensor, side: int) -> float:
    scores = importance.double()
    return float(scores[~twin_mask(scores, kinds, side)].sum())


@pytest.mark.parametrize("density", [0.3, 0.6, 0.8])
def test_the_choice_loses_least_of_all_choices_of_as_few_bytes(density: float) -> None:
    generator = torch.Generator().manual_seed(int(density * 10))
    spread = torch.rand(2, 3, generator=generator).exp().repeat_interleave(64, 0).repeat_interleave(64, 1)
    importance = torch.rand(128, 192, generator=generator) ** 3 * spread
    chosen = chosen_kinds(importance, density, 64, 9 / 16)
    cost = torch.tensor([0, 9 / 16, 1.0])
    assert float(cost[chosen.long()].sum()) <= 6 * density + 1e-9
    mine = lost(importance, chosen, 64)
    used = float(cost[chosen.long()].sum())
    for other in product((ABSENT, HALF, DENSE), repeat=6):
        kinds = torch.tensor(other).view(2, 3)
        if float(cost[kinds].sum()) <= used + 1e-9:
            assert lost(importance, kinds, 64) >= mine * (1 - 1e-6)


def test_steps_that_lose_nothing_are_always_taken() -> None:
    weight = torch.randn(64, 192)
    weight[:, :64] = 0
    weight[:, 64:128].view(64, 16, 4)[..., 2:] = 0
    layout = Tiles.from_dense(weight, density=1.0)
    assert layout.kinds.tolist() == [[ABSENT, HALF, DENSE]]
    assert torch.equal(layout.to_dense(layout.pack(weight)), weight)


def test_transforms_and_compile_see_the_same_product() -> None:
    weight, layout = made("mixed")
    values, x = layout.pack(weight), torch.randn(4, 300)
    want = x @ layout.to_dense(values).T

    def product_of(x: Tensor) -> Tensor:
        return sparseloom.layouts.products.linear(x, values, None, layout)

    torch.testing.assert_close(torch.vmap(product_of)(x[:, None])[:, 0], want, rtol=1e-4, atol=1e-4)
    tangent = torch.func.jvp(product_of, (x,), (x,))[1]
    torch.testing.assert_close(tangent, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda w: Tiles.from_dense(w, side=32), "a side of 64 or 128"),
        (lambda w: Tiles.from_dense(w, density=1.5), "a density from 0 to 1"),
        (lambda w: Tiles.from_dense(w, importance=w[:1]), r"importance \[70, 130\]"),
        (lambda w: Tiles.from_kinds(w, torch.full((2, 3), 3)), r"kinds \[2, 3\] of 0, 1 and 2"),
        (lambda w: Tiles.from_kinds(w, torch.zeros(2, 2)), r"kinds \[2, 3\] of 0, 1 and 2"),
        (lambda w: Tiles.from_kinds(w, torch.full((2, 3), 1.5)), r"kinds \[2, 3\] of 0, 1 and 2.* with 1.5"),
        (lambda w: Tiles.from_kinds(w, torch.full((2, 3), torch.nan)), r"of 0, 1 and 2.* with nan"),
        (lambda w: Tiles.from_kinds(w, [[1] * 3] * 2), r"of 0, 1 and 2, got \[\[1, 1"),
        (lambda w: Tiles.from_mask(w, w[:64] != 0), r"a bool mask \[70, 130\].*\[64, 130\]"),
        (lambda w: Tiles.from_dense(w, mask=w.new_ones(70, 130)), r"a bool mask .*float32"),
        (lambda w: InLayout("tiles", mask=w[:64] != 0), r"a bool mask \[70, 130\]"),
    ],
)
def test_what_is_no_choice_of_tiles_is_refused(call, message: str) -> None:
    with pytest.raises(Error, match=message):
        recipe = call(torch.randn(70, 130))
        sparseloom.sparsify_(nn.Sequential(nn.Linear(130, 70)), recipe)


def mask_of(name: str) -> Tensor:
    """Masks of a weight [200, 300] whose elements are not all that their tiles store."""
    mask = torch.zeros(200, 300, dtype=torch.bool)
    if name == "one of four":
        mask[:, 1::4] = True
    elif name == "last two of four":
        mask.view(200, 75, 4)[..., 2:] = True
    elif name == "dense tiles":
        mask = torch.rand(200, 300, generator=torch.Generator().manual_seed(3)) < 0.3
    elif name == "mixed":
        mask[:64, :128] = mask_of("dense tiles")[:64, :128]
        mask[:, 192:] = mask_of("one of four")[:, 192:]
    return mask


def sparsified(linear: nn.Linear, recipe: InLayout) -> Tensor:
    net = nn.Sequential(nn.Linear(linear.in_features, linear.out_features))
    net[0].load_state_dict(linear.state_dict())
    sparseloom.sparsify_(net, recipe)
    return net[0].to_dense().weight


@pytest.mark.parametrize("name", ["one of four", "last two of four", "dense tiles", "mixed", "none"])
@pytest.mark.parametrize(
    "made_by",
    [
        lambda linear, mask: SparseLinear.from_dense(linear, "tiles", mask=mask).to_dense().weight,
        lambda linear, mask: sparsified(linear, InLayout("tiles", mask=mask)),
        lambda linear, mask: sparseloom.SparseTensor.from_dense(linear.weight, Tiles, mask=mask).to_dense(),
    ],
    ids=["from_dense", "sparsify_", "SparseTensor"],
)
def test_what_a_mask_excludes_is_zero(made_by, name: str) -> None:
    torch.manual_seed(0)
    linear, mask = nn.Linear(300, 200), mask_of(name)
    assert torch.equal(made_by(linear, mask), linear.weight * mask)


def test_what_a_mask_of_n_of_m_excludes_is_zero() -> None:
    linear, mask = nn.Linear(300, 200), mask_of("one of four")
    assert torch.equal(sparsified(linear, InLayout("nm", n=2, m=4, mask=mask)), linear.weight * mask)


@pytest.mark.parametrize("method", ["magnitude", "wanda", "sparsegpt"])
def test_prune_chooses_tiles_by_what_the_outputs_lose(method: str) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(128, 192), nn.ReLU(), nn.Linear(192, 64))
    scale = torch.ones(128)
    scale[64:] = 0.01  # inputs that hardly matter, which magnitude does not see
    data = [torch.randn(512, 128) * scale for _ in range(2)]
    dense = net[0].weight.detach().clone()
    result = sparseloom.prune_(
        net, {"0": InLayout("tiles", density=0.5)}, method=method, data=data, progress=False
    )
    layout = net[0].layout
    assert isinstance(layout, Tiles) and "tiles" in str(result)
    bytes_kept = float(torch.tensor([0, 0.5 + 1 / 32, 1.0])[layout.kinds.long()].mean())
    assert 0 < bytes_kept <= 0.5
    if method == "magnitude":
        assert torch.equal(layout.to_dense(net[0].values), dense * layout.mask())
    else:
        assert int(layout.kinds[:, 1].sum()) == 0 and bool((layout.kinds[:, 0] == DENSE).all())
    same = Tiles.from_mask(dense, layout.to_dense(net[0].values) != 0)
    assert torch.equal(same.kinds, layout.kinds)
