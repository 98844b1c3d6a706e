"""Random products of every family on the CPU, and recurrent layers, against fp64 of the same rounded numbers:
shape, dtype, block, density, activation, bias, residual, direction, threads, strides, kernels by name. A case
is one result."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from sparseloom import AttentionPattern, BlockSparseGRU, BlockSparseLSTM, Error, ops
from sparseloom.ops import semi24
from sparseloom.ops.conv import product as conv_product
from sparseloom.ops.conv.product import Window

from .draws import Draw, require
from .linears import (
    SIDES,
    Counts,
    bitmap,
    blocks_of,
    bsr,
    bsr_training,
    csr,
    grid_of,
    index_of,
    int8,
    nmg,
    semi,
    spread,
)  # fmt: skip


def recurrent(draw: Draw) -> Counts:
    """All steps of an LSTM or GRU against torch's layer in fp64: results and gradients."""
    kind, dtype = draw.pick((BlockSparseLSTM, BlockSparseGRU)), draw.pick((torch.float32, torch.float64))
    inputs, hidden = 8 * draw.size(8), 8 * draw.size(8)
    options = {
        "density": draw.pick((0.2, 0.5)),
        "block": draw.pick((8, 16)),
        "seed": draw.random.getrandbits(31),
    }
    layer = kind(inputs, hidden, draw.pick((1, 2)), bidirectional=draw.chance(0.3), dtype=dtype, **options)
    twin = copy.deepcopy(layer.to_dense()).double()
    exact = draw.numbers(draw.size(9), draw.size(9), inputs).to(dtype).double().requires_grad_()
    x = exact.detach().to(dtype).requires_grad_()
    y, wanted = layer(x)[0], twin(exact)[0]
    y.square().sum().backward()
    wanted.square().sum().backward()
    near = {"rtol": 1e-3, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 1e-9, "atol": 1e-10}
    torch.testing.assert_close(y.double(), wanted, **near)
    torch.testing.assert_close(x.grad.double(), exact.grad, **near)
    weight = layer.hh_l0.sparse_weights()["values"]
    stored = weight.unpacked(torch.ones_like(layer.hh_l0.values)) != 0
    gradient = weight.unpacked(layer.hh_l0.values.grad).double()
    torch.testing.assert_close(gradient, twin.weight_hh_l0.grad * stored, **near)
    return {"recurrent": 3}


