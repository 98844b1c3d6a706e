"""Random products of the linear families on the CPU against fp64 of the same rounded numbers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from sparseloom import Error, ops
from sparseloom.layouts import Bitmap
from sparseloom.ops import bitmap as bitmap_ops
from sparseloom.ops import csr as csr_ops
from sparseloom.ops import nm as nm_ops
from sparseloom.ops import semi24

from .draws import Draw, require

SIDES = (8, 16, 32, 64, 128)
KERNELS = (
    "avx2_panel",
    "avx512_panel",
    "avx512bf16_panel",
    "avx2_decode",
    "avx512_decode",
    "amx_tile",
    "dense",
)
Counts = dict[str, int]


def by_name(call: Callable[[str | None], Tensor], draw: Draw) -> Tensor | None:
    """Returns the result of the plan's own kernel, or of one drawn by its name; None where that one refuses
    the problem."""
    if draw.chance(0.5):
        return call(None)
    try:
        return call(draw.pick((*KERNELS, "reference")))
    except Error:
        return None


def tokens(draw: Draw) -> list[int]:
    return [draw.size(draw.pick((4, 20, 70))) for _ in range(6)]


class Weight:
    """A weight [rows, cols] in fp64, zero where ``mask`` is not, beside what products with it are."""

    def __init__(self, draw: Draw, mask: Tensor, dtype: torch.dtype) -> None:
        self.dtype, self.mask = dtype, mask
        self.dense = (draw.numbers(*mask.shape) * mask).to(dtype).double()
        self.absolute = self.dense.abs()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.double()
        return x @ self.dense.T, x.abs() @ self.absolute.T

    def dx(self, dy: Tensor) -> tuple[Tensor, Tensor]:
        dy = dy.double()
        return dy @ self.dense, dy.abs() @ self.absolute


def grid_of(draw: Draw, rows: int, cols: int, block: tuple[int, int]) -> Tensor:
    return draw.mask(-(-rows // block[0]), -(-cols // block[1]))


def spread(grid: Tensor, block: tuple[int, int], rows: int, cols: int) -> Tensor:
    return grid.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)[:rows, :cols]


def blocks_of(matrix: Tensor, grid: Tensor, block: tuple[int, int]) -> Tensor:
    """Returns [blocks, bm, bn] of a matrix by torch's own indexing, with zeros behind ragged edges."""
    (bm, bn), (block_rows, block_cols) = block, grid.shape
    padded = functional.pad(
        matrix, (0, block_cols * bn - matrix.shape[1], 0, block_rows * bm - matrix.shape[0])
    )
    return padded.view(block_rows, bm, block_cols, bn).transpose(1, 2)[grid].contiguous()


def index_of(grid: Tensor, rows: int, cols: int, block: tuple[int, int]) -> ops.Index:
    crow = functional.pad(grid.sum(1).cumsum(0), (1, 0)).int()
    return ops.make_index(crow, grid.nonzero()[:, 1].int().contiguous(), rows, cols, block)


def bsr(draw: Draw) -> Counts:
    block = draw.pick(SIDES), draw.pick(SIDES)
    rows, cols = draw.size(3 * block[0]), draw.size(3 * block[1])
    dtype = draw.dtype()
    grid = grid_of(draw, rows, cols, block)
    weight = Weight(draw, spread(grid, block, rows, cols), dtype)
    index = index_of(grid, rows, cols, block)
    values = blocks_of(weight.dense.to(dtype), grid, block)
    unpacked = ops.call("unpack", values, index.crow, index.col, rows, cols)
    assert torch.equal(unpacked.double(), weight.dense), "bsr unpack"
    packed = ops.call("pack", unpacked, index.crow, index.col, *block)
    assert torch.equal(packed, values), "bsr pack"
    counts = {"bsr": 0, "bsr pack": 2}
    name = f"bsr {rows} x {cols} in {block} {dtype}"
    for m in tokens(draw):
        x, dy = (draw.placed(draw.numbers(m, width), dtype) for width in (cols, rows))
        epilogue = draw.epilogue(dtype, rows, (m, rows))
        fused = epilogue.bias, epilogue.activation
        results = (
            (
                f"{name} forward m={m} {epilogue.activation}",
                lambda kernel, x=x, e=epilogue, fused=fused: ops.linear(
                    x, values, index, *fused, kernel=kernel, residual=e.residual
                ),
                lambda x=x, e=epilogue: e.of(*weight.forward(x)),
            ),
            (
                f"{name} dx m={m}",
                lambda kernel, dy=dy: ops.linear_dx(dy, values, index, kernel=kernel),
                lambda dy=dy: weight.dx(dy),
            ),
            (
                f"{name} dw m={m}",
                lambda kernel, dy=dy, x=x: ops.linear_dw(dy, x, index, kernel=kernel),
                lambda dy=dy, x=x: tuple(
                    blocks_of(each, grid, block)
                    for each in (dy.double().T @ x.double(), dy.double().abs().T @ x.double().abs())
                ),
            ),
        )
        for what, call, exact in results:
            answer = exact()
            for _ in range(2):
                got = by_name(call, draw)
                if got is not None:
                    require(what, got, *answer)
                    counts["bsr"] += 1
    return counts


