"""The GPU: random products of every family against fp64, two streams that call and move the same layers,
captured graphs beside eager twins, too little memory in the middle of a training step, two devices. A case is
one result, or one step.

compute-sanitizer takes a few seeds: compute-sanitizer --tool memcheck python -m campaigns gpu --seed 0
--minutes 5 --no-record.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sparseloom import BlockSparseLinear, Error, Semi24Linear, ops
from sparseloom.layouts.entries import columns_of
from sparseloom.ops import csr as csr_ops
from sparseloom.testing import Case, check_product, kernels_for, sparse_product

from .draws import Draw
from .gpu_steps import devices, graphs, memory, streams
from .linears import SIDES, Counts

_TESTS = Path(__file__).parents[1] / "python"
sys.path += [str(_TESTS / room) for room in ("gpu", "nn", "ops")]

DEVICE = "cuda"
HALVES = torch.bfloat16, torch.float16
DTYPES = (*HALVES, torch.float32)


def refusal() -> str:
    """Returns why this machine cannot run the campaign, or ""."""
    return (
        "" if torch.cuda.is_available() else "the campaign gpu needs a GPU that torch sees, and there is none"
    )


def gpu() -> str:
    """Returns the GPU's name."""
    return torch.cuda.get_device_name()


def bsr(draw: Draw) -> Counts:
    """Every kernel of one problem; all but the dense one give the same bits twice."""
    block = draw.pick(SIDES), draw.pick(SIDES)
    direction, dtype = draw.pick(ops.DIRECTIONS), draw.pick(DTYPES)
    forward = direction == "forward"
    case = Case(
        "random", direction, dtype, block, draw.size(draw.pick((20, 80, 400))), draw.size(4 * block[1]),
        draw.size(4 * block[0]), draw.pick(("random", "skewed", "balanced", "full", "none", "corner")),
        draw.pick((0.05, 0.3, 0.6)), forward and draw.chance(0.5),
        draw.pick(tuple(ops.ACTIVATIONS)) if forward and draw.chance(0.4) else None,
        device=DEVICE, tf32=dtype == torch.float32 and draw.chance(0.3),
    )  # fmt: skip
    inputs = case.inputs(draw.random.getrandbits(31), draw.integers)
    done = 0
    for kernel in kernels_for(case, inputs):
        result = sparse_product(case, inputs, kernel)
        found = check_product(case, inputs, result)
        assert found.ok, f"{case} {case.pattern} {case.density} by {kernel}: {found}"
        if kernel != "dense":
            assert torch.equal(sparse_product(case, inputs, kernel), result), (
                f"{case} by {kernel}: other bits"
            )
        done += 1
    return {"bsr": done}


def csr(draw: Draw) -> Counts:
    rows, cols, m = draw.size(200), draw.size(300), draw.size(draw.pick((4, 40, 300)))
    dtype = draw.pick((*DTYPES, torch.float64))
    mask = draw.mask(rows, cols)
    weight = (draw.numbers(rows, cols) * mask).to(dtype).to(DEVICE)
    mask = mask.to(DEVICE)
    crow = nn.functional.pad(mask.sum(1).cumsum(0), (1, 0)).int()
    col = mask.nonzero()[:, 1].int().contiguous()
    values, bias = weight[mask], draw.numbers(rows).to(dtype).to(DEVICE)
    x, dy = (draw.numbers(m, width).to(dtype).to(DEVICE) for width in (cols, rows))
    by_column = columns_of(crow, col, cols)
    w, xd, dyd, bd = (each.double() for each in (weight, x, dy, bias))
    sizes = [each.abs() for each in (w, xd, dyd, bd)]
    for name, call, exact, size in (
        (
            "forward",
            lambda: csr_ops.linear(x, values, crow, col, bias),
            xd @ w.t() + bd,
            sizes[1] @ sizes[0].t() + sizes[3],
        ),
        ("dx", lambda: csr_ops.dx(dy, values, crow, col, cols, by_column), dyd @ w, sizes[2] @ sizes[0]),
        (
            "dw",
            lambda: csr_ops.dw(dy, x, crow, col),
            (dyd.t() @ xd)[mask],
            (sizes[2].t() @ sizes[1])[mask],
        ),
    ):
        got = call()
        # Torch lets cuBLAS add up parts of 16-bit products in 16 bits, which the dense kernel calls.
        rounding = {torch.float32: 2e-6, torch.float64: 1e-13}.get(dtype, torch.finfo(dtype).eps)
        error = (got.double() - exact).abs()
        wrong = error > rounding * (exact.abs() + size) + 2e-6 * size * (dtype != torch.float64) + 1e-7
        assert not bool(wrong.any()), f"csr {rows} x {cols} {dtype} m={m} {name}: off by {float(error.max())}"
    return {"csr": 3}


