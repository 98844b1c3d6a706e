"""quantize_ and QuantizedBlockSparseLinear: near the float layer, saved and loaded, and refusing what it
cannot do."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from eight_bits import fast_int8
from test_scaled import FLOAT8, KERNEL
from torch import nn

import sparseloom
from sparseloom import Error, ops
from sparseloom.nn import BlockSparseLinear, QuantizedBlockSparseLinear

DTYPES = [torch.int8, FLOAT8]


def layer_of(rows: int = 150, cols: int = 210, block: int = 32, **options: Any) -> BlockSparseLinear:
    generator = torch.Generator().manual_seed(3)
    return BlockSparseLinear(cols, rows, density=0.4, block=block, seed=generator, **options)


def quantized_of(
    layer: BlockSparseLinear, dtype: torch.dtype = torch.int8, **options: Any
) -> QuantizedBlockSparseLinear:
    made = QuantizedBlockSparseLinear.from_sparse(layer, dtype, **options)
    made.kernel = "reference" if dtype is FLOAT8 else KERNEL
    return made


def model_of() -> nn.Sequential:
    return nn.Sequential(
        layer_of(64, 96, 16), nn.ReLU(), nn.Linear(64, 64), layer_of(32, 64, 16, activation="gelu")
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("activation", [None, "gelu"])
def test_is_near_the_float_layer(dtype: torch.dtype, given: torch.dtype, activation: str | None) -> None:
    layer = layer_of(activation=activation)
    quantized = quantized_of(layer, dtype)
    x = torch.randn(2, 20, 210).to(given)
    with torch.no_grad():
        y, exact = quantized(x), layer(x.float())
    assert y.dtype is given
    assert y.shape == (2, 20, 150)
    assert not y.requires_grad
    bound = 0.02 if dtype is torch.int8 else 0.06
    assert (y.float() - exact).norm() / exact.norm() < bound
    near = quantized.dequantized()
    assert near.pattern == layer.pattern
    with torch.no_grad():
        assert (near(x.float()) - exact).norm() / exact.norm() < bound


@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_are_rounded_by_output(dtype: torch.dtype) -> None:
    layer = layer_of()
    with torch.no_grad():
        layer.values.mul_(torch.logspace(-6, 6, layer.values.shape[0])[:, None, None])
    quantized = quantized_of(layer, dtype)
    dense, rounded = layer.to_dense().weight, quantized.dequantized().to_dense().weight
    largest = dense.abs().amax(1)
    torch.testing.assert_close(
        quantized.w_scale, largest / (127 if dtype is torch.int8 else 448), rtol=1e-6, atol=0
    )
    step = (
        largest[:, None] / 127 / 2
        if dtype is torch.int8
        else dense.abs() / 16 + largest[:, None] / 448 / 2**10
    )
    assert ((dense - rounded).abs() <= step * 1.001).all()
    assert not torch.isnan(quantized.values.float()).any()


def test_static_scale_cuts_off() -> None:
    layer = layer_of(bias=False)
    quantized = quantized_of(layer, x_scale=1 / 127)
    assert quantized.x_scale is not None
    x = torch.randn(8, 210)
    torch.testing.assert_close(quantized(x), quantized(x.clamp(-1, 1)), rtol=0, atol=0)


def test_nan_reaches_its_token_alone() -> None:
    quantized = quantized_of(layer_of())
    x = torch.randn(5, 210)
    clean = quantized(x)
    x[2, 7] = float("nan")
    y = quantized(x)
    assert y[2].isnan().all()
    torch.testing.assert_close(y[[0, 1, 3, 4]], clean[[0, 1, 3, 4]], rtol=0, atol=0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", [{}, {"x_scale": 0.02}])
def test_state_dict_round_trip(dtype: torch.dtype, options: dict[str, Any]) -> None:
    quantized = quantized_of(layer_of(), dtype, **options)
    state = copy.deepcopy(quantized.state_dict())
    names = (
        ["values", "w_scale", "x_scale", "bias", "crow", "col"]
        if options
        else ["values", "w_scale", "bias", "crow", "col"]
    )
    assert list(state) == names
    other = BlockSparseLinear(210, 150, density=0.2, block=32)  # other blocks, and fewer
    fresh = quantized_of(other, dtype, **({"x_scale": 1.0} if options else {}))
    fresh.load_state_dict(state)
    assert fresh.pattern == quantized.pattern
    x = torch.randn(7, 210)
    torch.testing.assert_close(fresh(x), quantized(x), rtol=0, atol=0)
    meta = quantized_of(other, dtype, **({"x_scale": 1.0} if options else {})).to("meta")
    meta.load_state_dict(state, assign=True)
    torch.testing.assert_close(meta(x), quantized(x), rtol=0, atol=0)


def test_state_of_another_dtype_is_refused() -> None:
    quantized = quantized_of(layer_of())
    before = quantized.values.clone()
    for state in (layer_of().state_dict(), quantized_of(layer_of(), FLOAT8).state_dict()):
        with pytest.raises(RuntimeError, match=r"values of torch.int8, as the layer has"):
            quantized.load_state_dict(state, strict=False)
    assert torch.equal(quantized.values, before)


@pytest.mark.parametrize("dtype", DTYPES)
def test_save_and_load(dtype: torch.dtype, tmp_path: Path) -> None:
    model = nn.Sequential(layer_of(), nn.Linear(150, 8))
    sparseloom.quantize_(model, dtype)
    sparseloom.save(model, tmp_path / "m.safetensors")
    other = nn.Sequential(layer_of(), nn.Linear(150, 8))
    sparseloom.quantize_(other, dtype)
    with torch.no_grad():
        other[0].w_scale.zero_()  # type: ignore[union-attr, operator]
    sparseloom.load(tmp_path / "m.safetensors", other)
    for (name, left), (other_name, right) in zip(
        model.state_dict().items(), other.state_dict().items(), strict=True
    ):
        assert name == other_name
        assert torch.equal(left.view(torch.uint8), right.view(torch.uint8)), name


def test_conversions_touch_the_bias_alone() -> None:
    for dtype in DTYPES:
        quantized = quantized_of(layer_of(), dtype, x_scale=0.02)
        before = {name: tensor.clone() for name, tensor in quantized.state_dict().items()}
        for convert in ("half", "bfloat16", "double", "float"):
            getattr(quantized, convert)()
            for name, tensor in quantized.state_dict().items():
                if name != "bias":
                    assert tensor.dtype is before[name].dtype, (convert, name)
                    assert torch.equal(tensor.view(torch.uint8), before[name].view(torch.uint8)), (
                        convert,
                        name,
                    )
        assert quantized.bias is not None
        x = torch.randn(3, 210)
        y = quantized(x)
        assert quantized.to(torch.bfloat16).bias.dtype is torch.bfloat16
        assert (quantized(x) - y).abs().max() < 1e-3
        assert copy.deepcopy(quantized)(x).shape == (3, 150)


def test_autocast_decides_the_output_dtype() -> None:
    quantized = quantized_of(layer_of())
    x = torch.randn(3, 210)
    with torch.autocast("cpu", torch.bfloat16):
        assert quantized(x).dtype is torch.bfloat16
    assert quantized(x).dtype is torch.float32


def test_is_not_for_training() -> None:
    quantized = quantized_of(layer_of())
    assert list(quantized.parameters()) == []
    x = torch.randn(3, 210, requires_grad=True)
    with pytest.raises(Error, match="x without a gradient: a quantized layer has none"):
        quantized(x)
    with torch.no_grad():
        assert quantized(x).shape == (3, 150)


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (torch.zeros(3, 209), r"x \[..., 210\], got \[3, 209\]"),
        (
            torch.zeros(3, 210).double(),
            "float32, bfloat16 or float16, which the layer quantizes, got torch.float64",
        ),
        (torch.zeros(3, 210, dtype=torch.int8), "goes to ops.scaled_linear"),
        (torch.zeros(()), r"x \[..., 210\]"),
    ],
)
def test_refuses_inputs(x: torch.Tensor, words: str) -> None:
    with pytest.raises(Error, match=words):
        quantized_of(layer_of())(x)


def test_float8_on_a_cpu_has_to_be_asked_for() -> None:
    quantized = QuantizedBlockSparseLinear.from_sparse(layer_of(), FLOAT8)
    with pytest.raises(Error, match="reference: multiplies float8_e4m3fn"):
        quantized(torch.zeros(3, 210))
    quantized.strict = True
    with pytest.raises(Error, match="reference: strict forbids the reference kernel"):
        quantized(torch.zeros(3, 210))


def test_from_sparse_refuses() -> None:
    layer = layer_of()
    with pytest.raises(Error, match=r"dtype int8 or float8_e4m3fn, got torch.uint8"):
        QuantizedBlockSparseLinear.from_sparse(layer, torch.uint8)
    with pytest.raises(Error, match="x_scale > 0 and finite"):
        QuantizedBlockSparseLinear.from_sparse(layer, x_scale=-1.0)
    with torch.no_grad():
        layer.values[0, 0, 0] = float("nan")
    with pytest.raises(Error, match="finite weights"):
        QuantizedBlockSparseLinear.from_sparse(layer)


def test_quantize_a_model() -> None:
    model = model_of()
    result = sparseloom.quantize_(model)
    assert [layer.names for layer in result.changed] == [("0",), ("3",)]
    assert [(skip.name, skip.reason) for skip in result.skipped] == [("2", "it is not block-sparse")]
    assert type(model[0]) is type(model[3]) is QuantizedBlockSparseLinear
    assert 0 < result.changed[0].error < 0.02
    text = str(result)
    assert text.startswith("2 layers became 8-bit; their ")
    assert "x per token" in text
    assert result.to_dict()["changed"][1]["dtype"] == "int8"


def test_quantize_by_name_and_with_scales() -> None:
    model = model_of()
    result = sparseloom.quantize_(model, {"3": FLOAT8, "0": torch.int8}, x_scale={"0": 0.05})
    assert [(layer.names[0], layer.dtype, layer.x_scale) for layer in result.changed] == [
        ("0", "int8", pytest.approx(0.05)),
        ("3", "float8_e4m3fn", None),
    ]
    assert not model[3].use_fast_accum
    model = model_of()
    sparseloom.quantize_(model, FLOAT8, use_fast_accum=True)
    assert model[0].use_fast_accum and "use_fast_accum=True" in repr(model[3])
    model = model_of()
    result = sparseloom.quantize_(model, {"0": torch.int8})
    assert ("3", "no pattern matches") in [(skip.name, skip.reason) for skip in result.skipped]
    assert isinstance(model[3], BlockSparseLinear)


@pytest.mark.parametrize("dtype, runs", [(torch.int8, fast_int8()), (FLOAT8, False)])
def test_a_machine_without_kernels_is_told_once(dtype, runs, recwarn) -> None:
    model, x = model_of(), torch.randn(4, 96)
    sparseloom.quantize_(model, dtype)
    told = [str(warning.message) for warning in recwarn if "quantize_" in str(warning.message)]
    assert len(told) == (not runs)
    if not runs:
        name = str(dtype).removeprefix("torch.")
        assert f"no kernel for {name} in bsr on cpu: 0, 3." in told[0] and 'kernel = "reference"' in told[0]
        with pytest.raises(Error, match="kernel"), torch.no_grad():
            model(x)
        model[0].kernel = model[3].kernel = "reference"
    with torch.no_grad():
        assert model(x).isfinite().all()


def test_quantize_inside_other_modules_and_shared() -> None:
    shared = layer_of(64, 64, 16)
    attention = nn.MultiheadAttention(64, 4, batch_first=True)
    model = nn.ModuleDict({"a": shared, "b": shared, "attention": attention, "conv": nn.Conv2d(64, 32, 1)})
    sparseloom.sparsify_(model, {"attention|conv": sparseloom.BlockSparse(block=16, density=0.5)})
    result = sparseloom.quantize_(model)
    assert [layer.names for layer in result.changed] == [
        ("a", "b"), ("attention.in_proj",), ("attention.out_proj",), ("conv.linear",)
    ]  # fmt: skip
    assert model["a"] is model["b"]
    for module in model.modules():
        if isinstance(module, QuantizedBlockSparseLinear):
            module.kernel = KERNEL
    with torch.no_grad():
        x = torch.randn(2, 5, 64)
        assert model["attention"](x, x, x)[0].shape == (2, 5, 64)
        assert model["conv"](torch.randn(2, 64, 3, 3)).shape == (2, 32, 3, 3)


def test_torchs_transformer_encoder_takes_no_way_around_the_layers() -> None:
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), 1, enable_nested_tensor=False
    )
    sparseloom.sparsify_(encoder, {".*": sparseloom.BlockSparse(block=16, density=0.5)})
    sparseloom.quantize_(encoder, {r".*linear[12]": torch.int8})
    sparseloom.densify_(encoder)  # what is left; it looks anew which paths torch may take
    for module in encoder.modules():
        if isinstance(module, QuantizedBlockSparseLinear):
            module.kernel = KERNEL
    with torch.no_grad():
        assert encoder.eval()(torch.randn(2, 5, 64)).shape == (2, 5, 64)


def test_quantize_skips_with_reasons() -> None:
    model = nn.ModuleDict({name: layer_of(64, 64, 16) for name in ("good", "hooked", "copied", "wide")})
    model["hooked"].register_forward_hook(lambda *_: None)
    model["copied"].dense_copy = "auto"  # type: ignore[assignment]
    model["wide"] = layer_of(16, 2**17, 128)
    done = QuantizedBlockSparseLinear.from_sparse(layer_of(64, 64, 16))
    model["done"] = done
    result = sparseloom.quantize_(model)
    assert [layer.names[0] for layer in result.changed] == ["good"]
    reasons = {skip.name: skip.reason for skip in result.skipped}
    assert reasons["hooked"].startswith("it has hooks")
    assert reasons["copied"].startswith("it may keep a dense copy")
    assert "do not fit int32" in reasons["wide"]
    assert reasons["done"] == "it is quantized already"


@pytest.mark.parametrize(
    ("patterns", "words"),
    [
        ({"5": torch.int8}, "sparse layers with an 8-bit twin for '5', got nothing; they are 0, 3"),
        ({"2": torch.int8}, "got only 2, which have no 8-bit layer"),
        ({".*": torch.int8, "0": FLOAT8}, "a pattern before it has taken"),
        ({"0": torch.float16}, "torch.int8 or torch.float8_e4m3fn, got torch.float16"),
        ({"(": torch.int8}, "regular expressions as keys"),
        (torch.uint8, "torch.int8 or torch.float8_e4m3fn, got torch.uint8"),
        ("int8", r"\{regex: .*\}, or one for all"),
    ],
)
def test_quantize_refuses(patterns: Any, words: str) -> None:
    model = model_of()
    before = list(model)
    with pytest.raises(Error, match=words):
        sparseloom.quantize_(model, patterns)
    assert list(model) == before


def test_quantize_refuses_what_would_do_nothing() -> None:
    with pytest.raises(Error, match="the layer itself"):
        sparseloom.quantize_(layer_of())
    with pytest.raises(Error, match=r"twin for '.*', got only 0, which have no 8-bit layer"):
        sparseloom.quantize_(nn.Sequential(nn.Linear(4, 4)))
    hooked = nn.Sequential(layer_of())
    hooked[0].register_forward_hook(lambda *_: None)
    with pytest.raises(Error, match="can be quantized, got 0: it has hooks"):
        sparseloom.quantize_(hooked)
    with pytest.raises(Error, match="8-bit twin for 'no'"):
        sparseloom.quantize_(model_of(), x_scale={"no": 0.1})


def test_on_meta_and_compiled() -> None:
    meta = QuantizedBlockSparseLinear.from_sparse(layer_of(device="meta"))
    assert meta(torch.randn(3, 210, device="meta")).shape == (3, 150)
    quantized = quantized_of(layer_of())
    if KERNEL is not None:
        pytest.skip("a kernel named by name is looked up in Python, which is not traced")
    compiled = torch.compile(quantized, fullgraph=True, backend="eager")
    x = torch.randn(3, 210)
    torch.testing.assert_close(compiled(x), quantized(x), rtol=0, atol=0)
    exported = torch.export.export(quantized, (x,)).module()
    torch.testing.assert_close(exported(x), quantized(x), rtol=0, atol=0)
    assert "int8" in repr(quantized)
    assert quantized.plan(64)["kernel"] in ops.info()["kernels"]