def bsr_training(draw: Draw) -> Counts:
    """A step through autograd, with gates in some, and dW added to fp32 sums."""
    block = draw.pick(SIDES), draw.pick(SIDES)
    rows, cols, m = draw.size(3 * block[0]), draw.size(3 * block[1]), draw.size(40)
    dtype = draw.dtype()
    grid = grid_of(draw, rows, cols, block)
    weight = Weight(draw, spread(grid, block, rows, cols), dtype)
    index = index_of(grid, rows, cols, block)
    values = blocks_of(weight.dense.to(dtype), grid, block).requires_grad_()
    x = draw.placed(draw.numbers(m, cols), dtype).requires_grad_()
    dy = draw.numbers(m, rows).to(dtype)
    name = f"bsr training {rows} x {cols} in {block} {dtype} m={m}"
    counts = {"bsr training": 3}
    if dtype != torch.float64 and draw.chance(0.4):
        gates = (torch.rand(index.blocks, generator=draw.generator) * draw.mask(index.blocks)).float()
        gates = gates.to(dtype).float().requires_grad_()
        y = ops.gated_linear(x, values, index, gates)
        y.backward(dy)
        scale = torch.zeros(grid.shape, dtype=torch.float64)
        scale[grid] = gates.detach().double()
        dense = weight.dense * spread(scale, block, rows, cols)
        # the product takes gates * W rounded to its dtype
        rounded = dense.to(dtype).double()
        xd, dyd = x.detach().double(), dy.double()
        slack = torch.finfo(dtype).eps * 2
        magnitude = xd.abs() @ rounded.abs().T
        require(f"{name} gated", y.detach(), xd @ rounded.T, magnitude * (1 + slack / 1e-7))
        dx = dyd.abs() @ rounded.abs()
        require(f"{name} gated dx", x.grad, dyd @ rounded, dx * (1 + slack / 1e-7))
        return {"gated": 2}
    activation = draw.pick((None, None, "relu", "gelu", "silu"))
    y = ops.linear(x, values, index, None, activation)
    y.backward(dy)
    exact_x, exact_w = x.detach().double().requires_grad_(), weight.dense.clone().requires_grad_()
    z = exact_x @ exact_w.T
    exact_y = ops.activate(z, activation)
    exact_y.backward(dy.double())
    # the gradient of z is rounded to the dtype once before the products, and z too
    eps = torch.finfo(dtype).eps / 1e-7 if activation else 0.0
    if dtype == torch.float64 and activation:
        eps = 1.0  # the activation's own gradient is some roundings off
    y_size = x.detach().double().abs() @ weight.absolute.T
    require(f"{name} {activation}", y.detach(), exact_y.detach(), y_size * (1.2 + eps))
    dz = dy.double().abs() * 1.2
    more = 1 + eps * (1 + y_size.max() if activation else 0)
    if activation == "relu" and bool((z.detach().abs() < y_size * 1e-5 + 1e-30).any()):
        return {"bsr training": 1}  # a kink, at which either gradient is right
    require(f"{name} {activation} dx", x.grad, exact_x.grad, (dz @ weight.absolute) * more)
    dw = blocks_of(dz.T @ x.detach().double().abs(), grid, block)
    require(f"{name} {activation} dw", values.grad, blocks_of(exact_w.grad, grid, block), dw * more)
    if dtype != torch.float64:
        sums = draw.numbers(index.blocks, *block).float() * (
            blocks_of(torch.ones(rows, cols), grid, block) > 0
        )
        before = sums.double()
        ops.linear_dw(dy, x.detach(), index, out=sums)
        whole = blocks_of(dy.double().T @ x.detach().double(), grid, block)
        size = blocks_of(dy.double().abs().T @ x.detach().double().abs(), grid, block)
        require(f"{name} dw added", sums, before + whole, before.abs() + size)
        counts["bsr dw added"] = 1
    return counts


