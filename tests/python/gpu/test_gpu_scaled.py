"""float8 products on CUDA: the dense candidate beside the sparse ones, its scales, layouts, refusals and
memory."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from on_gpu import capture, poison, random
from torch import Tensor

from sparseloom import Error, Pattern, ops, pattern
from sparseloom.nn import BlockSparseLinear, QuantizedBlockSparseLinear
from sparseloom.nn.held.state import build_index

pytestmark = pytest.mark.gpu
FLOAT8, BF16, F32 = torch.float8_e4m3fn, torch.bfloat16, torch.float32
BLOCKS = [(8, 8), (16, 32), (64, 8), (32, 16), (64, 64), (128, 128)]


@pytest.fixture(autouse=True)
def a_gpu_with_float8():
    if torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("cuBLAS multiplies float8 from compute capability 8.9 on")


class Operands(NamedTuple):
    x: Tensor  # [m, cols] float8
    values: Tensor
    index: ops.Index
    pattern: Pattern
    dense: Tensor  # [rows, cols] float32

    def plan(self, **asked: object) -> dict:
        return ops.plan(build_index(self.pattern), "forward", FLOAT8, self.x.shape[0], device="cuda", **asked)

    def refusal(self, **asked: object) -> str:
        (found,) = (each["refusal"] for each in self.plan(**asked)["candidates"] if each["kernel"] == "dense")
        return found


def operands(
    rows: int = 208, cols: int = 336, block: tuple[int, int] = (32, 32), m: int = 70, integers: bool = False
) -> Operands:
    made = pattern.random(rows, cols, block, 0.4, 1)
    x, w = random(m, cols, seed=1), random(rows, cols, seed=2)
    if integers:
        x, w = x.round().clamp(-2, 2), w.round().clamp(-2, 2)
    index = build_index(made).to("cuda")
    values = ops.call("pack", w.to(FLOAT8).float(), index.crow, index.col, *block)
    return Operands(
        x.to(FLOAT8),
        values.to(FLOAT8),
        index,
        made,
        ops.call("unpack", values, index.crow, index.col, rows, cols),
    )


def positive(*shape: int, seed: int) -> Tensor:
    return random(*shape, seed=seed).abs() + 0.1


def expected(
    of: Operands, x_scale: Tensor, w_scale: Tensor, bias: Tensor | None, activation: str | None
) -> tuple[Tensor, Tensor]:
    """In float64, [m, rows], and the summed magnitudes that an error is in proportion to."""
    scale = x_scale.double().reshape(-1, 1) * w_scale.double().reshape(1, -1)
    x, w = of.x.double(), of.dense.double().t()
    z = (x @ w) * scale + (0 if bias is None else bias.double())
    magnitudes = (x.abs() @ w.abs()) * scale.abs() + (0 if bias is None else bias.double().abs())
    slope = (2 * z).clamp(min=1) if activation == "relu2" else 1  # the others' is at most 1.2
    return ops.activate(z, activation), magnitudes * slope


def close(
    got: Tensor,
    of: Operands,
    x_scale: Tensor,
    w_scale: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
):
    """Products are aligned to the largest of an instruction and cut 13 bits below; bf16 is rounded twice
    around an activation."""
    exact, magnitudes = expected(of, x_scale, w_scale, bias, activation)
    ulp = 2.0**-7 if got.dtype is BF16 else 2.0**-22
    assert ((got.double() - exact).abs() <= ulp * exact.abs() + 1.5 * 2.0**-9 * magnitudes + 1e-30).all()


SCALES = {
    "one each": (False, False),
    "tokens and outputs": (True, True),
    "tokens": (True, False),
    "outputs": (False, True),
}


def scales(of: Operands, kind: str) -> tuple[Tensor, Tensor]:
    tokens, outputs = SCALES[kind]
    return positive(of.x.shape[0] if tokens else 1, seed=3), positive(of.index.rows if outputs else 1, seed=4)


@pytest.mark.parametrize("kind", SCALES)
@pytest.mark.parametrize("out_dtype", [BF16, F32])
@pytest.mark.parametrize("block", BLOCKS)
def test_every_candidate_and_kind_of_scale(block, out_dtype, kind):
    for m in (1, 16, 17, 130, 300):
        of = operands(block=block, m=m)
        scale = scales(of, kind)
        plan = of.plan(out_dtype=out_dtype)
        able = [each["kernel"] for each in plan["candidates"] if not each["refusal"]]
        assert "dense" in able and plan["kernel"] in able
        for kernel in able:
            poison(m * of.index.rows * out_dtype.itemsize, of.index.rows * of.index.cols)
            got = ops.scaled_linear(of.x, of.values, of.index, *scale, out_dtype=out_dtype, kernel=kernel)
            assert got.dtype is out_dtype
            close(got, of, *scale)


@pytest.mark.parametrize("kind", SCALES)
@pytest.mark.parametrize("out_dtype", [BF16, F32])
@pytest.mark.parametrize("activation", ops.ACTIVATIONS)
def test_bias_and_activation(activation, out_dtype, kind):
    of = operands()
    scale, bias = scales(of, kind), random(of.index.rows, seed=5, dtype=out_dtype)
    for given in (None, bias):
        got = ops.scaled_linear(
            of.x,
            of.values,
            of.index,
            *scale,
            given,
            out_dtype=out_dtype,
            activation=activation,
            kernel="dense",
        )
        close(got, of, *scale, given, activation)


@pytest.mark.parametrize("kind", SCALES)
@pytest.mark.parametrize("out_dtype", [BF16, F32])
@pytest.mark.parametrize("block", [(16, 32), (64, 64), (128, 128)])
def test_every_candidate_with_fast_accumulation(block, out_dtype, kind):
    for m in (1, 70, 300):
        of = operands(block=block, m=m)
        scale = scales(of, kind)
        plan = of.plan(out_dtype=out_dtype, use_fast_accum=True)
        assert "fast_accum" in plan["text"] and "fast_accum" not in of.plan(out_dtype=out_dtype)["text"]
        for kernel in (each["kernel"] for each in plan["candidates"] if not each["refusal"]):
            poison(m * of.index.rows * out_dtype.itemsize, of.index.rows * of.index.cols)
            got = ops.scaled_linear(
                of.x, of.values, of.index, *scale, out_dtype=out_dtype, kernel=kernel, use_fast_accum=True
            )
            close(got, of, *scale)


@pytest.mark.parametrize("kernel", ["sm90_wgmma", "dense"])
def test_fast_accumulation_is_what_torch_calls_so(kernel):
    """Over 8192 inputs sums that the tensor cores keep are off by more than promoted ones, and by no more
    than torch's own."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("other GPUs keep other numbers of bits")
    of = operands(256, 8192, (64, 64), 512)
    one = torch.ones(1, device="cuda")
    exact, magnitudes = expected(of, one, one, None, None)
    torchs = torch._scaled_mm(of.x, of.dense.to(FLOAT8).t(), one, one, out_dtype=F32, use_fast_accum=True)

    def error(y: Tensor) -> float:
        return float(((y.double() - exact).abs() / magnitudes).max())

    call = {"out_dtype": F32, "kernel": kernel}
    promoted = error(ops.scaled_linear(of.x, of.values, of.index, one, one, **call))
    fast = error(ops.scaled_linear(of.x, of.values, of.index, one, one, **call, use_fast_accum=True))
    assert promoted < fast <= 2 * error(torchs)


