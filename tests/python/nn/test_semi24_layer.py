"""2:4 layers: packed, multiplied, differentiated by x, saved, and in models beside block-sparse ones."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import sparseloom
from sparseloom import BlockSparse, Error, Semi24, densify_, sparsify_
from sparseloom.layouts import Semi24Layout
from sparseloom.nn import Semi24Linear
from sparseloom.ops import semi24

ACTIVATIONS = list(sparseloom.ops.ACTIVATIONS)
PRUNED = Semi24("magnitude")


def pruned(weight: Tensor) -> Tensor:
    """The two largest |w| of each four inputs, in torch's own words."""
    over = -weight.shape[1] % 4
    groups = nn.functional.pad(weight.abs(), (0, over)).unflatten(1, (-1, 4))
    least = groups.sort(dim=-1, descending=True, stable=True).indices[..., 2:]
    kept = torch.ones_like(groups, dtype=torch.bool).scatter(-1, least, False)
    return weight * kept.flatten(1)[:, : weight.shape[1]]


def linear(
    cols: int = 32, rows: int = 24, bias: bool = True, dtype: torch.dtype = torch.float32
) -> nn.Linear:
    made = nn.Linear(cols, rows, bias, dtype=dtype)
    with torch.no_grad():
        made.weight.copy_(pruned(made.weight))
    return made


@pytest.fixture
def layer() -> Semi24Linear:
    torch.manual_seed(0)
    return Semi24Linear.from_dense(linear())


