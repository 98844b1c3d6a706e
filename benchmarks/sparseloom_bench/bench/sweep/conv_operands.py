"""Makes the operands of a convolution's calls, ours and torch's, on a CPU or a GPU, and its exact result."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from sparseloom import ops
from sparseloom.nn.held.state import build_index
from sparseloom.ops.conv import plans, product
from sparseloom.ops.conv.product import Window
from sparseloom.ops.operators import row_of
from sparseloom.testing import TileCheck, check_tiles
from sparseloom.testing.cases import round_to_tf32
from sparseloom.testing.tolerance import TILE_TOKENS, TRUNCATION

from ..cells import DENSE_COPY, DTYPES
from ..gpu.operands import DENSE, Call, sets_needed

if TYPE_CHECKING:
    from .conv import ConvProblem

#: The candidate that is torch's convolution with W made of its blocks in the call, as the layer takes it.
LENT = "dense"
#: Whether torch's operands lie in channels-last memory, else in channels-first. On a CPU both are tried:
#: with channels last torch's bf16 dX takes 13 times as long as with channels first (256 channels, 14 x 14,
#: two threads of a Zen 3), and its forward an eighth.
LAYOUTS = (True, False)
TRIALS = 3


class Set(NamedTuple):
    """Operands of one call: x [images, *space, k], dy [images, *space, n] and, for ours, values [blocks,
    taps, bm, bn], for torch's W [n, k, *kernel]. A call reads two of them; the third tells sizes."""

    x: Tensor
    dy: Tensor
    weight: Tensor

    def again(self, direction: str) -> Set:
        """Returns copies of what the direction reads."""
        read = {"forward": (0, 2), "dx": (1, 2), "dw": (0, 1)}[direction]
        return Set(*(each.clone() if at in read else each for at, each in enumerate(self)))


class ConvOperands:
    """Holds a problem's random operands, those of its dense counterpart, in copies that take turns, and the
    calls. ``l2_bytes``: twice that many bytes lie between two uses of a copy; None makes one copy."""

    def __init__(self, problem: ConvProblem, device: torch.device, l2_bytes: int | None) -> None:
        self.cell, self._device = problem, device
        pattern = problem.case().make_pattern()
        #: Of W: channels in and out, as every tap has them.
        self.elements = pattern.stats().elements
        self.index = build_index(pattern).to(device)
        kind, window = DTYPES[problem.dtype], problem.window
        #: Whether products round to TF32. The operands are rounded to it beforehand: one algorithm of torch's
        #: rounds them and another does not.
        self.tf32 = device.type == "cuda" and plans.rounds_to_tf32(kind)
        generator = torch.Generator(device).manual_seed(problem.mask_seed)

        def drawn(*shape: int) -> Tensor:
            normal = torch.randn(shape, generator=generator, device=device).to(kind)
            return round_to_tf32(normal) if self.tf32 else normal

        pixels, written = problem.extents, window.out(problem.extents)
        x, dy = drawn(problem.m, *pixels, problem.k), drawn(problem.m, *written, problem.n)
        values = drawn(pattern.blocks, window.taps, *problem.block)
        #: W with zeros where no block is: what the results are checked with.
        self.weight = product.dense(values, self.index, window.kernel)
        first = Set(x, dy, product.blocks_of(self.weight, self.index))  # with zeros beyond ragged channels
        self._lists = [list(each) for each in window]
        #: Without zeros, as the layer that ours replaces has it: see gpu.operands.Operands.
        dense = Set(x, dy, drawn(problem.n, problem.k, *window.kernel))
        self.copies, self.dense_sets = (
            [each, *(each.again(problem.direction) for _ in range(_others(each, l2_bytes)))]
            for each in (first, dense)
        )

    def plan(self) -> dict[str, Any]:
        """Returns the plan of the problem on the device of its operands."""
        return self.cell.plan(str(self._device))

    def calls(self, kernel: str) -> list[Call]:
        """Returns our calls by that kernel, one for each copy; the results have channels last. "dense_copy"
        is torch's convolution with a W that lies there, as a layer may keep it."""
        if kernel == DENSE_COPY:
            pairs = zip(self.copies, self._kept, strict=True)
            return [partial(self._by_copy, own.x, weight) for own, weight in pairs]
        return [partial(self.ours, kernel, *own) for own in self.copies]

    @cached_property
    def _kept(self) -> list[Tensor]:
        return [self.weight, *(self.weight.clone() for _ in self.copies[1:])]

    def _by_copy(self, x: Tensor, weight: Tensor) -> Tensor:
        return product.by_weight(x.movedim(-1, 1), weight, None, self.cell.window).movedim(1, -1)

    def ours(self, kernel: str, x: Tensor, dy: Tensor, values: Tensor) -> Tensor:
        """Computes the product by that kernel."""
        direction, index, extents = self.cell.direction, self.index, self.cell.extents
        no_epilogue = None, 0, None
        options = row_of(kernel), False, self.tf32, index.digest
        if direction == "forward":
            how = index.packed, index.rows, *self._lists, *no_epilogue
            return ops.call("bsr_conv", x, values, *how, *options)
        if direction == "dx":
            space = (*(1,) * (3 - len(extents)), *extents)
            how = index.packed, index.cols, *space, *self._lists, *no_epilogue
            return ops.call("bsr_conv_dx", dy, values, *how, *options)
        how = index.packed, index.blocks, index.bm, index.bn, *self._lists
        return ops.call("bsr_conv_dw", dy, x, *how, *options)

    def dense_calls(self, last: bool = True) -> dict[str, list[Call]]:
        """Returns the calls of torch's convolution of a W without zeros, one for each copy. ``last``: in
        channels-last memory, cuDNN's fastest, else in channels-first."""
        return {DENSE: [dense_call(self.cell, own, last) for own in self.dense_sets]}


