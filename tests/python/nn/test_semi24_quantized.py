"""8-bit 2:4 layers: the operator beside torch's integers, quantize_, files, compile, and what is refused."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from bits import same
from torch import Tensor, nn

import sparseloom
from sparseloom import BlockSparse, Error, Semi24, quantize_, sparsify_
from sparseloom.nn import QuantizedBlockSparseLinear, QuantizedSemi24Linear, Semi24Linear
from sparseloom.ops import semi24

FLOAT8 = torch.float8_e4m3fn
DTYPES = [torch.int8, FLOAT8]


def layer_of(
    cols: int = 90, rows: int = 50, bias: bool = True, activation: str | None = None
) -> Semi24Linear:
    torch.manual_seed(7)
    return Semi24Linear.from_dense(nn.Linear(cols, rows, bias), "magnitude", activation=activation)


def operands(rows: int, cols: int, m: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns x, values, positions and the dense weight in float64."""
    generator = torch.Generator().manual_seed(rows + cols)
    dense = torch.randn(rows, cols, generator=generator)
    dense[dense == 0] = 1
    values, positions = semi24.pack(dense.masked_fill(~semi24.mask(dense, "magnitude"), 0))
    x = torch.randint(-128, 128, (m, cols), generator=generator, dtype=torch.int8)
    if dtype is FLOAT8:
        eight, x8 = (values * 8).to(FLOAT8), (x / 64).to(FLOAT8)
    else:
        eight, x8 = (values * 40).round().clamp(-127, 127).to(torch.int8), x
    return x8, eight, positions, semi24.unpack(eight.float(), positions, cols).double()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("out", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", [(8, 64), (33, 130), (5, 3), (50, 257)])
@pytest.mark.parametrize("kernel", ["", "expand", "reference"])
def test_products_are_those_of_the_dense_twin(
    shape: tuple[int, int], out: torch.dtype, dtype: torch.dtype, kernel: str
):
    (rows, cols), m = shape, 11
    x, values, positions, dense = operands(rows, cols, m, dtype)
    x_scale, w_scale = torch.rand(m, 1) + 0.5, torch.rand(rows) + 0.5
    bias = torch.randn(rows).to(out)
    y = semi24.scaled_linear(
        x, values, positions, cols, x_scale, w_scale, bias,
        out_dtype=out, activation="relu", kernel=kernel,
    )  # fmt: skip
    exact = (x.double() @ dense.T) * x_scale.double() * w_scale.double() + bias.double()
    bound = (x.double().abs() @ dense.abs().T) * x_scale.double() * w_scale.double() + bias.abs().double()
    assert y.dtype is out and y.shape == (m, rows)
    ulp = 2.0**-8 if out is torch.bfloat16 else 0
    assert ((y.double() - exact.relu()).abs() <= 1.01 * ulp * exact.abs() + 2.0**-20 * bound).all()


def test_int8_has_the_bits_of_torchs_integers():
    x, values, positions, dense = operands(40, 96, 9, torch.int8)
    x_scale, w_scale = torch.rand(9) / 100, torch.rand(40)
    sums = (x.double() @ dense.T).float()
    want = (sums * x_scale[:, None]) * w_scale
    for kernel in ("expand", "reference"):
        y = semi24.scaled_linear(
            x, values, positions, 96, x_scale, w_scale, out_dtype=torch.float32, kernel=kernel
        )
        assert torch.equal(y, want)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_operator_is_registered_as_torch_wants_it(dtype: torch.dtype):
    x, values, positions, _ = operands(24, 40, 6, dtype)
    how = (torch.rand(6), torch.rand(24), torch.float32, torch.randn(24), 2)
    schema = ("test_schema",) if dtype is torch.int8 else ()  # which multiplies outputs, and torch no float8
    tests = (*schema, "test_faketensor", "test_autograd_registration")
    operator = torch.ops.sparseloom.semi24_scaled_linear.default
    torch.library.opcheck(operator, (x, values, positions, 40, None, *how), test_utils=tests)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("activation", [None, "gelu"])
def test_is_near_the_float_layer(dtype: torch.dtype, given: torch.dtype, activation: str | None):
    layer = layer_of(activation=activation)
    eight = QuantizedSemi24Linear.from_sparse(layer, dtype)
    x = torch.randn(2, 1, 1, 3, 90).to(given)  # more dimensions than operators take
    with torch.no_grad():
        y, exact = eight(x), layer(x.float())
        rounded = eight.to_dense()(x.float())
    bound = 0.02 if dtype is torch.int8 else 0.06
    assert y.dtype is given and y.shape == exact.shape and not y.requires_grad
    assert (y.float() - exact).norm() < bound * exact.norm()
    assert (rounded - exact).norm() < bound * exact.norm()


@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_are_rounded_by_output(dtype: torch.dtype):
    layer = layer_of()
    with torch.no_grad():
        layer.values.mul_(torch.logspace(-6, 6, 50)[:, None])
        layer.values[3].zero_()
    eight = QuantizedSemi24Linear.from_sparse(layer, dtype)
    dense, rounded = layer.to_dense().weight, eight.to_dense().weight
    most = 127 if dtype is torch.int8 else 448
    torch.testing.assert_close(eight.w_scale, dense.abs().amax(1) / most, rtol=1e-6, atol=0)
    largest = dense.abs().amax(1, keepdim=True)
    step = largest / 254 if dtype is torch.int8 else dense.abs() / 16 + largest / 448 / 2**10
    assert ((dense - rounded).abs() <= step * 1.001).all()
    assert torch.equal(rounded != 0, (dense != 0) & (rounded != 0)), "elements stay in their places"
    assert torch.equal(eight.positions, layer.positions)


def test_a_model_is_quantized_beside_blocks():
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.Linear(64, 8))
    sparsify_(net, {"0": Semi24("magnitude"), "2": BlockSparse(16, 0.5)})
    result = quantize_(net, {"0": FLOAT8, "2": torch.int8}, x_scale={"0": 0.01}, use_fast_accum=True)
    assert type(net[0]) is QuantizedSemi24Linear and type(net[2]) is QuantizedBlockSparseLinear
    two, blocks = result.changed
    assert (two.layout, two.block, two.dtype, two.names) == ("semi24", None, "float8_e4m3fn", ("0",))
    assert (blocks.layout, blocks.block) == ("bsr", (16, 16)) and 0 < two.error < 0.05
    assert two.bytes == (64 * 32 * 4 + 64 * 4, 64 * 32 + 64 * 8) and two.x_scale == pytest.approx(0.01)
    assert net[0].use_fast_accum and "semi24" in str(result) and "no fast kernel on CPUs" not in str(result)
    again = quantize_(nn.Sequential(net[0], layer_of()), torch.int8)
    assert [(skip.name, skip.reason) for skip in again.skipped] == [("0", "it is quantized already")]
    with torch.no_grad():
        assert net[0](torch.randn(3, 64)).shape == (3, 64)