@pytest.mark.parametrize(
    "shape", [(24, 32), (16, 64), (1, 1), (3, 5), (7, 6), (5, 11), (4, 4), (0, 8), (8, 0)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_packing_is_exact_for_every_size(shape: tuple[int, int], dtype: torch.dtype):
    torch.manual_seed(1)
    dense = linear(shape[1], shape[0], dtype=dtype)
    layer = Semi24Linear.from_dense(dense)
    assert torch.equal(layer.to_dense().weight, dense.weight) and torch.equal(layer.bias, dense.bias)
    assert layer.values.shape == (shape[0], 2 * -(-shape[1] // 4)) and layer.values.dtype == dtype
    assert torch.equal(layer.layout.pack(dense.weight.detach()), layer.values)
    if 0 not in shape:
        x = torch.randn(3, shape[1], dtype=dtype)
        torch.testing.assert_close(layer(x), dense(x))


def test_a_weight_that_is_not_2_4_is_an_error_unless_pruning_is_named(layer: Semi24Linear):
    weight = layer.to_dense().weight.detach().clone()
    weight[5, 16:20] = torch.tensor([1.0, 2.0, 0.0, -3.0])
    with pytest.raises(Error, match=r"row 5.*16"):
        Semi24Linear.from_dense(weight)
    kept = Semi24Linear.from_dense(weight, "magnitude").to_dense().weight[5, 16:20]
    assert kept.tolist() == [0.0, 2.0, 0.0, -3.0]
    with pytest.raises(Error, match="prune=None or one of 'magnitude'"):
        Semi24Linear.from_dense(weight, "largest")


def test_magnitude_is_the_absolute_value():
    weight = -torch.rand(8, 16) - 0.5
    kept = Semi24Linear.from_dense(weight, "magnitude").to_dense().weight
    assert torch.equal(kept, pruned(weight))


@pytest.mark.parametrize("method", ["transposable_greedy", "transposable_exact"])
def test_transposable_pruning_leaves_both_2_4(method: str):
    torch.manual_seed(2)
    dense = Semi24Linear.from_dense(torch.randn(16, 24), method).to_dense().weight.detach()
    Semi24Linear.from_dense(dense.t())  # raises where W^T is not
    assert 0.6 < float(dense.abs().sum() / Semi24Linear.from_dense(dense).values.abs().sum()) <= 1


@pytest.mark.parametrize("shape", [(32,), (7, 32), (2, 3, 32), (2, 1, 2, 2, 32), (0, 32)])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("with_residual", [False, True])
def test_products_and_gradients_are_those_of_the_dense_twin(
    shape: tuple[int, ...], activation: str | None, with_residual: bool
):
    torch.manual_seed(1)
    layer = Semi24Linear.from_dense(linear(dtype=torch.float64), activation=activation)
    twin = layer.to_dense()
    x = torch.randn(shape, dtype=torch.float64)
    residual = torch.randn(*shape[:-1], 24, dtype=torch.float64) if with_residual else None
    given = [each.clone().requires_grad_() for each in (x, residual) if each is not None]
    same = [each.detach().clone().requires_grad_() for each in given]
    with torch.no_grad():
        torch.testing.assert_close(layer(*given), twin(same[0]) + (same[1] if with_residual else 0))
    y, y_twin = layer(*given), twin(same[0]) + (same[1] if with_residual else 0)
    torch.testing.assert_close(y, y_twin)
    y.square().sum().backward()
    y_twin.square().sum().backward()
    for mine, theirs in zip(given, same, strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)
    inner = twin if activation is None else twin[0]
    torch.testing.assert_close(layer.bias.grad, inner.bias.grad)
    assert layer.values.grad is None


def test_gradients_hold_to_the_second_order(layer: Semi24Linear):
    layer.double()
    x = torch.randn(3, 32, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(layer, (x,)) and torch.autograd.gradgradcheck(layer, (x,))


def test_a_gradient_of_the_values_is_refused_with_the_remedy(layer: Semi24Linear):
    x = torch.randn(3, 32)
    layer.requires_grad_()
    with pytest.raises(Error, match=r"packed for inference.*requires_grad_\(False\)"):
        layer(x)
    with torch.no_grad():
        layer(x)
    generic = sparseloom.nn.SparseLinear(32, 24, layout="semi24", prune="magnitude")
    with pytest.raises(Error, match="packed for inference"):
        generic(x).sum().backward()
    generic.requires_grad_(False)(x)


def test_an_adapter_beside_a_packed_layer_trains(layer: Semi24Linear):
    """LoRA in four lines: the layer is frozen, what lies before and beside it is not."""
    first, down, up = nn.Linear(8, 32), nn.Linear(32, 4, False), nn.Linear(4, 24, False)
    optimizer = torch.optim.AdamW([*first.parameters(), *down.parameters(), *up.parameters(),
                                   *layer.parameters()], 0.02, weight_decay=0.1)  # fmt: skip
    x, goal, before = torch.randn(64, 8), torch.randn(64, 24), layer.values.detach().clone()
    losses = []
    for _ in range(30):
        h = first(x)
        loss = (layer(h) + up(down(h)) - goal).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0] and torch.equal(layer.values, before)


def test_copies_pickles_compiles_exports_and_runs_under_autocast(layer: Semi24Linear):
    layer.activation = "gelu"
    x, residual = torch.randn(3, 32), torch.randn(3, 24)
    want = layer(x, residual)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(other(x, residual), want)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, residual), want)
    x.requires_grad_()
    (mine,), (theirs,) = (torch.autograd.grad(f(x, residual).sum(), x) for f in (compiled, layer))
    torch.testing.assert_close(mine, theirs)
    exported = torch.export.export(layer, (x.detach(), residual))
    torch.testing.assert_close(exported.module()(x.detach(), residual), want)
    traced = torch.fx.symbolic_trace(nn.Sequential(layer))
    torch.testing.assert_close(traced(x), layer(x))
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x, residual).dtype == torch.bfloat16


def test_twenty_four_equal_layers_compile_once():
    layers = nn.Sequential(*(Semi24Linear(16, 16) for _ in range(24)))
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = [torch.compile(each, fullgraph=True, backend=counter) for each in layers]
    x = torch.randn(4, 16)
    for mine, layer in zip(compiled, layers, strict=True):
        torch.testing.assert_close(mine(x), layer(x))
    assert counter.frame_count <= 2


def test_what_the_tensor_cores_read_follows_the_positions(layer: Semi24Linear, monkeypatch):
    """On CUDA a layer keeps the positions in another order, made once; here the order is a copy."""
    made = []

    def order(positions: Tensor, cols: int, eight_bit: bool) -> Tensor:
        assert not eight_bit
        made.append(cols)
        return positions.flatten().clone()

    monkeypatch.setattr(semi24, "order", order)
    assert layer.metadata is None
    layer.double()
    assert torch.equal(layer.metadata, layer.positions.flatten()) and made == [32]
    layer.float().load_state_dict(linear().state_dict())
    assert torch.equal(layer.metadata, layer.positions.flatten())
    assert "metadata" not in layer.state_dict() and torch.equal(layer(torch.ones(32)), layer(torch.ones(32)))
    ignored = sparseloom.prepare_ddp(nn.Sequential(layer))._ddp_params_and_buffers_to_ignore
    assert ignored == ["0.metadata", "0.positions"]


def test_compiled_by_inductor(layer: Semi24Linear):
    net = nn.Sequential(layer, nn.LayerNorm(24))
    x = torch.randn(4, 32, requires_grad=True)
    compiled = torch.compile(net, fullgraph=True)
    torch.testing.assert_close(compiled(x), net(x))
    (mine,), (theirs,) = (torch.autograd.grad(f(x).square().sum(), x) for f in (compiled, net))
    torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_plan_says_what_runs(layer: Semi24Linear):
    plan = layer.plan(8)
    assert plan["kernel"] and plan["text"] and plan["predicted_us"] is not None
    assert layer.plan(8, "dx")["kernel"]
    with pytest.raises(Error, match="forward, dx, got 'dw'"):
        layer.plan(8, "dw")


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda layer: layer(torch.randn(3, 31)), r"x \[..., 32\]"),
        (lambda layer: layer(torch.randn(3, 32).half()), "the layer's dtype"),
        (lambda layer: layer([1.0]), "x to be a tensor, got list"),
        (lambda layer: layer.weight @ torch.ones(32), "to be asked for dtype.*packed, two of four"),
        (lambda layer: nn.init.zeros_(layer.weight), "to be asked for dtype"),
        (
            lambda layer: setattr(layer, "weight", nn.Parameter(torch.ones(1))),
            "the layer's Parameter is values",
        ),
        (lambda layer: Semi24Linear(8, 8, activation="tanh"), "activation"),
        (lambda layer: Semi24("best"), "prune=None or one of"),
    ],
)
def test_wrong_calls_are_named(layer: Semi24Linear, call, says: str):
    with pytest.raises(Error, match=says):
        call(layer)