def semi(draw: Draw) -> Counts:
    rows, cols, dtype, m = draw.size(200), draw.size(300), draw.pick(HALVES), draw.size(300)
    method = draw.pick(("magnitude", "transposable_greedy", "transposable_exact"))
    layer = Semi24Linear.from_dense(draw.numbers(rows, cols).to(dtype).to(DEVICE), method)
    layer.activation = draw.pick((None, "gelu", "relu"))
    twin = layer.to_dense().double()
    x = draw.numbers(m, cols).to(dtype).to(DEVICE).requires_grad_()
    exact = x.detach().double().requires_grad_()
    y, wanted = layer(x), twin(exact)
    (dx,) = torch.autograd.grad(y.float().sum(), x)
    (wanted_dx,) = torch.autograd.grad(wanted.sum(), exact)
    near = layer.activation != "relu"  # at a kink either gradient is right
    for name, mine, theirs in (("forward", y, wanted), *([("dx", dx, wanted_dx)] if near else [])):
        error = float((mine.detach().double() - theirs.detach()).norm())
        size = float(theirs.detach().norm())
        wrong = f"semi24 {rows} x {cols} {dtype} m={m} {method} {name}: {error} of {size}"
        assert error <= 2 * torch.finfo(dtype).eps * size + 1e-3 * (size < 1e-2), wrong
    return {"semi24": 1 + near}


def float8(draw: Draw) -> Counts:
    if DEVICE == "cuda" and torch.cuda.get_device_capability() < (8, 9):
        return {}
    from test_gpu_scaled import SCALES, close, operands, scales

    block = draw.pick(SIDES), draw.pick(SIDES)
    rows, cols = (16 * draw.random.randint(1, 24) for _ in range(2))
    of = operands(rows, cols, block, draw.size(300), draw.integers)
    scale, out_dtype = scales(of, draw.pick(tuple(SCALES))), draw.pick((torch.bfloat16, torch.float32))
    able = [each["kernel"] for each in of.plan(out_dtype=out_dtype)["candidates"] if not each["refusal"]]
    for kernel in able:
        got = ops.scaled_linear(of.x, of.values, of.index, *scale, out_dtype=out_dtype, kernel=kernel)
        close(got, of, *scale)
    return {"float8": len(able)}


def conv(draw: Draw) -> Counts:
    import conv_twins

    axes, block = draw.pick((1, 2, 2, 3)), (draw.pick((8, 16, 32)), draw.pick((8, 16, 32)))
    turned = draw.chance(0.3)
    how = draw.pick(conv_twins.TRANSPOSED_OPTIONS if turned else conv_twins.OPTIONS)
    kind = (conv_twins.TRANSPOSED if turned else conv_twins.CONVS)[axes]
    channels = draw.size(3 * block[1]), draw.size(3 * block[0])
    layer = conv_twins.made_of(kind, channels, block, dtype=draw.pick(DTYPES), **how).to(DEVICE)
    extents = [draw.random.randint(6, 12) for _ in range(axes)]
    x = draw.numbers(draw.pick((1, 2, 3)), channels[0], *extents).to(layer.values.dtype).to(DEVICE)
    if axes == 2 and draw.chance(0.5):
        x = x.contiguous(memory_format=torch.channels_last)
    conv_twins.require_equal_to_dense(layer, x)
    return {"conv": 3}


def attention(draw: Draw) -> Counts:
    from attention_cases import Answer
    from attention_cases import Case as Attention

    kv_heads = draw.pick((1, 2))
    heads, batch = kv_heads * draw.pick((1, 2, 4)), draw.pick((1, 2))
    case = Attention(
        "random", heads, kv_heads, draw.size(400), draw.size(400), draw.pick((64, 128)),
        (draw.pick((64, 128)), draw.pick((64, 128))), draw.chance(0.4), draw.pick((0.0, 0.3, 0.6, 1.0)),
        draw.pick(((1, 1), (1, heads), (batch, 1), (batch, heads))),
        draw.pick(("bhsd", "bshd", "packed", "expanded")), batch=batch,
    )  # fmt: skip
    try:
        Answer(case, draw.pick(HALVES), DEVICE).check(times=4)
    except AssertionError as error:
        raise AssertionError(f"{error} of {case}") from error
    return {"attention": 5}