def test_a_layer_passes_fast_accumulation_on():
    layer = BlockSparseLinear(
        2048, 256, pattern=pattern.random(256, 2048, (64, 64), 0.9, 1), device="cuda", dtype=BF16
    )
    with torch.no_grad():
        layer.values.copy_(random(*layer.values.shape, seed=3))
    quantized, x = QuantizedBlockSparseLinear.from_sparse(layer, FLOAT8), random(300, 2048, dtype=BF16)
    quantized.kernel = "sm90_wgmma" if torch.cuda.get_device_capability() == (9, 0) else "dense"
    with torch.no_grad():
        promoted = quantized(x)
        quantized.use_fast_accum = True
        assert "use_fast_accum=True" in repr(quantized) and "fast_accum" in quantized.plan(300)["text"]
        assert not torch.equal(quantized(x), promoted)
        # two roundings to bf16, at most
        assert (quantized(x) - promoted).abs().max() <= 2.0**-6 * promoted.abs().max()


def test_sums_that_are_exact_have_the_sparse_kernels_bits():
    of = operands(block=(64, 64), m=256, integers=True)
    for out_dtype in (BF16, F32):
        for bias in (None, torch.arange(of.index.rows, device="cuda").to(out_dtype)):
            scale = torch.full((1,), 0.5, device="cuda"), torch.full((1,), 0.25, device="cuda")
            first, *others = (
                ops.scaled_linear(
                    of.x, of.values, of.index, *scale, bias, out_dtype=out_dtype, kernel=each["kernel"]
                )
                for each in of.plan(out_dtype=out_dtype)["candidates"]
                if not each["refusal"]
            )
            assert others and all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize("out_dtype", [BF16, F32])
