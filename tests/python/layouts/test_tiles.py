"""Weights of tiles that are dense, 2:4 or absent, against masked dense twins by torch in fp64."""

from __future__ import annotations

import copy
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import sparseloom
from sparseloom import Error, InLayout
from sparseloom.layouts import Tiles, tiles
from sparseloom.layouts.tiles import ABSENT, DENSE, HALF, chosen_kinds
from sparseloom.nn import QuantizedBlockSparseLinear, SparseLinear
from sparseloom.ops import tiles as tiles_ops

#: Kinds of tiles for a weight [out, in] of sides 64, or 128 where a shape says so.
KINDS = {
    "mixed": (200, 300, 64),
    "wide": (128, 384, 128),
    "ragged": (70, 65, 64),
    "dense": (128, 64, 64),
    "half": (128, 192, 64),
    "absent": (64, 64, 64),
}


def kinds_of(name: str) -> Tensor:
    rows, cols, side = KINDS[name]
    grid = -(-rows // side), -(-cols // side)
    if name in ("dense", "half", "absent"):
        return torch.full(grid, {"dense": DENSE, "half": HALF, "absent": ABSENT}[name])
    kinds = torch.randint(0, 3, grid, generator=torch.Generator().manual_seed(1))
    kinds.view(-1)[:2] = torch.tensor([HALF, DENSE])
    return kinds


def made(name: str, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tiles]:
    rows, cols, side = KINDS[name]
    weight = torch.randn(rows, cols, generator=torch.Generator().manual_seed(0)).to(dtype)
    return weight, Tiles.from_kinds(weight, kinds_of(name), side)


def twin_mask(weight: Tensor, kinds: Tensor, side: int) -> Tensor:
    """What is stored, by loops over tiles and groups."""
    mask = torch.zeros(weight.shape, dtype=torch.bool)
    for (i, row), j in product(enumerate(kinds.tolist()), range(kinds.shape[1])):
        rows, cols = slice(i * side, (i + 1) * side), slice(j * side, (j + 1) * side)
        if row[j] == DENSE:
            mask[rows, cols] = True
        for left in range(j * side, min((j + 1) * side, weight.shape[1]), 4) if row[j] == HALF else ():
            group = weight[rows, left : left + 4].float().abs()
            largest = group.argsort(dim=1, descending=True, stable=True)[:, :2]
            mask[rows, left : left + 4] = torch.zeros_like(group, dtype=torch.bool).scatter(1, largest, True)
    return mask


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


def test_a_model_is_made_of_tiles_saved_loaded_and_made_dense(tmp_path) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(192, 256), nn.GELU(), nn.Linear(256, 128))
    x = torch.randn(5, 192)
    print(sparseloom.sparsify_(net, {"[02]": InLayout("tiles", density=0.6)}))
    kept = sum(layer.layout.blocks * 2 - layer.layout.semi24 for layer in (net[0], net[2]))
    assert all(isinstance(layer, SparseLinear) for layer in (net[0], net[2])) and kept > 0
    y = net(x)
    sparseloom.save(net, tmp_path / "net.safetensors")
    again = nn.Sequential(nn.Linear(192, 256), nn.GELU(), nn.Linear(256, 128))
    sparseloom.load(tmp_path / "net.safetensors", again, sparsify=True)
    assert torch.equal(again(x), y)
    assert "2:4, expanded" in again[0].plan(tokens=8, direction="dw")["text"]
    assert "tiles" in str(sparseloom.report(net, x, seconds=0.01))
    sparseloom.densify_(again)
    torch.testing.assert_close(again(x), y)


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


def sparsified(linear: nn.Linear, recipe: InLayout) -> Tensor:
    net = nn.Sequential(nn.Linear(linear.in_features, linear.out_features))
    net[0].load_state_dict(linear.state_dict())
    sparseloom.sparsify_(net, recipe)
    return net[0].to_dense().weight


@pytest.mark.parametrize("way", ["load_state_dict", "assign", "load"])
@pytest.mark.parametrize("layout", ["tiles", "blocks"])
@pytest.mark.parametrize(("before", "after"), [(0.3, 0.8), (0.8, 0.3), (0.6, 0.0), (0.0, 0.6)])
def test_another_choice_of_tiles_is_loaded(
    tmp_path, before: float, after: float, layout: str, way: str
) -> None:
    torch.manual_seed(0)
    mine, its = (nn.Sequential(nn.Linear(256, 192)) for _ in range(2))
    for net, density in ((mine, before), (its, after)):
        sparseloom.sparsify_(net, InLayout(layout, density=density))
    x = torch.randn(4, 256)
    mine(x)
    if way == "load":
        sparseloom.save(its, tmp_path / "its.safetensors")
        sparseloom.load(tmp_path / "its.safetensors", mine)
    else:
        mine.load_state_dict(its.state_dict(), assign=way == "assign")
    assert mine[0].layout.options() == its[0].layout.options()
    assert torch.equal(mine(x), its(x)) and mine[0].describe() == its[0].describe()
    mine(x).sum().backward()
    its(x).sum().backward()
    assert torch.equal(mine[0].values.grad, its[0].values.grad)