def int8(draw: Draw) -> Counts:
    block = draw.pick(SIDES), draw.pick(SIDES)
    rows, cols = draw.size(3 * block[0]), draw.size(3 * block[1])
    grid = grid_of(draw, rows, cols, block)
    index = index_of(grid, rows, cols, block)
    dense = torch.randint(-128, 128, (rows, cols), generator=draw.generator) * spread(grid, block, rows, cols)
    values = blocks_of(dense.to(torch.int8), grid, block)
    counts = {"int8": 0}
    for m in tokens(draw):
        x = torch.randint(-128, 128, (m, cols), generator=draw.generator, dtype=torch.int8)
        x_scale = torch.rand(draw.pick((1, m)), 1, generator=draw.generator) / 100
        w_scale = torch.rand(draw.pick((1, rows)), generator=draw.generator) / 100
        out_dtype = draw.pick((torch.float32, torch.bfloat16))
        epilogue = draw.epilogue(out_dtype, rows, (m, rows))
        epilogue.residual = None
        sums = (x.long() @ dense.long().T).double() * x_scale.double() * w_scale.double()
        answer = epilogue.of(sums, sums.abs())
        for kernel in (None, "reference"):
            try:
                y = ops.scaled_linear(
                    x, values, index, x_scale, w_scale, epilogue.bias, out_dtype=out_dtype,
                    activation=epilogue.activation, kernel=kernel,
                )  # fmt: skip
            except Error:
                continue  # no fast int8 kernel on this CPU
            require(f"int8 {rows} x {cols} in {block} m={m} {out_dtype} {epilogue.activation}", y, *answer)
            counts["int8"] += 1
    return counts


