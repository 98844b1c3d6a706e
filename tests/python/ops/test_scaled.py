"""scaled_linear: the int8 product's bits by torch's integers, the float8 reference, what is refused, fake
kernels and graphs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from eight_bits import fast_int8
from torch import Tensor, nn

import sparseloom
from sparseloom import Error, ops, pattern, quantize_
from sparseloom.nn import BlockSparseLinear, Semi24Linear
from sparseloom.nn.held.state import build_index
from sparseloom.ops.operators import row_of

#: What runs int8 here: the plan's choice where there is a fast kernel, else the reference, which has to be
#: named.
KERNEL = None if fast_int8() else "reference"
FLOAT8 = torch.float8_e4m3fn


def operands(
    rows: int, cols: int, block: tuple[int, int], m: int, dtype: torch.dtype = torch.int8
) -> tuple[Tensor, Tensor, ops.Index]:
    made = pattern.random(rows, cols, block, 0.4, 1)
    index = build_index(made)
    generator = torch.Generator().manual_seed(2)
    x = torch.randint(-128, 128, (m, cols), generator=generator, dtype=torch.int8)
    dense = torch.randint(-128, 128, (rows, cols), generator=generator, dtype=torch.int8)
    values = ops.call("pack", dense, index.crow, index.col, *block)
    if dtype is FLOAT8:
        return (x / 64).to(FLOAT8), (values / 64).to(FLOAT8), index
    return x, values, index


def dense_of(values: Tensor, index: ops.Index) -> Tensor:
    return torch.as_tensor(ops.call("unpack", values, index.crow, index.col, index.rows, index.cols))


@pytest.mark.parametrize("out_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("block", [(8, 8), (16, 64), (32, 32), (128, 32)])
def test_int8_has_the_documented_bits(block: tuple[int, int], out_dtype: torch.dtype) -> None:
    for m in (1, 17, 100):
        x, values, index = operands(150, 210, block, m)
        x_scale, w_scale = torch.rand(m, 1) / 100, torch.rand(150) / 100
        sums = (x.int() @ dense_of(values, index).int().t()).float()
        y = ops.scaled_linear(x, values, index, x_scale, w_scale, out_dtype=out_dtype, kernel=KERNEL)
        assert y.dtype is out_dtype
        torch.testing.assert_close(y, (sums * x_scale * w_scale).to(out_dtype), rtol=0, atol=0)
        bias = torch.randn(150).to(out_dtype)
        y = ops.scaled_linear(
            x,
            values,
            index,
            x_scale[:1],
            w_scale[0],
            bias,
            out_dtype=out_dtype,
            activation="relu",
            kernel=KERNEL,
        )
        expected = (
            ((sums * x_scale[0]).double() * w_scale[0].double() + bias.double()).float().relu().to(out_dtype)
        )
        torch.testing.assert_close(y, expected, rtol=0, atol=0)


def test_fast_accumulation_says_nothing_of_int8() -> None:
    x, values, index = operands(150, 210, (32, 32), 17)
    one = torch.ones(1)
    plain, fast = (
        ops.scaled_linear(
            x, values, index, one, one, out_dtype=torch.float32, kernel=KERNEL, use_fast_accum=asked
        )
        for asked in (False, True)
    )
    assert torch.equal(plain, fast)
    plan = ops.plan(index, "forward", torch.int8, 17, kernel=KERNEL, use_fast_accum=True)
    assert "fast_accum" not in plan["text"]


@pytest.mark.parametrize("shape", [(210,), (2, 3, 210), (2, 1, 2, 2, 210), (0, 210)])
def test_leading_dimensions(shape: tuple[int, ...]) -> None:
    _, values, index = operands(150, 210, (32, 32), 1)
    x = torch.randint(-128, 128, shape, dtype=torch.int8)
    scale = torch.rand(*shape[:-1], 1)
    y = ops.scaled_linear(x, values, index, scale, torch.ones(1), out_dtype=torch.float32, kernel=KERNEL)
    assert y.shape == (*shape[:-1], 150)
    torch.testing.assert_close(
        y, (x.int() @ dense_of(values, index).int().t()).float() * scale, rtol=0, atol=0
    )


def test_float8_by_the_reference_when_it_is_named() -> None:
    x, values, index = operands(100, 90, (16, 16), 9, FLOAT8)
    scales = torch.rand(9), torch.rand(100)
    with pytest.raises(Error, match=r"reference: multiplies float8_e4m3fn.*only by name"):
        ops.scaled_linear(x, values, index, *scales, out_dtype=torch.float32)
    with pytest.raises(Error, match="strict forbids the reference kernel"):
        ops.scaled_linear(x, values, index, *scales, out_dtype=torch.float32, strict=True, kernel="reference")
    y = ops.scaled_linear(x, values, index, *scales, out_dtype=torch.float32, kernel="reference")
    sums = x.double() @ dense_of(values, index).double().t()
    torch.testing.assert_close(y, (sums * scales[0][:, None] * scales[1]).float(), rtol=1e-6, atol=0)


def test_scales_follow_ieee() -> None:
    x, values, index = operands(40, 64, (8, 8), 4)
    scale = torch.tensor([0.0, float("inf"), float("nan"), 1.0])
    y = ops.scaled_linear(x, values, index, scale, torch.ones(40), out_dtype=torch.float32, kernel=KERNEL)
    sums = (x.int() @ dense_of(values, index).int().t()).float()
    torch.testing.assert_close(y, sums * scale[:, None], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"x": torch.zeros(5, 64).double()}, "int8 or float8_e4m3fn, got f64"),
        ({"x": torch.zeros(5, 64)}, r"one element, or none, beside x that the call rounds, got .5."),
        ({"x_scale": None}, "x_scale beside x in 8 bits, got none"),
        ({"x": torch.zeros(5, 64, dtype=FLOAT8)}, "values of x's dtype float8_e4m3fn, got int8"),
        ({"x_scale": torch.ones(4)}, r"x_scale of dtype float32 with 1 or 5 elements.*\[4\]"),
        ({"x_scale": torch.ones(5).double()}, "x_scale of dtype float32"),
        ({"w_scale": torch.ones(5)}, "w_scale of dtype float32 with 1 or 40 elements"),
        ({"bias": torch.zeros(40).half()}, "bias of shape .40. and of out_dtype, f32, got f16"),
        ({"bias": torch.zeros(39)}, r"bias of shape .40.*\[39\]"),
        ({"out_dtype": torch.float16}, "out_dtype bfloat16 or float32"),
        (
            {"bias": torch.zeros(40, requires_grad=True)},
            "operands without gradients, got bias that requires one",
        ),
        ({"w_scale": torch.ones(40, requires_grad=True)}, "got w_scale that requires one"),
    ],
)
def test_refuses_what_does_not_fit(change: dict[str, object], words: str) -> None:
    x, values, index = operands(40, 64, (8, 8), 5)
    given = {
        "x": x,
        "x_scale": torch.ones(5),
        "w_scale": torch.ones(40),
        "bias": None,
        "out_dtype": torch.float32,
        **change,
    }
    with pytest.raises(Error, match=words):
        ops.scaled_linear(
            given["x"],
            values,
            index,
            given["x_scale"],
            given["w_scale"],
            given["bias"],
            out_dtype=given["out_dtype"],
        )  # type: ignore[arg-type]


def test_the_float_product_asks_for_scales() -> None:
    x, values, index = operands(40, 64, (8, 8), 5)
    with pytest.raises(Error, match=r"scales beside int8 operands, got none; .*scaled_linear"):
        ops.linear(x, values, index, kernel=KERNEL)


def test_gradients_through_the_raw_operator_are_an_error() -> None:
    x, values, index = operands(40, 64, (8, 8), 5)
    w_scale = torch.ones(40, requires_grad=True)
    arguments = (
        x,
        values,
        index.packed,
        torch.ones(5),
        w_scale,
        40,
        torch.float32,
        None,
        0,
    )
    y = torch.ops.sparseloom.bsr_scaled_linear(*arguments, row_of(KERNEL or ""))
    # an error outside pytest, whose filters win here
    with pytest.warns(UserWarning, match="autograd kernel was not registered"):
        y.sum().backward()


def test_opcheck_and_compile() -> None:
    x, values, index = operands(40, 64, (8, 8), 5)
    for out_dtype, bias in ((torch.float32, None), (torch.bfloat16, torch.zeros(40, dtype=torch.bfloat16))):
        arguments = (
            x,
            values,
            index.packed,
            torch.ones(5),
            torch.ones(40),
            40,
            out_dtype,
            bias,
            0,
            row_of(KERNEL or ""),
            False,
            index.digest,
        )
        torch.library.opcheck(torch.ops.sparseloom.bsr_scaled_linear.default, arguments)

    def product(x: Tensor) -> Tensor:
        quantized, scale = ops.quantize_rows(x, torch.int8)
        return (
            ops.scaled_linear(
                quantized, values, index, scale, torch.ones(1), out_dtype=torch.float32, kernel=KERNEL
            )
            + 1
        )

    if KERNEL is not None:
        pytest.skip("a kernel named by name is looked up in Python, which is not traced")
    compiled = torch.compile(product, fullgraph=True, backend="eager")
    floats = torch.randn(5, 64)
    torch.testing.assert_close(compiled(floats), product(floats), rtol=0, atol=0)


def test_plan_names_both_dtypes() -> None:
    _, _, index = operands(40, 64, (8, 8), 5)
    text = ops.plan(index, "forward", torch.int8, 5, kernel=KERNEL)["text"]
    assert text.startswith("plan: forward int8 to bf16 m=5")
    assert (
        "int8 to f32"
        in ops.plan(index, "forward", torch.int8, 5, out_dtype=torch.float32, kernel=KERNEL)["text"]
    )
    with pytest.raises(Error, match="no gradients"):
        ops.plan(index, "dx", torch.int8, 5)
    with pytest.raises(Error, match="out_dtype bfloat16 or float32"):
        ops.plan(index, "forward", torch.int8, 5, out_dtype=torch.float16)


@pytest.mark.parametrize(
    ("dtype", "why"),
    [
        (torch.int8, "supports no 8-bit dtype but float8_e4m3fn"),
        (FLOAT8, "multiplies float8_e4m3fn on CUDA devices only"),
    ],
)
def test_the_dense_candidate_says_why_it_does_not_multiply_8_bits_here(dtype: torch.dtype, why: str) -> None:
    x, values, index = operands(48, 64, (16, 16), 5, dtype)
    plan = ops.plan(index, "forward", dtype, 5, kernel="reference")
    (dense,) = (candidate for candidate in plan["candidates"] if candidate["kernel"] == "dense")
    assert why in dense["refusal"] and f"not dense: {dense['refusal']}" in plan["text"]
    with pytest.raises(Error, match=f"dense: {why}"):
        ops.scaled_linear(
            x, values, index, torch.ones(1), torch.ones(1), out_dtype=torch.float32, kernel="dense"
        )


@pytest.mark.parametrize("dtype", [torch.int8, FLOAT8])
@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16, torch.float16])
def test_quantize_rows_is_near(dtype: torch.dtype, given: torch.dtype) -> None:
    x = torch.randn(50, 70).to(given)
    x[3] = 0
    quantized, scale = ops.quantize_rows(x, dtype)
    assert quantized.dtype is dtype
    assert scale.shape == (50, 1)
    assert scale.dtype is torch.float32
    assert not torch.isnan(quantized.float()).any()
    error = (quantized.float() * scale - x.float()).abs()
    # Half a step of int8's, or of 3 bits of fraction (and of the smallest step).
    allowed = scale * 0.5001 if dtype is torch.int8 else x.float().abs() * 2**-4 * 1.0001 + scale * 2**-10
    assert (error <= allowed).all()
    cut, one = ops.quantize_rows(x, dtype, torch.tensor([1e-3]))
    assert cut.float().abs().max() == (127 if dtype is torch.int8 else 448)
    assert one.numel() == 1


def test_quantize_rows_passes_no_nan_for_a_number() -> None:
    x = torch.tensor([[float("nan"), 1.0], [float("inf"), 1.0], [1.0, 2.0], [1e-45, 0.0]])
    _, scale = ops.quantize_rows(x, torch.int8)
    assert scale.flatten().isfinite().tolist() == [False, False, True, True]
    assert ops.quantize_rows(torch.zeros(3, 0), torch.int8)[1].tolist() == [[0.0]] * 3
    denormals = torch.tensor([[1e-38, -3e-39]])
    for dtype in (torch.int8, FLOAT8):
        rounded, scale = ops.quantize_rows(denormals, dtype)
        assert not rounded.float().any() and scale.item() > 0
        for given in (None, torch.ones(1)):
            with pytest.raises(Error, match=r"x \[..., n\], got a scalar"):
                ops.quantize_rows(torch.tensor(1.0), dtype, given)


BAD_FACTORS = [0, -1.0, True, float("inf"), float("nan"), 1e-60, 1e60, "1"]
OF_TENSORS = [torch.tensor([-1.0]), torch.tensor(0.0), torch.tensor([float("inf")]), torch.ones(2)]


FORMATS = {
    "blocks": lambda: BlockSparseLinear(64, 64, density=0.5, block=16),
    "2:4": lambda: Semi24Linear(64, 64),
}


@pytest.mark.parametrize("make", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("factor", BAD_FACTORS + OF_TENSORS, ids=str)
def test_a_factor_is_a_positive_finite_number(make: Any, factor: Any) -> None:
    net = nn.Sequential(make())
    if not isinstance(factor, Tensor):
        for given in (factor, {"0": factor}):
            with pytest.raises(Error, match="x_scale factors > 0 and finite"):
                quantize_(net, x_scale=given)
    quantize_(net, x_scale=0.5)
    with pytest.raises(Error, match="x_scale > 0 and finite"):
        type(net[0]).from_sparse(make(), x_scale=factor)
    with pytest.raises(Error, match=r"x_scale\] expected x_scale > 0 and finite"):
        net[0].x_scale = factor
    assert net[0].x_scale.tolist() == [0.5]
    net[0].x_scale = torch.tensor([2.0])
    net[0].to("meta").x_scale = torch.ones(1, device="meta")


@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("factor", [None, torch.tensor([0.03])])
def test_quantize_rows_has_the_bits_of_torchs_operators(given: torch.dtype, factor: Tensor | None) -> None:
    x = torch.randn(2, 65, 71).to(given) * 5
    x[0, 3], x[0, 4], x[1, 2] = 0, 1e-44, x[1, 2] * 1e4
    x = x.transpose(0, 1)
    scale = x.abs().amax(-1, keepdim=True).float() / 127 if factor is None else factor
    inverse = scale.reciprocal()
    wanted = (x * torch.where(inverse.isfinite(), inverse, 0.0)).clamp(-127, 127).round().to(torch.int8)
    quantized, found = ops.quantize_rows(x, torch.int8, factor)
    torch.testing.assert_close(quantized, wanted, rtol=0, atol=0)
    torch.testing.assert_close(found, scale, rtol=0, atol=0)
    torch.library.opcheck(torch.ops.sparseloom.quantize_rows.default, (x, factor))
    assert ops.quantize_rows(x.clone().requires_grad_(), torch.int8, factor)[0].shape == x.shape


@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("factor", [None, torch.tensor([0.03])])
@pytest.mark.parametrize("tokens", [1, 5, 300])
def test_a_call_rounds_floats_as_quantize_rows_does(
    given: torch.dtype, factor: Tensor | None, tokens: int
) -> None:
    _, values, index = operands(40, 72, (8, 8), 5)
    x = (torch.randn(2, 80, tokens) * 3).to(given).transpose(1, 2)[..., :72]
    rest: dict[str, Any] = {"out_dtype": torch.bfloat16, "activation": "relu", "kernel": KERNEL}
    w_scale, bias = torch.rand(40), torch.randn(40).bfloat16()
    rounded, scale = ops.quantize_rows(x, torch.int8, factor)
    wanted = ops.scaled_linear(rounded, values, index, scale, w_scale, bias, **rest)
    y = ops.scaled_linear(x, values, index, factor, w_scale, bias, **rest)
    torch.testing.assert_close(y, wanted, rtol=0, atol=0)
    empty = ops.scaled_linear(x[:, :0], values, index, factor, w_scale, bias, **rest)
    assert empty.shape == (2, 0, 40)


def test_information_names_the_rates() -> None:
    rates = sparseloom.info()["rates"]
    assert (rates["i8_avx512"] > 0) == fast_int8()
    assert {"amx_int8_tile", "avx512vnni_panel"} <= set(sparseloom.info()["kernels"])