def recurrent(draw: Draw) -> Counts:
    import recurrent_twins as twins

    layer = twins.make(
        draw.pick(("lstm", "gru")),
        draw.random.getrandbits(20),
        DEVICE,
        **twins.OPTIONS[draw.pick(tuple(twins.OPTIONS))],
    )
    leaves = twins.inputs(layer, draw.size(9), draw.size(9), DEVICE, seed=draw.random.getrandbits(20))
    twins.expect_as_torch(layer, leaves, atol=1e-4, rtol=1e-3)
    return {"recurrent": 2 + len(leaves)}


def gates(draw: Draw) -> Counts:
    from test_gates import KINDS, compare

    block = draw.pick(SIDES), draw.pick(SIDES)
    # errors are measured by the largest gradient of a gate: there have to be some
    shape = block, 2 * block[0] + draw.size(2 * block[0]), 2 * block[1] + draw.size(2 * block[1])
    compare(shape, draw.pick(KINDS), draw.pick(DTYPES), DEVICE)
    return {"gates": 5}


def moved_tables(draw: Draw) -> Counts:
    """Changes of a topology beside those of the CPU, with and without a capacity."""
    block = draw.pick(SIDES), draw.pick(SIDES)
    torch.manual_seed(draw.random.getrandbits(60))
    layer = BlockSparseLinear(draw.size(9 * block[1]), draw.size(9 * block[0]), block=block, density=0.4)
    if draw.chance(0.5):
        layer.reserve_(0.7)
    there = copy.deepcopy(layer).to(DEVICE)
    grid, blocks = layer.pattern.mask.shape, layer.pattern.blocks
    for step in range(4):
        mask = torch.zeros(grid, dtype=torch.bool).flatten()
        count = blocks if layer.capacity is None else draw.random.randint(0, layer.capacity)
        mask[torch.randperm(len(mask), generator=draw.generator)[:count]] = True
        mask = mask.view(grid)
        moved = there.set_topology_(mask.to(DEVICE))
        name = f"topology of {layer.out_features} x {layer.in_features} in {block}, step {step}"
        assert torch.equal(moved.cpu(), layer.set_topology_(mask)), f"{name}: moved"
        for mine, theirs in zip(there.index.stored(), layer.index.stored(), strict=True):
            assert torch.equal(mine.cpu(), theirs), f"{name}: index"
        assert torch.equal(there.values.cpu(), layer.values), f"{name}: values"
    return {"topology": 4}


#: The families, with how often each is drawn.
FAMILIES: Sequence[tuple[Callable[[Draw], Counts], int]] = (
    (bsr, 20), (csr, 8), (semi, 6), (float8, 4), (conv, 8), (attention, 5), (recurrent, 2), (gates, 3),
    (moved_tables, 4), (streams, 5), (graphs, 5), (memory, 2), (devices, 2),
)  # fmt: skip
_WEIGHTS = [often for _, often in FAMILIES]


def case(seed: int) -> Counts:
    """Draws a family and its cases. Raises SystemExit where CUDA itself is broken after one, since no later
    seed could tell anything."""
    if refused := refusal():
        raise SystemExit(refused)
    draw = Draw(seed)
    family: Any = draw.random.choices(FAMILIES, _WEIGHTS)[0][0]
    torch.manual_seed(draw.random.getrandbits(60))
    try:
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            counts: Counts = family(draw)
        torch.cuda.synchronize()
        return counts
    except (Error, RuntimeError) as error:
        text = f"{family.__name__}: {type(error).__name__}: {error}"
        try:
            torch.cuda.synchronize()
        except RuntimeError as broken:
            raise SystemExit(f"gpu, seed {seed}: {text}; CUDA is broken now: {broken}") from error
        raise AssertionError(text) from error
    finally:
        torch.set_num_threads(1)


def one(name: str, seed: int) -> Counts:
    """Runs the family of that name alone: python -c 'from campaigns.gpu import one; one("memory", 3)'."""
    return next(family for family, _ in FAMILIES if family.__name__ == name)(Draw(seed))