def test_what_cannot_be_quantized_says_why():
    class Own(Semi24Linear):
        pass

    class Other(Semi24Linear):
        def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
            return x

    hooked = layer_of()
    hooked.register_forward_hook(lambda *_: None)
    net = nn.ModuleDict({"own": Own(8, 8), "other": Other(8, 8), "hooked": hooked, "good": layer_of()})
    reasons = {skip.name: skip.reason for skip in quantize_(net).skipped}
    assert reasons["own"] == "it is of a class of its own" and "Semi24Linear's own" in reasons["other"]
    assert reasons["hooked"].startswith("it has hooks") and type(net["good"]) is QuantizedSemi24Linear
    layer = layer_of()
    with torch.no_grad():
        layer.values[0, 0] = float("inf")
    with pytest.raises(Error, match="finite weights"):
        QuantizedSemi24Linear.from_sparse(layer)
    with pytest.raises(Error, match="Semi24Layout"):
        QuantizedSemi24Linear(sparseloom.pattern.random(8, 8, 8, 1.0, 1))  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("x_scale", [None, 0.02])
def test_states_files_pickles_and_copies_keep_the_bits(
    dtype: torch.dtype, x_scale: float | None, tmp_path: Path
):
    layer = layer_of()
    net = nn.Sequential(QuantizedSemi24Linear.from_sparse(layer, dtype, x_scale=x_scale))
    torch.manual_seed(1)
    other = Semi24Linear(90, 50)
    fresh = nn.Sequential(QuantizedSemi24Linear.from_sparse(other, dtype, x_scale=x_scale))
    x = torch.randn(5, 90)
    assert not same(net, fresh)
    names = ["values", "w_scale", *(["x_scale"] if x_scale else []), "bias", "positions"]
    assert list(net[0].state_dict()) == names and not list(net.parameters())
    sparseloom.save(net, tmp_path / "net.safetensors")
    sparseloom.load(tmp_path / "net.safetensors", fresh)
    assert same(net, fresh) and torch.equal(net(x), fresh(x))
    meta = copy.deepcopy(net).to("meta")
    meta.load_state_dict(net.state_dict(), assign=True)
    assert torch.equal(meta(x), net(x))
    torch.save(net, tmp_path / "net.pt")  # pickle alone has no float8
    assert torch.equal(torch.load(tmp_path / "net.pt", weights_only=False)(x), net(x))
    before = {name: tensor.clone() for name, tensor in net[0].state_dict().items()}
    half = copy.deepcopy(net).half()
    for name, tensor in half[0].state_dict().items():
        assert tensor.dtype is (torch.float16 if name == "bias" else before[name].dtype), name
        if name != "bias":
            assert torch.equal(tensor.view(torch.uint8), before[name].view(torch.uint8)), name


