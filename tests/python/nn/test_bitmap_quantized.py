"""8-bit bitmap layers: the operator beside torch's integers, files, transformers, compile, refusals."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from bits import same
from tiny_models import made, reloaded, tokens
from torch import Tensor, nn

import sparseloom
from sparseloom import Bitmap, Error, InLayout, quantize_, sparsify_
from sparseloom.layouts import Bitmap as Layout
from sparseloom.nn import QuantizedSparseLinear, SparseLinear
from sparseloom.ops import bitmap

FLOAT8 = torch.float8_e4m3fn
DTYPES = [torch.int8, FLOAT8]
#: Rows, columns and tokens: ends of vectors of 64 columns and of panels of 4 rows, few and many tokens.
SHAPES = [(8, 64, 1), (33, 130, 2), (5, 3, 4), (50, 257, 11), (12, 2100, 70), (1, 1, 5)]


def layer_of(activation: str | None = None) -> SparseLinear:
    return SparseLinear(90, 50, layout="bitmap", density=0.5, activation=activation, seed=7)


def operands(rows: int, cols: int, m: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Layout, Tensor]:
    """Returns x, values, layout and the dense weight in float64."""
    generator = torch.Generator().manual_seed(rows + cols)
    dense = torch.randint(-127, 128, (rows, cols), generator=generator, dtype=torch.int8)
    layout = Layout.of_mask(torch.rand(rows, cols, generator=generator) < 0.5)
    x = torch.randint(-128, 128, (m, cols), generator=generator, dtype=torch.int8)
    if dtype is FLOAT8:
        dense, x = (dense / 16).to(FLOAT8), (x / 64).to(FLOAT8)
    kept = dense.double() * layout.mask()
    return x, dense.view(torch.int8).masked_select(layout.mask()).view(dtype), layout, kept


def kernels_of(dtype: torch.dtype, m: int, layout: Layout) -> list[str]:
    sizes = layout.rows, layout.cols, layout.stored
    plan = bitmap.scaled_plan(dtype, m, sizes, True, None, torch.float32)
    return [each["kernel"] for each in plan["candidates"] if not each["refusal"]]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("out", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", SHAPES)
def test_products_are_those_of_the_dense_twin(
    shape: tuple[int, int, int], out: torch.dtype, dtype: torch.dtype
) -> None:
    rows, cols, m = shape
    x, values, layout, dense = operands(rows, cols, m, dtype)
    x_scale, w_scale = torch.rand(m, 1) + 0.5, torch.rand(rows) + 0.5
    bias = torch.randn(rows).to(out)
    exact = (x.double() @ dense.T) * x_scale.double() * w_scale.double() + bias.double()
    bound = (x.double().abs() @ dense.abs().T) * x_scale.double() * w_scale.double() + bias.abs().double()
    ulp = 2.0**-8 if out is torch.bfloat16 else 0
    kernels = kernels_of(dtype, m, layout)
    assert {"expand", "reference"} <= set(kernels)
    for kernel in kernels:
        y = bitmap.scaled_linear(
            x, values, layout.bits, layout.bounds(), x_scale, w_scale, bias,
            out_dtype=out, activation="relu", kernel=kernel,
        )  # fmt: skip
        assert y.dtype is out and y.shape == (m, rows)
        assert ((y.double() - exact.relu()).abs() <= 1.01 * ulp * exact.abs() + 2.0**-20 * bound).all(), (
            kernel
        )


@pytest.mark.parametrize("m", [1, 3, 20])
def test_int8_has_the_bits_of_torchs_integers_and_rounds_x_itself(m: int) -> None:
    x, values, layout, dense = operands(40, 96, m, torch.int8)
    x_scale, w_scale = torch.rand(m) / 100, torch.rand(40)
    want = ((x.double() @ dense.T).float() * x_scale[:, None]) * w_scale
    index = layout.bits, layout.bounds()
    for kernel in kernels_of(torch.int8, m, layout):
        how = {"out_dtype": torch.float32, "kernel": kernel}
        assert torch.equal(bitmap.scaled_linear(x, values, *index, x_scale, w_scale, **how), want), kernel
        given = torch.randn(m, 96)
        rounded, scale = sparseloom.ops.quantize_rows(given, torch.int8)
        by_hand = bitmap.scaled_linear(rounded, values, *index, scale, w_scale, **how)
        assert torch.equal(bitmap.scaled_linear(given, values, *index, None, w_scale, **how), by_hand)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_operator_is_registered_as_torch_wants_it(dtype: torch.dtype) -> None:
    x, values, layout, _ = operands(24, 40, 6, dtype)
    how = (torch.rand(6), torch.rand(24), torch.float32, torch.randn(24), 2)
    schema = ("test_schema",) if dtype is torch.int8 else ()  # which multiplies outputs, and torch no float8
    tests = (*schema, "test_faketensor", "test_autograd_registration")
    operator = torch.ops.sparseloom.bitmap_scaled_linear.default
    torch.library.opcheck(operator, (x, values, layout.bits, layout.bounds(), *how), test_utils=tests)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("activation", [None, "gelu"])
def test_is_near_the_float_layer(dtype: torch.dtype, given: torch.dtype, activation: str | None) -> None:
    layer = layer_of(activation=activation)
    eight = QuantizedSparseLinear.from_sparse(layer, dtype)
    x = torch.randn(2, 1, 1, 3, 90).to(given)  # more dimensions than operators take
    with torch.no_grad():
        y, exact, rounded = eight(x), layer(x.float()), eight.to_dense()(x.float())
    bound = 0.02 if dtype is torch.int8 else 0.06
    assert y.dtype is given and y.shape == exact.shape and not y.requires_grad
    assert (y.float() - exact).norm() < bound * exact.norm()
    assert (rounded - exact).norm() < bound * exact.norm()


@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_are_rounded_by_output(dtype: torch.dtype) -> None:
    layer = layer_of()
    with torch.no_grad():
        rows = layer.layout.places()[0]
        layer.values.mul_(torch.logspace(-6, 6, 50)[rows])
        layer.values[rows == 3] = 0
    eight = QuantizedSparseLinear.from_sparse(layer, dtype)
    dense, rounded = layer.to_dense().weight, eight.to_dense().weight
    largest = dense.abs().amax(1, keepdim=True)
    torch.testing.assert_close(
        eight.w_scale, largest[:, 0] / (127 if dtype is torch.int8 else 448), rtol=1e-6, atol=0
    )
    step = largest / 254 if dtype is torch.int8 else dense.abs() / 16 + largest / 448 / 2**10
    assert ((dense - rounded).abs() <= step * 1.001).all()
    assert torch.equal(rounded != 0, (dense != 0) & (rounded != 0)), "elements stay in their places"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("x_scale", [None, 0.02])
def test_states_files_pickles_and_copies_keep_the_bits(
    dtype: torch.dtype, x_scale: float | None, tmp_path: Path
) -> None:
    net = nn.Sequential(nn.Linear(90, 50), nn.GELU())
    sparsify_(net, {"0": Bitmap(density=0.5)})
    result = quantize_(net, dtype, x_scale=x_scale)
    (change,) = result.changed
    assert type(net[0]) is QuantizedSparseLinear and (change.layout, change.block) == ("bitmap", None)
    assert 0 < change.error < 0.05 and change.bytes[1] < change.bytes[0] / 3 and "bitmap" in str(result)
    fresh = nn.Sequential(
        QuantizedSparseLinear.from_sparse(layer_of(), dtype, x_scale=x_scale), copy.copy(net[1])
    )
    fresh[0].activation = net[0].activation
    x = torch.randn(5, 90)
    names = ["values", "w_scale", *(["x_scale"] if x_scale else []), "bias", "bits"]
    assert sorted(net[0].state_dict()) == sorted(names) and not list(net.parameters())
    sparseloom.save(net, tmp_path / "net.safetensors")
    sparseloom.load(tmp_path / "net.safetensors", fresh)
    assert same(net, fresh) and torch.equal(net(x), fresh(x))
    meta = copy.deepcopy(net).to("meta")
    meta.load_state_dict(net.state_dict(), assign=True)
    assert torch.equal(meta(x), net(x))
    torch.save(net, tmp_path / "net.pt")
    assert torch.equal(torch.load(tmp_path / "net.pt", weights_only=False)(x), net(x))
    half = copy.deepcopy(net).half()
    for name, tensor in half[0].state_dict().items():
        was = net[0].state_dict()[name]
        assert tensor.dtype is (torch.float16 if name == "bias" else was.dtype), name
        assert name == "bias" or torch.equal(tensor.view(torch.uint8), was.view(torch.uint8)), name


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("cls", "name"), [("BertForMaskedLM", "bert"), ("LlamaForCausalLM", "llama")])
def test_models_of_transformers_come_back_bitwise(
    tmp_path: Path, cls: str, name: str, dtype: torch.dtype
) -> None:
    model = made(cls, name)
    sparsify_(model, {r".*(dense|_proj)": Bitmap(density=0.4)})
    count = len(quantize_(model, dtype).changed)
    again = reloaded(model, tmp_path / "eight")
    assert same(model, again)
    assert count == sum(isinstance(layer, QuantizedSparseLinear) for layer in again.modules()) > 0
    with torch.no_grad():
        assert torch.equal(model(tokens()).logits, again(tokens()).logits)


def test_a_state_that_does_not_fit_changes_nothing() -> None:
    eight = QuantizedSparseLinear.from_sparse(layer_of())
    before = copy.deepcopy(eight)
    for state in (
        layer_of().state_dict(),
        QuantizedSparseLinear.from_sparse(layer_of(), FLOAT8).state_dict(),
    ):
        with pytest.raises(RuntimeError, match=r"values of torch.int8, as the layer has"):
            eight.load_state_dict(state, strict=False)
    for name, spoiled in {
        "bits": torch.zeros_like(eight.bits),
        "values": torch.zeros(3, 3).char(),
    }.items():
        with pytest.raises(RuntimeError, match=r"layer: \[load\]"):
            eight.load_state_dict({**eight.state_dict(), name: spoiled})
    assert same(eight, before)


@pytest.mark.parametrize("dtype", DTYPES)
def test_compiles_exports_and_runs_under_autocast(dtype: torch.dtype) -> None:
    net = nn.Sequential(
        QuantizedSparseLinear.from_sparse(layer_of(activation="gelu"), dtype), nn.LayerNorm(50)
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


def test_what_cannot_be_quantized_says_why() -> None:
    with pytest.raises(Error, match=r'layout "bitmap", got a SparseLinear of layout csr'):
        QuantizedSparseLinear.from_sparse(SparseLinear(8, 8, layout="csr", density=0.5))
    with pytest.raises(Error, match=r"layouts.Bitmap, got Csr"):
        QuantizedSparseLinear(SparseLinear(8, 8, layout="csr", density=0.5).layout)
    layer = layer_of()
    with torch.no_grad():
        layer.values[0] = float("inf")
    with pytest.raises(Error, match="finite weights"):
        QuantizedSparseLinear.from_sparse(layer)
    net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    sparsify_(net, {"0": InLayout("csr", density=0.5), "1": Bitmap(density=0.5)})
    reasons = {skip.name: skip.reason for skip in quantize_(net).skipped}
    assert "not of layout csr" in reasons["0"] and type(net[1]) is QuantizedSparseLinear
    with pytest.raises(Error, match="x without a gradient: a quantized layer has none"):
        net[1](torch.randn(2, 8, requires_grad=True))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"out_dtype": torch.float16}, "out_dtype bfloat16 or float32"),
        ({"x": torch.zeros(2, 16).double()}, "x of dtype int8 or float8_e4m3fn"),
        ({"x": torch.zeros(2, 16).to(FLOAT8)}, "values of x's dtype float8_e4m3fn, got int8"),
        ({"x": torch.zeros(2, 24).char()}, "for a weight of 24 columns"),
        ({"x_scale": torch.ones(3)}, "x_scale of dtype float32 with 1 or 2 elements"),
        ({"x_scale": None}, "x_scale beside x in 8 bits"),
        ({"x": torch.zeros(2, 16)}, "x_scale of one element, or none"),
        ({"w_scale": torch.ones(8).double()}, "w_scale of dtype float32"),
        ({"bias": torch.zeros(8).bfloat16()}, "bias of shape .* and of out_dtype, f32"),
        ({"activation": "tanh"}, "activation to be one of None, 'relu'"),
        ({"kernel": "avx2_bitmap"}, "avx2_bitmap"),
        ({"strict": True, "kernel": "reference"}, "strict forbids the reference kernel"),
        ({"bias": torch.zeros(8, requires_grad=True)}, "operands without gradients, got bias"),
        ({"bits": torch.zeros(8, 2, dtype=torch.uint8)}, "bits"),
    ],
)
def test_wrong_calls_are_named(change: dict[str, object], words: str) -> None:
    x, values, layout, _ = operands(8, 16, 2, torch.int8)
    call: dict[str, object] = {
        "x": x, "values": values, "bits": layout.bits, "crow": layout.bounds(), "x_scale": torch.ones(2),
        "w_scale": torch.ones(8), "out_dtype": torch.float32, **change,
    }  # fmt: skip
    with pytest.raises(Error, match=words):
        bitmap.scaled_linear(**call)  # type: ignore[arg-type]


def test_plan_report_and_repr_say_what_runs() -> None:
    eight = QuantizedSparseLinear.from_sparse(layer_of(activation="relu"), FLOAT8)
    assert eight.plan(16)["kernel"] == "expand" and "out=bf16" in eight.plan(16)["text"]
    eight.kernel = "reference"
    assert eight.plan(16, torch.float32)["kernel"] == "reference"
    text = repr(eight)
    assert "layout=bitmap" in text and "dtype=float8_e4m3fn, x_scale=per token" in text and "relu" in text
    assert eight.weight.shape == (50, 90) and eight.weight.dtype is FLOAT8
    net = nn.Sequential(layer_of(), nn.ReLU(), nn.Linear(50, 4))
    quantize_(net)
    assert sparseloom.report(net, torch.randn(3, 90), seconds=0.01).totals.parameters > 0
    with pytest.raises(Error, match="a block-sparse layer for"):  # rounding cannot be undone
        sparseloom.densify_(net)