class ConvReference:
    """Holds a problem's exact result in fp64 and torch's in the dtype under test, ``last`` in channels-last
    memory, and compares results with them by tiles."""

    def __init__(self, operands: ConvOperands, last: bool = True) -> None:
        self._operands, first = operands, operands.copies[0]
        given = Set(first.x, first.dy, operands.weight)
        wide = Set(*(each.double() for each in given))
        absolute = Set(*(each.abs() for each in wide))
        self._dense = self._tiled(dense_call(operands.cell, given, last)())
        # cuDNN's search, which the sweep turns on, would try every algorithm of fp64 for seconds each.
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, allow_tf32=False):
            self._exact, self._magnitude = (
                self._tiled(dense_call(operands.cell, each, False)()) for each in (wide, absolute)
            )

    def _tiled(self, found: Tensor) -> Tensor:
        """Returns [pixels, channels]; for dw the stored blocks of every tap one under another."""
        if self._operands.cell.direction == "dw":
            return product.blocks_of(found, self._operands.index).flatten(0, 2)
        return found.movedim(1, -1).reshape(-1, found.shape[1])

    def check(self, actual: Tensor) -> TileCheck:
        """Checks each output tile by the tolerance of sparseloom.testing; a NaN counts as infinitely
        wrong."""
        bm, bn = self._operands.cell.block
        tile = {"forward": (TILE_TOKENS, bm), "dx": (TILE_TOKENS, bn), "dw": (bm, bn)}
        shaped = actual.reshape(-1, actual.shape[-1])
        references, side = (self._dense, self._exact, self._magnitude), tile[self._operands.cell.direction]
        return check_tiles(shaped, *references, side, TRUNCATION if self._operands.tf32 else 2.0)


class ConvBench:
    """Holds the operands of one problem on the CPU and its exact result, as bench.measure.Bench does."""

    def __init__(self, problem: ConvProblem) -> None:
        self._operands = operands = ConvOperands(problem, torch.device("cpu"), None)
        self.plan, self.stored = operands.plan(), operands.elements / (problem.k * problem.n)
        last = fastest_layout(problem)
        (self._dense,) = operands.dense_calls(last)[DENSE]
        self._reference = ConvReference(operands, last)

    def sparse(self, kernel: str) -> Tensor:
        return self._operands.calls(kernel)[0]()

    def dense(self) -> Tensor:
        return self._dense()

    def check(self, kernel: str) -> TileCheck:
        """Checks the kernel's result against fp64, tile by tile."""
        return self._reference.check(self.sparse(kernel))


def fastest(calls: Sequence[Call]) -> int:
    """Returns which call is the fastest of TRIALS runs of each; what takes twice as long as another does runs
    once."""

    def seconds(call: Call) -> float:
        start = time.perf_counter()
        call()
        return time.perf_counter() - start

    best = [seconds(call) for call in calls]
    near = [at for at, took in enumerate(best) if took <= 2 * min(best)]
    for at in near * (TRIALS - 1):
        best[at] = min(best[at], seconds(calls[at]))
    return best.index(min(best))


def constants(problem: ConvProblem) -> Set:
    """Returns operands on the CPU whose values are all the same, which are made faster than random ones."""
    window, kind = problem.window, DTYPES[problem.dtype]
    spaces = problem.extents, window.out(problem.extents)
    x, dy = (
        torch.full((problem.m, *space, channels), 0.5, dtype=kind)
        for space, channels in zip(spaces, (problem.k, problem.n), strict=True)
    )
    return Set(x, dy, torch.full((problem.n, problem.k, *window.kernel), 0.5, dtype=kind))


def fastest_layout(problem: ConvProblem) -> bool:
    """Returns which of LAYOUTS torch's convolution is the faster in, on the CPU."""
    return _fastest_layout(replace(problem, drawn=problem.m))


@lru_cache(maxsize=2)  # of one image, which a fit asks for at some extents, and of the problem
def _fastest_layout(problem: ConvProblem) -> bool:
    own = constants(problem)
    with torch.no_grad():
        return LAYOUTS[fastest([dense_call(problem, own, last) for last in LAYOUTS])]


def _others(own: Set, l2_bytes: int | None) -> int:
    return 0 if l2_bytes is None else sets_needed(sum(each.nbytes for each in own), l2_bytes) - 1


def dense_call(problem: ConvProblem, own: Set, last: bool) -> Call:
    """Returns a call of torch's convolution in one memory layout. One axis of space is a second one of
    extent 1, since torch copies what has channels last of one axis."""
    flat = len(problem.extents) == 1
    axis = Window((1,), (1,), (0,), (1,)) if flat else Window((), (), (), ())
    kernel, *how = ([*one, *each] for one, each in zip(axis, problem.window, strict=True))
    own_format = torch.channels_last if len(kernel) == 2 else torch.channels_last_3d
    layout = own_format if last else torch.contiguous_format
    x, dy = (
        (each.unsqueeze(1) if flat else each).movedim(-1, 1).contiguous(memory_format=layout)
        for each in (own.x, own.dy)
    )
    weight = own.weight.reshape(*own.weight.shape[:2], *kernel).contiguous(memory_format=layout)
    convolution: Any = (torch.conv2d, torch.conv3d)[len(kernel) - 2]
    if problem.direction == "forward":
        return partial(convolution, x, weight, None, *how)
    wanted = [problem.direction == "dx", problem.direction == "dw", False]
    rest = None, *how, False, [0] * len(kernel), 1, wanted
    backward = torch.ops.aten.convolution_backward
    return lambda: backward(dy, x, weight, *rest)[wanted.index(True)]