def test_a_state_that_does_not_fit_changes_nothing():
    eight = QuantizedSemi24Linear.from_sparse(layer_of())
    before = copy.deepcopy(eight)
    for state in (
        layer_of().state_dict(),
        QuantizedSemi24Linear.from_sparse(layer_of(), FLOAT8).state_dict(),
    ):
        with pytest.raises(RuntimeError, match=r"values of torch.int8, as the layer has"):
            eight.load_state_dict(state, strict=False)
    for name, spoiled in {
        "positions": torch.zeros_like(eight.positions),
        "values": torch.zeros(3, 3).char(),
    }.items():
        with pytest.raises(RuntimeError, match=r"layer: \[load\]"):
            eight.load_state_dict({**eight.state_dict(), name: spoiled})
    assert same(eight, before)


def test_padding_of_float8_is_looked_at():
    eight = QuantizedSemi24Linear.from_sparse(layer_of(6, 4), FLOAT8)
    state = eight.state_dict()
    values = state["values"].float()
    values[0, -2:] = 1
    positions = state["positions"].clone()
    positions[0, 0] = 0b11100100  # the second group's elements lie beyond the six columns
    with pytest.raises(RuntimeError, match="right of the last column"):
        eight.load_state_dict({**state, "values": values.to(FLOAT8), "positions": positions})


@pytest.mark.parametrize("dtype", DTYPES)
def test_compiles_exports_and_runs_under_autocast(dtype: torch.dtype):
    net = nn.Sequential(
        QuantizedSemi24Linear.from_sparse(layer_of(activation="gelu"), dtype), nn.LayerNorm(50)
    )
    x = torch.randn(6, 90)
    with torch.no_grad():
        want = net(x)
        compiled = torch.compile(net, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(compiled(x), want)
        exported = torch.export.export(net, (x,))
        torch.testing.assert_close(exported.module()(x), want)
        with torch.autocast("cpu", torch.bfloat16):
            assert net[0](x).dtype is torch.bfloat16


def test_there_are_no_gradients():
    eight = QuantizedSemi24Linear.from_sparse(layer_of())
    with pytest.raises(Error, match="x without a gradient: a quantized layer has none"):
        eight(torch.randn(2, 90, requires_grad=True))
    x, values, positions, _ = operands(8, 16, 2, torch.int8)
    scale = torch.ones(1, requires_grad=True)
    with pytest.raises(Error, match="operands without gradients, got x_scale"):
        semi24.scaled_linear(x, values, positions, 16, scale, scale.detach(), out_dtype=torch.float32)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"out_dtype": torch.float16}, "out_dtype bfloat16 or float32"),
        ({"x": torch.zeros(2, 16)}, "x of dtype int8 or float8_e4m3fn"),
        ({"x": torch.zeros(2, 16).to(FLOAT8)}, "values of x's dtype float8_e4m3fn, got int8"),
        ({"x": torch.zeros(2, 12).char()}, "x with 16 features"),
        ({"x_scale": torch.ones(3)}, "x_scale of dtype float32 with 1 or 2 elements"),
        ({"w_scale": torch.ones(8).double()}, "w_scale of dtype float32"),
        ({"bias": torch.zeros(8).bfloat16()}, "bias of shape .* and of out_dtype, f32"),
        ({"activation": "tanh"}, "activation to be one of None, 'relu'"),
        ({"kernel": "sm90_wgmma"}, "sm90_wgmma"),
        ({"strict": True, "kernel": "reference"}, "strict forbids the reference kernel"),
    ],
)
def test_wrong_calls_are_named(change: dict[str, object], words: str):
    x, values, positions, _ = operands(8, 16, 2, torch.int8)
    call: dict[str, object] = {
        "x": x, "values": values, "positions": positions, "cols": 16, "x_scale": torch.ones(2),
        "w_scale": torch.ones(8), "out_dtype": torch.float32, **change,
    }  # fmt: skip
    with pytest.raises(Error, match=words):
        semi24.scaled_linear(**call)  # type: ignore[arg-type]


def test_plan_and_repr_say_what_runs():
    eight = QuantizedSemi24Linear.from_sparse(layer_of(activation="relu"), FLOAT8)
    plan = eight.plan(16)
    assert plan["kernel"] == "expand" and {each["kernel"] for each in plan["candidates"]} >= {
        "expand",
        "reference",
    }
    assert "semi24" in plan["text"] and "float8_e4m3fn" in plan["text"] and "out=bf16" in plan["text"]
    eight.kernel = "reference"
    assert eight.plan(16, torch.float32)["kernel"] == "reference"
    text = repr(eight)
    assert "layout=semi24" in text and "dtype=float8_e4m3fn, x_scale=per token" in text and "relu" in text
    assert eight.weight.shape == (50, 90) and eight.weight.dtype is FLOAT8


def test_report_densify_and_twin_go_on():
    net = nn.Sequential(layer_of(), nn.ReLU(), nn.Linear(50, 4))
    quantize_(net)
    x = torch.randn(3, 90)
    report = sparseloom.report(net, x, seconds=0.01)
    assert report.totals.parameters > 0
    with pytest.raises(Error, match="a block-sparse layer for"):  # rounding cannot be undone
        sparseloom.densify_(net)
    with torch.no_grad():
        near = F.linear(x, net[0].to_dense().weight, net[0].bias)
        assert (net[0](x) - near).norm() < 0.02 * near.norm()