def conv(draw: Draw) -> Counts:
    axes = draw.pick((1, 2, 2, 2, 3))
    dtype = draw.dtype((torch.float32, torch.bfloat16, torch.float16))
    block = draw.pick((8, 16, 32)), draw.pick((8, 16, 32))
    rows, cols, images = draw.size(2 * block[0]), draw.size(2 * block[1]), draw.pick((1, 1, 2, 3))
    kernel = tuple(draw.pick((1, 2, 3, 3, 5)) for _ in range(axes))
    stride, dilation = (tuple(draw.pick((1, 1, 2, 3)) for _ in range(axes)) for _ in range(2))
    padding = tuple(draw.random.randint(0, k) for k in kernel)
    window = Window(kernel, stride, padding, dilation)
    extents = tuple(
        max(1, d * (k - 1) + 1 - 2 * p) + draw.random.randint(0, 6)
        for k, p, d in zip(kernel, padding, dilation, strict=True)
    )
    grid = grid_of(draw, rows, cols, block)
    mask = spread(grid, block, rows, cols).view(rows, cols, *(1,) * axes)
    weight = (draw.numbers(rows, cols, *kernel) * mask).to(dtype)
    index = index_of(grid, rows, cols, block)
    values = conv_product.blocks_of(weight, index)
    assert torch.equal(conv_product.dense(values, index, kernel), weight), "conv blocks"
    by_ops = ops.call(
        "conv_pack", weight.movedim(1, -1).flatten(1, -2).contiguous(), index.packed, index.blocks, *block
    )
    assert torch.equal(by_ops, values), "conv_pack"
    x = draw.numbers(images, cols, *extents).to(dtype)
    if draw.chance(0.5) and axes == 2:
        x = x.to(memory_format=torch.channels_last)
    epilogue = draw.epilogue(dtype, rows, (images, rows, *window.out(extents)))
    channels = epilogue.bias
    torchs = getattr(functional, f"conv{axes}d")
    # oneDNN overran its memory where taps reach beyond x (torch 2.11, AVX-512): there torch computes in fp64
    # alone, by other code.
    spans = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    safe = all(
        span <= extent and 2 * p < span for span, extent, p in zip(spans, extents, padding, strict=True)
    )
    exact = torchs(x.double(), weight.double(), None, *window[1:])
    size = torchs(x.double().abs(), weight.double().abs(), None, *window[1:])
    dy = draw.numbers(*exact.shape).to(dtype)
    bias = channels
    if bias is not None:
        epilogue.bias = bias.view(-1, *(1,) * axes)
    name = f"conv{axes}d {rows} x {cols} in {block} {window} of {extents} {dtype} {epilogue.activation}"
    with_torch = dtype == torch.float64 or safe
    y = conv_product.conv(
        x, values, index, bias, window, not with_torch, epilogue.activation, epilogue.residual
    )

    def torchs_forward() -> Tensor:
        z = torchs(x, weight, bias, *window[1:])
        z = ops.activate(z, epilogue.activation)
        return z if epilogue.residual is None else z + epilogue.residual

    require(name, y, *epilogue.of(exact, size), dense=torchs_forward if with_torch else None)
    one, zero = (False, (0,) * axes, 1), None
    for direction, wanted in (("dx", [True, False, False]), ("dw", [False, True, False])):
        free = window.stride, window.padding, window.dilation, *one
        answers = [
            torch.ops.aten.convolution_backward(a, b, c, zero, *free, wanted)[0 if direction == "dx" else 1]
            for a, b, c in (
                (dy.double(), x.double(), weight.double()),
                (dy.double().abs(), x.double().abs(), weight.double().abs()),
                *([(dy, x, weight)] if with_torch else []),
            )
        ]
        pixels, grad = x.movedim(1, -1).contiguous(), dy.movedim(1, -1).contiguous()
        if direction == "dx":
            got = conv_product._dx(grad, values, extents, index, window, not with_torch).movedim(-1, 1)
        else:
            got = conv_product._dvalues(grad, pixels, index, window, not with_torch)
            answers = [conv_product.blocks_of(each, index) for each in answers]
        dense = answers.pop().detach if with_torch else None
        require(f"{name} {direction}", got, *answers, dense=dense)
    return {"conv": 3, "conv pack": 2}


def attention(draw: Draw) -> Counts:
    from attention_cases import EPS, Answer, Case  # of tests/python/attention

    EPS[torch.float64] = 2e-6  # lse is fp32, with which the gradients begin

    block = draw.pick((64, 128)), draw.pick((64, 128))
    kv_heads = draw.pick((1, 1, 2))
    heads, batch = kv_heads * draw.pick((1, 1, 2, 3)), draw.pick((1, 2))
    q, kv = draw.size(150), draw.size(150)
    lists = draw.pick(((1, 1), (1, heads), (batch, 1), (batch, heads)))
    lengths = None
    documents = draw.chance(0.15)
    if draw.chance(0.2):
        lengths = (
            tuple(draw.random.randint(0, q) for _ in range(batch)),
            tuple(draw.random.randint(0, kv) for _ in range(batch)),
        )
        lengths = (*lengths[0][:-1], q), (*lengths[1][:-1], kv)
        lists = (lists[0], lists[1])
    case = Case(
        "random", heads, kv_heads, q, kv, draw.pick((8, 16, 20, 32, 64, 96)), block, draw.chance(0.4),
        draw.pick((0.0, 0.3, 0.6, 1.0)), lists, draw.pick(("bhsd", "bshd", "packed", "bhds", "expanded")), (),
        documents and lengths is None, batch, lengths,
    )  # fmt: skip
    torch.manual_seed(draw.random.getrandbits(60))
    dtype = draw.pick((torch.float32, torch.bfloat16, torch.float16, torch.float64))
    try:
        # dq of one key is a difference of equal sums: 2 of 40,000 passed twice another order's error
        Answer(case, dtype).check(times=4)
    except AssertionError as error:
        raise AssertionError(f"{error} of {case} {dtype}") from error
    return {"attention": 5}


def lists_of_attention(draw: Draw) -> Counts:
    codes = torch.randint(0, 2, (draw.pick((1, 2)), draw.pick((1, 2)), draw.size(12), draw.size(12)),
                          generator=draw.generator, dtype=torch.uint8).bool()  # fmt: skip
    made = AttentionPattern.from_map(codes, 64)
    kept = torch.zeros_like(codes, dtype=torch.bool)
    places = made.indices & ~AttentionPattern.PARTIAL
    for at in (codes.sum(-1) >= 0).nonzero().tolist():
        kept[tuple(at)][places[tuple(at)][: int(made.counts[tuple(at)])].long()] = True
    assert torch.equal(kept, codes), f"attention lists of {codes.tolist()}"
    return {"attention lists": 1}