def test_scales_of_zero_infinity_and_nan_count_as_in_the_sparse_kernels(out_dtype):
    of = operands(m=6, block=(64, 64), integers=True)
    special = torch.tensor([0.0, float("inf"), float("nan"), -1.0, 1.0, 1e-30], device="cuda")
    w_scale = torch.ones(of.index.rows, device="cuda")
    w_scale[:6] = special
    for x, w in (
        (special, w_scale),
        (special, torch.ones(1, device="cuda")),
        (torch.ones(1, device="cuda"), w_scale),
    ):
        ours, theirs = (
            ops.scaled_linear(of.x, of.values, of.index, x, w, out_dtype=out_dtype, kernel=kernel).float()
            for kernel in ("dense", "sm80_ffma")
        )
        assert torch.equal(ours.isnan(), theirs.isnan()) and torch.equal(ours.isinf(), theirs.isinf())
        finite = theirs.isfinite()
        torch.testing.assert_close(ours[finite], theirs[finite], atol=0.05, rtol=0.02)


@pytest.mark.parametrize("given", [0.0, float("inf"), float("nan")])
def test_one_scale_of_zero_infinity_or_nan(given):
    of, one = operands(m=40, integers=True), torch.ones(1, device="cuda")
    scale = torch.full((1,), given, device="cuda")
    for pair in ((scale, one), (one, scale)):
        ours, theirs = (
            ops.scaled_linear(of.x, of.values, of.index, *pair, out_dtype=BF16, kernel=kernel)
            for kernel in ("dense", "sm80_ffma")
        )
        torch.testing.assert_close(ours, theirs, atol=0, rtol=0, equal_nan=True)


@pytest.mark.parametrize(
    "how", ["offset", "wide rows", "wide rows of 16", "every other row", "transposed", "leading sizes"]
)
def test_operands_of_any_memory_layout(how):
    of, m = operands(m=60), 60
    cols, scale = of.index.cols, scales(of, "tokens and outputs")
    # NaN
    memory = torch.full((2 * m * (cols + 16) + 3,), 0x7F, dtype=torch.uint8, device="cuda").view(FLOAT8)
    moved = {
        "offset": lambda: memory[3 : 3 + m * cols].view(m, cols),
        "wide rows": lambda: memory[: m * (cols + 5)].view(m, cols + 5)[:, 1 : cols + 1],
        "wide rows of 16": lambda: memory[: m * (cols + 16)].view(m, cols + 16)[:, :cols],
        "every other row": lambda: memory[: 2 * m * cols].view(m, 2 * cols)[:, :cols],
        "transposed": lambda: memory[: m * cols].view(cols, m).t(),
        "leading sizes": lambda: memory[: m * cols].view(3, 20, cols),
    }[how]()
    moved.view(torch.uint8).copy_(of.x.view(torch.uint8).view(moved.shape))
    # at an odd multiple of 4 bytes
    aside = [torch.cat([torch.full_like(s[:1], float("nan")), s])[1:] for s in scale]
    values = torch.cat([of.values.view(torch.uint8).flatten()[:1], of.values.view(torch.uint8).flatten()])[1:]
    values = values.view(of.values.shape).view(FLOAT8)
    got = ops.scaled_linear(moved, values, of.index, *aside, out_dtype=BF16, kernel="dense")
    close(got.view(m, -1), of, *scale)


def test_it_is_refused_by_name_where_torch_would_not_take_it():
    assert "multiples of 16 only, W is [200, 336]" in operands(rows=200).refusal()
    assert "multiples of 16 only, W is [208, 328]" in operands(cols=328).refusal()
    assert "strict forbids going dense" in operands(block=(64, 64)).refusal(strict=True)
    of, scale = operands(rows=200), torch.ones(1, device="cuda")
    got = ops.scaled_linear(of.x, of.values, of.index, scale, scale, out_dtype=BF16)  # by another
    close(got, of, scale, scale)
    with pytest.raises(
        Error, match="dense: multiplies float8_e4m3fn with in and out features in multiples of 16"
    ):
        ops.scaled_linear(of.x, of.values, of.index, scale, scale, out_dtype=BF16, kernel="dense")
    of = operands()
    with pytest.raises(Error, match="dense: strict forbids going dense"):
        ops.scaled_linear(
            of.x, of.values, of.index, scale, scale, out_dtype=BF16, kernel="dense", strict=True
        )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"x_scale": torch.ones(4)}, "x_scale of dtype float32 with 1 or 70 elements"),
        ({"w_scale": torch.ones(70)}, "w_scale of dtype float32 with 1 or 208 elements"),
        ({"w_scale": torch.ones(1).double()}, "w_scale of dtype float32"),
        ({"bias": torch.zeros(208)}, "of out_dtype, bf16, got f32"),
        ({"out_dtype": torch.float16}, "out_dtype bfloat16 or float32"),
    ],
)
def test_misuse_is_refused_before_anything_runs(change, words):
    of = operands()
    given = {"x_scale": torch.ones(1), "w_scale": torch.ones(1), "bias": None, "out_dtype": BF16, **change}
    given = {name: value.cuda() if isinstance(value, Tensor) else value for name, value in given.items()}
    with pytest.raises(Error, match=words):
        ops.scaled_linear(of.x, of.values, of.index, kernel="dense", **given)