def test_optimizer_state_follows_to_another_choice_of_tiles() -> None:
    torch.manual_seed(0)
    mine, its = (nn.Sequential(nn.Linear(256, 192)) for _ in range(2))
    for net, density in ((mine, 0.8), (its, 0.5)):
        sparseloom.sparsify_(net, InLayout("tiles", density=density))
    optimizer = torch.optim.SGD(mine.parameters(), 0.1, momentum=0.9)
    mine(torch.randn(4, 256)).sum().backward()
    optimizer.step()
    momentum = mine[0].layout.to_dense(optimizer.state[mine[0].values]["momentum_buffer"])
    mine.load_state_dict(its.state_dict())
    mine(torch.randn(4, 256)).sum().backward()
    mine[0].values.grad.zero_()
    optimizer.step()
    got = mine[0].layout.to_dense(optimizer.state[mine[0].values]["momentum_buffer"])
    torch.testing.assert_close(got, 0.9 * momentum * mine[0].layout.mask())


@pytest.mark.parametrize("part", ["packed", "is24", "positions"])
def test_a_state_dict_with_a_part_cut_off_is_refused(part: str) -> None:
    net = nn.Sequential(nn.Linear(256, 192))
    sparseloom.sparsify_(net, InLayout("tiles", density=0.5))
    state = net.state_dict()
    for cut in (state[f"0.{part}"][:-1], state[f"0.{part}"][:0]):
        # The last list of the index may end before its padding does, which no product reads.
        if part != "packed" or not len(cut):
            with pytest.raises(Error):
                net.load_state_dict({**state, f"0.{part}": cut})


def test_a_model_of_transformers_comes_back(tmp_path) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 64, "intermediate_size": 192, "num_attention_heads": 2, "num_hidden_layers": 2}
    torch.manual_seed(0)
    model = transformers.BertModel(transformers.BertConfig(vocab_size=60, **sizes)).eval()
    sparseloom.sparsify_(model, {".*intermediate.dense|.*0.output.dense": InLayout("tiles", density=0.6)})
    model.save_pretrained(tmp_path)
    again = transformers.AutoModel.from_pretrained(tmp_path).eval()
    mine, its = model.state_dict(), again.state_dict()
    assert mine.keys() == its.keys() and all(torch.equal(mine[name], its[name]) for name in mine)
    tiles = [layer.layout for layer in again.modules() if isinstance(layer, SparseLinear)]
    assert len(tiles) == 3 and all(isinstance(layout, Tiles) and layout.semi24 for layout in tiles)
    tokens = torch.arange(9)[None]
    with torch.no_grad():
        torch.testing.assert_close(model(tokens).pooler_output, again(tokens).pooler_output)


def test_tiles_are_made_and_told_under_a_default_device() -> None:
    weight, layout = made("mixed")
    values, kinds = layout.pack(weight), kinds_of("mixed")
    with torch.device("meta"):
        again = Tiles.from_kinds(weight, kinds, layout.side)
        told, placeholder = layout.kinds, Tiles.anywhere(*weight.shape, device="cpu", **layout.options())
        masked = Tiles.from_mask(weight, layout.mask(), layout.side)
    assert torch.equal(again.to_dense(again.pack(weight)), layout.to_dense(values))
    assert torch.equal(told, layout.kinds) and torch.equal(masked.kinds, told)
    assert {n: t.shape for n, t in placeholder.tensors().items()} == {
        n: t.shape for n, t in layout.tensors().items()
    }
    placeholder.require_consistent("test", torch.zeros_like(values))


def test_values_and_index_that_do_not_belong_together_are_refused() -> None:
    weight, layout = made("mixed")
    values = layout.pack(weight)
    with pytest.raises(Error, match="values"):
        layout.require_consistent("load", values[:-1])
    with pytest.raises(Error, match="that are 2:4"):
        layout.with_tensors({"is24": torch.zeros_like(layout.is24)}).require_consistent("load", values)
    wrong = layout.with_tensors({"positions": torch.zeros_like(layout.positions)})
    with pytest.raises(Error, match="ascending order"):
        wrong.require_consistent("load", values)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8])
@pytest.mark.parametrize("name", KINDS)
def test_tiles_are_quantized_as_blocks(tmp_path, name: str, dtype: torch.dtype) -> None:
    weight, layout = made(name)
    linear = nn.Linear(weight.shape[1], weight.shape[0])
    layer = SparseLinear.from_dense(linear, layout, activation="relu")
    net, x = nn.Sequential(layer), torch.randn(5, weight.shape[1])
    before = layer.to_dense()[0].weight.detach()
    result = sparseloom.quantize_(net, dtype)
    eight = net[0]
    assert isinstance(eight, QuantizedBlockSparseLinear) and eight.block == (layout.side, layout.side)
    assert result.changed[0].blocks == layout.blocks and result.changed[0].error < 0.04
    eight.kernel = "reference"
    after = eight.to_dense()[0].weight
    # A half of e4m3's last bit of four, or of int8's step; below its normal numbers e4m3 has steps, too.
    step = before.abs().amax(1, keepdim=True) / {torch.int8: 127, torch.float8_e4m3fn: 448}[dtype]
    allowed = step / 2 if dtype is torch.int8 else torch.maximum(before.abs() / 16, step * 2.0**-10)
    assert bool(((after - before).abs() <= allowed * (1 + 1e-5)).all()) and bool(
        (after[before == 0] == 0).all()
    )
    with torch.no_grad():
        y = net(x)
        torch.testing.assert_close(y, F.linear(x, after, linear.bias).relu(), rtol=0.1, atol=0.1)
    sparseloom.save(net, tmp_path / "net.safetensors")
    again = copy.deepcopy(net)
    again[0].w_scale.zero_()
    sparseloom.load(tmp_path / "net.safetensors", again)
    assert torch.equal(again(x), y)


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