def topology(draw: Draw) -> Counts:
    """set_topology and move_blocks, twice, beside masks."""
    block_rows, block_cols, side = draw.size(12), draw.size(12), 8
    grid = draw.mask(block_rows, block_cols)
    rows, cols = side * block_rows, side * block_cols
    index = index_of(grid, rows, cols, (side, side))
    dense = draw.numbers(block_rows, block_cols).float()
    values = dense[grid].clone()
    count = int(grid.sum())
    for _ in range(3):
        order = torch.randperm(block_rows * block_cols, generator=draw.generator)[:count]
        asked = torch.zeros(block_rows * block_cols, dtype=torch.bool)
        asked[order] = True
        asked = asked.view(block_rows, block_cols)
        moved, requested = torch.empty(count, dtype=torch.int32), torch.empty(1, dtype=torch.int32)
        ops.set_topology(index, asked, moved, requested)
        ops.move_blocks(values, moved)
        dense = torch.where(grid & asked, dense, 0.0)
        grid = asked
        assert int(requested) == count and torch.equal(values, dense[grid]), f"topology of {rows} x {cols}"
        again = index_of(grid, rows, cols, (side, side))
        for name, got, right in zip(
            ["crow", "col", "ccol", "row", "slot"], index.lists(), again.lists(), strict=True
        ):
            assert torch.equal(got, right), f"topology of {rows} x {cols}: {name}"
    return {"topology": 3}


def pruning(draw: Draw) -> Counts:
    """2:4 choices, and the scores of blocks, beside torch's own."""
    rows, cols = draw.size(60), draw.size(120)
    dtype = draw.dtype((torch.float32, torch.bfloat16, torch.float16))
    weight = draw.numbers(rows, cols).to(dtype)
    kept = semi24.mask(weight, "magnitude")
    sizes = functional.pad(weight.double().abs(), (0, -cols % 4), value=-1.0).unflatten(1, (-1, 4))
    best = sizes.topk(2, -1).values.clamp(min=0).sum((1, 2))
    got = (weight.double().abs() * kept).sum(1)
    assert torch.allclose(got, best, rtol=1e-12, atol=1e-12), f"semi24 mask of {rows} x {cols} {dtype}"
    values, positions, *_ = semi24.compress(weight, "magnitude")
    assert torch.equal(semi24.unpack(values, positions, cols), weight * kept), (
        f"compress {rows} x {cols} {dtype}"
    )
    both = semi24.mask(weight, draw.pick(("transposable_greedy", "transposable_exact")))
    for direction in (both, both.T):
        groups = functional.pad(direction, (0, -direction.shape[1] % 4)).unflatten(1, (-1, 4))
        assert int(groups.sum(-1).max()) <= 2, f"transposable mask of {rows} x {cols} {dtype}"
    block = draw.pick(SIDES), draw.pick(SIDES)
    scores = ops.call("block_scores", weight, *block, "l2")
    grid = torch.ones(-(-rows // block[0]), -(-cols // block[1]), dtype=torch.bool)
    exact = blocks_of(weight.double(), grid, block).flatten(1).norm(dim=1).view(grid.shape)
    require(f"block_scores of {rows} x {cols} in {block} {dtype}", scores.float(), exact, exact * 8)
    return {"semi24 choice": 3, "block scores": 1}


#: The families, with how often each is drawn.
FAMILIES: Sequence[tuple[Callable[[Draw], Counts], int]] = (
    (bsr, 30), (bsr_training, 10), (int8, 8), (semi, 10), (csr, 10), (bitmap, 10), (recurrent, 2), (nmg, 10),
    (conv, 10), (attention, 4), (lists_of_attention, 2), (topology, 4), (pruning, 4),
)  # fmt: skip
_WEIGHTS = [often for _, often in FAMILIES]


def case(seed: int) -> Counts:
    """Draws a family and its cases."""
    draw = Draw(seed)
    family = draw.random.choices(FAMILIES, _WEIGHTS)[0][0]
    try:
        return family(draw)
    except (Error, RuntimeError) as error:
        raise AssertionError(f"{family.__name__}: {type(error).__name__}: {error}") from error
    finally:
        torch.set_num_threads(1)