def test_a_scale_on_the_cpu_is_refused():
    of, one = operands(), torch.ones(1, device="cuda")
    with pytest.raises(Error, match="w_scale on cuda:0, as x, got the CPU"):
        ops.scaled_linear(of.x, of.values, of.index, one, one.cpu(), out_dtype=BF16, kernel="dense")


def test_no_tokens():
    of, one = operands(m=0), torch.ones(1, device="cuda")
    assert ops.scaled_linear(of.x, of.values, of.index, one, one, out_dtype=BF16).shape == (0, 208)


def most_memory(call) -> int:
    """Bytes beyond those held before."""
    call()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


@pytest.mark.parametrize("kind", ["one each", "tokens and outputs"])
def test_beside_torchs_own_it_takes_the_declared_workspace_alone(kind):
    of = operands(2048, 2048, (64, 64), 64)
    (x_scale, w_scale), weight = scales(of, kind), of.dense.to(FLOAT8)
    plan = of.plan(kernel="dense")
    assert plan["workspace_bytes"] == 2048 * 2048 and "NaN in x spreads" in plan["text"]
    two = (x_scale.view(-1, 1), w_scale.view(1, -1))
    torchs = most_memory(lambda: torch._scaled_mm(of.x, weight.t(), *two, out_dtype=BF16))
    ours = most_memory(
        lambda: ops.scaled_linear(of.x, of.values, of.index, x_scale, w_scale, out_dtype=BF16, kernel="dense")
    )
    assert ours <= torchs + plan["workspace_bytes"] + (1 << 20), (ours, torchs)


@pytest.mark.parametrize("kind", SCALES)
@pytest.mark.parametrize("out_dtype", [BF16, F32])
def test_in_a_cuda_graph(out_dtype, kind):
    of = operands()
    scale = scales(of, kind)
    call = lambda: ops.scaled_linear(of.x, of.values, of.index, *scale, out_dtype=out_dtype, kernel="dense")  # noqa: E731
    graph, result = capture(call)
    other = random(*of.x.shape, seed=9).to(FLOAT8)
    of.x.copy_(other)
    for each in scale:
        each.mul_(2)
    graph.replay()
    assert torch.equal(result, call())
    close(result, of, *scale)


def test_nan_under_an_absent_block_reaches_every_output_of_its_token_alone():
    of, one = operands(block=(64, 64)), torch.ones(1, device="cuda")
    of.x.view(torch.uint8)[3, 5] = 0x7F
    y = ops.scaled_linear(of.x, of.values, of.index, one, one, out_dtype=BF16, kernel="dense")
    assert y[3].isnan().all() and not y[torch.arange(70, device="cuda") != 3].isnan().any()


def test_the_plan_goes_dense_where_no_fast_kernel_multiplies_the_blocks():
    of = operands(2048, 2048, (16, 16), 4096)
    assert of.plan()["kernel"] == "dense" and of.plan(strict=True)["kernel"] != "dense"
    one = torch.ones(1, device="cuda")
    close(ops.scaled_linear(of.x, of.values, of.index, one, one, out_dtype=BF16), of, one, one)


@pytest.mark.parametrize("x_scale", [None, 0.01])
@pytest.mark.parametrize("dtype", [BF16, F32])
def test_a_quantized_layer(dtype, x_scale):
    torch.manual_seed(0)
    layer = BlockSparseLinear(320, 208, density=0.4, block=16, activation="gelu", device="cuda", dtype=dtype)
    made = QuantizedBlockSparseLinear.from_sparse(layer, FLOAT8, x_scale=x_scale)
    x = random(130, 320, dtype=dtype)
    results = []
    for made.kernel in ("dense", "sm80_ffma"):
        results.append(made(x))
    assert results[0].dtype is dtype
    torch.testing.assert_close(*results, atol=0.02, rtol=0.02)


def test_many_columns_and_few_tokens():
    """cuBLAS has no kernel for a scale for each row there: the sums are multiplied afterwards."""
    of = operands(3072, 9216, (64, 64), 127)
    for kind in SCALES:
        scale, bias = scales(of, kind), random(3072, seed=5, dtype=BF16)
        for _ in range(2):  # asked for once, and then known
            got = ops.scaled_linear(of.x, of.values, of.index, *scale, bias, out_dtype=BF16, kernel="dense")
            close(got, of, *scale, bias)