def semi(draw: Draw) -> Counts:
    rows, cols = draw.size(90), draw.size(260)
    dtype = draw.dtype()
    groups = -(-cols // 4)
    kept = torch.rand(rows, groups, 4, generator=draw.generator).argsort(-1) < draw.pick((0, 1, 2, 2, 2))
    weight = Weight(draw, kept.flatten(1)[:, :cols], dtype)
    values, positions = semi24.pack(weight.dense.to(dtype))
    assert torch.equal(semi24.unpack(values, positions, cols).double(), weight.dense), "semi24 pack"
    counts = {"semi24": 0, "semi24 pack": 1}
    for m in tokens(draw):
        x, dy = (draw.placed(draw.numbers(m, width), dtype) for width in (cols, rows))
        epilogue = draw.epilogue(dtype, rows, (m, rows))
        name = f"semi24 {rows} x {cols} {dtype} m={m} {epilogue.activation}"
        answer = epilogue.of(*weight.forward(x))
        for kernel in ("", draw.pick((*KERNELS, "reference"))):
            try:
                y = semi24.linear(
                    x, values, positions, cols, epilogue.bias, epilogue.activation, epilogue.residual, kernel
                )
            except Error:
                if not kernel:
                    raise
                continue
            require(name, y, *answer)
            counts["semi24"] += 1
        require(f"{name} dx", semi24.dx(dy, values, positions, cols), *weight.dx(dy))
        counts["semi24"] += 1
    return counts


def csr(draw: Draw) -> Counts:
    rows, cols = draw.size(90), draw.size(200)
    dtype = draw.dtype()
    mask = draw.mask(rows, cols)
    weight = Weight(draw, mask, dtype)
    crow = functional.pad(mask.sum(1).cumsum(0), (1, 0)).int()
    col = mask.nonzero()[:, 1].int().contiguous()
    values = weight.dense.to(dtype)[mask]
    counts = {"csr": 0}
    for m in tokens(draw):
        x, dy = (draw.placed(draw.numbers(m, width), dtype) for width in (cols, rows))
        epilogue = draw.epilogue(dtype, rows, (m, rows))
        name = f"csr {rows} x {cols} {dtype} m={m} {epilogue.activation}"
        fused = epilogue.bias, False, epilogue.activation, epilogue.residual
        require(name, csr_ops.linear(x, values, crow, col, *fused), *epilogue.of(*weight.forward(x)))
        require(f"{name} dx", csr_ops.dx(dy, values, crow, col, cols), *weight.dx(dy))
        dw = [(a.T @ b)[mask] for a, b in ((dy.double(), x.double()), (dy.double().abs(), x.double().abs()))]
        require(f"{name} dw", csr_ops.dw(dy, x, crow, col), *dw)
        counts["csr"] += 3
    return counts


def bitmap(draw: Draw) -> Counts:
    rows, cols, dtype = draw.size(90), draw.size(140), draw.dtype()
    mask = draw.mask(rows, cols)
    weight = Weight(draw, mask, dtype)
    layout = Bitmap.from_mask(weight.dense.to(dtype), mask)
    values = layout.pack(weight.dense.to(dtype))
    crow = functional.pad(mask.sum(1).cumsum(0), (1, 0)).int()
    counts = {"bitmap": 0}
    for m in tokens(draw):
        x, dy = (draw.placed(draw.numbers(m, size), dtype) for size in (cols, rows))
        epilogue = draw.epilogue(dtype, rows, (m, rows))
        name = f"bitmap {rows} x {cols} {dtype} m={m} {epilogue.activation}"
        fused = epilogue.bias, False, epilogue.activation, epilogue.residual
        y = bitmap_ops.linear(x, values, layout.bits, crow, *fused)
        require(name, y, *epilogue.of(*weight.forward(x)))
        dx = bitmap_ops.dx(dy, values, layout.bits, crow, cols)
        require(f"{name} dx", dx, *weight.dx(dy))
        counts["bitmap"] += 2
    return counts


def nmg(draw: Draw) -> Counts:
    n, m_group = draw.pick(((1, 2), (2, 4), (1, 4), (2, 3), (1, 8), (3, 6), (2, 8), (4, 4), (1, 10)))
    rows, cols, g = draw.size(90), draw.size(120), draw.pick((1, 2, 4, 8))
    dtype = draw.dtype()
    full = draw.numbers(rows, cols).to(dtype)
    order = nm_ops.order(full, n, m_group, g)
    values = nm_ops.nmg_pack(full, order, n, m_group, g)
    sizes = rows, cols, n, m_group, g
    unpacked = nm_ops.nmg_unpack(values, order, *sizes)
    name = f"nmg {sizes} {dtype}"
    assert bool(((unpacked == full) | (unpacked == 0)).all()), f"{name} pack"
    groups = functional.pad(unpacked, (0, -cols % m_group)).unflatten(1, (-1, m_group))
    assert int((groups != 0).sum(-1).max()) <= n, f"{name} choice"
    whole = full[:, : cols // m_group * m_group].unflatten(1, (-1, m_group))
    kept = (groups[:, : cols // m_group] != 0).sum(-1)
    assert bool((kept == n)[(whole != 0).all(-1)].all()), f"{name} keeps fewer than it can"
    weight = Weight(draw, torch.ones(rows, cols, dtype=torch.bool), dtype)
    weight.dense = unpacked.double()
    weight.absolute = weight.dense.abs()
    counts = {"nmg": 0, "nmg pack": 1, "nm pack": 1}
    for m in tokens(draw):
        x = draw.placed(draw.numbers(m, cols), dtype)
        epilogue = draw.epilogue(dtype, rows, (m, rows))
        epilogue.activation = epilogue.residual = None
        y = nm_ops.linear(x, values, order, epilogue.bias, *sizes)
        require(f"{name} m={m}", y, *epilogue.of(*weight.forward(x)))
        counts["nmg"] += 1
    positions = nm_ops.largest_positions(full, n, m_group)
    stored = nm_ops.nm_pack(full, positions, m_group)
    back = nm_ops.nm_unpack(stored, positions, cols, m_group)
    sized = functional.pad(full.double().abs(), (0, -cols % m_group), value=-1.0).unflatten(1, (-1, m_group))
    largest = sized.topk(min(n, m_group), -1).values.clamp(min=0).sum((1, 2))
    same = torch.isclose(back.double().abs().sum(1), largest, rtol=1e-12, atol=1e-12)
    assert bool(same.all()), f"nm {n}:{m_group} {rows} x {cols} {dtype}: another choice than the largest"
    return counts