def test_the_weight_answers_for_a_dense_one(layer: Semi24Linear):
    weight = layer.weight
    assert (weight.shape, weight.dtype, weight.requires_grad) == ((24, 32), torch.float32, False)


class Mixed(nn.Module):
    """Attention, a 1x1 convolution and linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)
        self.attend = nn.MultiheadAttention(32, 4, batch_first=True)
        self.conv = nn.Conv1d(5, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(x, x, x, need_weights=False)[0]
        return self.conv(x + self.down(self.up(x).relu()))


MIXED = {"up|attend": PRUNED, "down": BlockSparse(16, 0.5), "conv": Semi24("transposable_greedy")}


def test_models_may_mix_layouts(tmp_path: Path):
    torch.manual_seed(3)
    net, x = Mixed(), torch.randn(2, 5, 32)
    bias, initial = net.up.bias, torch.get_rng_state()
    optimizer = torch.optim.Adam(net.parameters())
    net(x).square().sum().backward()
    optimizer.step()
    momentum = optimizer.state[net.up.weight]["exp_avg"].clone()
    result = sparsify_(net, MIXED, optimizer=optimizer)
    assert "5 layers became 2:4 and block-sparse" in str(result) and "layout semi24" in str(result)
    assert [change.layout for change in result.changed].count("semi24") == 4
    assert net.up.bias is bias and torch.equal(torch.get_rng_state(), initial)
    carried = optimizer.state[net.up.values]["exp_avg"]
    assert torch.equal(carried, net.up.layout.pack(momentum)) and net.up.values.grad is None

    values = net.up.values.detach().clone()
    optimizer.zero_grad()
    net(x).square().sum().backward()
    optimizer.step()
    assert torch.equal(net.up.values, values) and net.down.values.grad is not None

    sparseloom.save(net, tmp_path / "net.safetensors")
    again = Mixed()
    sparseloom.load(tmp_path / "net.safetensors", again, sparsify=True)
    assert torch.equal(again(x), net(x))
    header = (tmp_path / "net.safetensors").read_bytes()
    told = json.loads(header[8 : 8 + int.from_bytes(header[:8], "little")])["__metadata__"]["layers"]
    assert json.loads(told)["up"] == {"layout": "semi24", "in_features": 32, "out_features": 64}

    want, kept = net(x), net.up.to_dense().weight.detach()
    undone = densify_(net, optimizer=optimizer)
    assert "stay frozen" in str(undone) and not net.up.weight.requires_grad
    torch.testing.assert_close(net(x), want)
    assert torch.equal(net.up.weight, kept) and net.up.bias is bias
    assert isinstance(net.attend, nn.MultiheadAttention) and isinstance(net.conv, nn.Conv1d)


def test_a_model_that_is_not_2_4_stays_untouched_and_the_layer_is_named():
    net = Mixed()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    with pytest.raises(Error, match=r"down\.weight: .*row 0"):
        sparsify_(net, {"up": PRUNED, "down": Semi24()})
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
    with pytest.raises(Error, match="values of up to pack"):
        sparsify_(Mixed().to("meta"), {"up": PRUNED})
    with pytest.raises(Error, match="a BlockSparse or Semi24 for 'up'"):
        sparsify_(net, {"up": 0.5})
    with pytest.raises(Error, match=r"use Semi24Linear\.from_dense"):
        sparsify_(nn.Linear(8, 8), {"": PRUNED})


def test_meta_models_load_and_are_frozen(tmp_path: Path):
    net, x = Mixed(), torch.randn(2, 5, 32)
    sparsify_(net, MIXED)
    sparseloom.save(net, tmp_path / "net.safetensors")
    with torch.device("meta"):
        empty = Mixed()
    sparseloom.load(tmp_path / "net.safetensors", empty, sparsify=True)
    assert torch.equal(empty(x), net(x)) and not empty.up.values.requires_grad


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda state: state.pop("positions"), "no positions"),
        (lambda state: state["positions"][3].fill_(0x11), "ascending order, got places .* in row 3, group 0"),
        (lambda state: state.update(values=torch.ones(24, 14)), "values"),
        (lambda state: state.update(positions=state["positions"].int()), "positions"),
    ],
)
def test_a_state_that_does_not_fit_changes_nothing(layer: Semi24Linear, spoil, says: str):
    state = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    before = {name: tensor.clone() for name, tensor in state.items()}
    spoil(state)
    with pytest.raises(Error, match=says):
        layer.load_state_dict(state)
    assert all(torch.equal(tensor, before[name]) for name, tensor in layer.state_dict().items())


def test_padding_that_is_not_zero_is_refused():
    layer = Semi24Linear.from_dense(torch.ones(2, 5), "magnitude")
    state = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    state["values"][:, -2:] = float("nan")
    with pytest.raises(Error, match="zeros as padding"):
        layer.load_state_dict(state)


def test_a_dense_checkpoint_brings_its_own_places(layer: Semi24Linear):
    other = linear()
    layer.load_state_dict(other.state_dict())
    assert torch.equal(layer.to_dense().weight, other.weight)
    places, dense = layer.positions.clone(), nn.Linear(32, 24)  # not 2:4: packed by the layer's places
    layer.load_state_dict(dense.state_dict())
    kept = other.weight != 0
    assert torch.equal(layer.positions, places)
    assert torch.equal(layer.to_dense().weight, torch.where(kept, dense.weight, 0))
    with pytest.raises(Error, match="weight of 24 x 32"):
        layer.load_state_dict(linear(16, 24).state_dict())


def test_special_values_keep_their_places_and_do_not_spread():
    weight = torch.zeros(8, 8)
    weight[0, 1], weight[0, 2], weight[1, 6], weight[2, 3] = -0.0, float("inf"), float("nan"), 1e-40
    layer = Semi24Linear.from_dense(weight)
    assert torch.equal(layer.to_dense().weight.nan_to_num(7), weight.nan_to_num(7))
    x = torch.ones(1, 8)
    assert layer(x).isnan().tolist() == [[False, True] + 6 * [False]]


def test_report_times_the_layer_alone(layer: Semi24Linear):
    net = nn.Sequential(layer, nn.ReLU(), nn.Linear(24, 4))
    report = sparseloom.report(net, torch.randn(3, 32, requires_grad=True), seconds=0.01)
    assert "24x32 semi24 .5" in str(report) and "semi24" in report.to_html()
    entry = report.layers[0]
    assert (entry.layout, entry.density, entry.tokens, entry.dtype) == ("semi24", 0.5, 3, "float32")
    assert entry.bytes == layer.values.nbytes + layer.positions.nbytes + layer.bias.nbytes
    assert entry.times.keys() == {"forward", "backward"} and entry.kernels.keys() == {"forward", "dx"}
    assert not entry.break_even and entry.note in ("", "slower than dense: " + ", ".join(entry.slower))
    assert report.totals.dense_parameters == 24 * 32 + 24 + 25 * 4
    assert repr(layer).endswith("bias=True, layout=semi24, density=0.5)")


def test_the_layout_is_registered_and_documents_itself():
    assert sparseloom.layouts.get("semi24") is Semi24Layout and "semi24" in sparseloom.layouts.names()


def test_calls_with_gradients_bind_no_signatures(layer: Semi24Linear, monkeypatch: pytest.MonkeyPatch):
    """torch binds the arguments of a Function with a setup_context anew in each call, for 50 to 100 us."""
    csr = nn.Sequential(linear())
    sparsify_(csr, {".*": sparseloom.InLayout("csr", density=0.5)})
    monkeypatch.setattr("inspect.signature", lambda *_: pytest.fail("bound"))
    for module in (layer, csr):
        x = torch.randn(3, 32, requires_grad=True)
        module(x).sum().backward()
        assert x.grad is not None
