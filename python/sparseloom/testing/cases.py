"""THE case list: every op x direction x dtype x block x device that the library advertises.

The shapes are those on which sparse kernels break. What is not in this list is not supported; what is in it
is checked against fp64 for every kernel that does not refuse it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import ops
from .. import pattern as patterns
from ..errors import Error
from ..nn.held.state import build_index, zero_padding_
from ..pattern import Pattern

BLOCK_SIDES = (8, 16, 32, 64, 128)
DEVICES = ("cpu", "cuda")
#: The dtypes of each device; CUDA refuses fp64 with an error that names it.
DTYPES = {
    "cpu": (torch.float32, torch.bfloat16, torch.float16, torch.float64),
    "cuda": (torch.float32, torch.bfloat16, torch.float16),
}
#: Token counts on the CPU: around the kernels' panel widths, and the two that torch users meet first. On
#: CUDA: around the fragments of 8 and 16, the decode kernels' last count (64) and the tiles of 128.
TOKEN_COUNTS = {
    "cpu": (0, 1, 7, 16, 31, 48, 65, 130),
    "cuda": (0, 1, 2, 5, 8, 9, 16, 17, 33, 63, 64, 65, 129, 257),
}


@dataclass(frozen=True)
class Case:
    """One product to check. ``pattern`` is a kind that make_pattern knows; ``name`` says why the case is in
    the list."""

    name: str
    direction: str
    dtype: torch.dtype
    block: tuple[int, int]
    m: int
    k: int  # in features
    n: int  # out features
    pattern: str = "skewed"
    density: float = 0.5
    bias: bool = False
    activation: str | None = None
    op: str = "linear"
    device: str = "cpu"
    # float32 on CUDA with torch's TF32 switch on; the operands are TF32 numbers, so that products are exact
    tf32: bool = False

    def __str__(self) -> str:
        extra = ("-bias" if self.bias else "") + (f"-{self.activation}" if self.activation else "")
        size, suffix = f"{self.m}x{self.k}x{self.n}", "" if self.device == "cpu" else f"-{self.device}"
        dtype = "tf32" if self.tf32 else ops.DTYPES[self.dtype]
        return f"{self.name}-{self.direction}-{dtype}-{self.block[0]}x{self.block[1]}-{size}{extra}{suffix}"

    def make_pattern(self, seed: int = 0) -> Pattern:
        """Returns the case's pattern of an [n, k] weight. Raises Error on an unknown kind."""
        arguments = (self.n, self.k, self.block)
        if self.pattern in ("random", "balanced", "biregular"):
            return getattr(patterns, self.pattern)(*arguments, self.density, seed)
        if self.pattern == "full":
            return patterns.full(*arguments)
        grid = torch.zeros(
            -(-self.n // self.block[0]), -(-self.k // self.block[1]), dtype=torch.bool, device="cpu"
        )
        if self.pattern == "none":
            return Pattern(*arguments, grid)
        if self.pattern == "corner":  # one block, which is ragged in both directions
            grid[-1:, -1:] = True
            return Pattern(*arguments, grid)
        # a full row, an empty row and an empty column, random ones otherwise; the ragged corner is present
        if self.pattern == "skewed":
            grid = patterns.random(*arguments, self.density, seed).mask
            grid[:1], grid[1:2], grid[:, 1:2], grid[-1:, -1:] = True, False, False, True
            return Pattern(*arguments, grid)
        raise Error("case", "a known kind of pattern", repr(self.pattern), "see Case.make_pattern")

    def inputs(self, seed: int = 0, integers: bool = False) -> Inputs:
        """Draws random operands of the case, rounded to its dtype.

        They are normal, or integers in [-2, 2] whose products are exact everywhere. They are drawn on the
        CPU, so that every device gets the same bits.
        """
        generator = torch.Generator().manual_seed(seed)
        pattern = self.make_pattern(seed)

        def draw(*shape: int) -> Tensor:
            if integers:
                return torch.randint(-2, 3, shape, generator=generator, device="cpu").to(self.dtype)
            normal = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu").to(self.dtype)
            return round_to_tf32(normal) if self.tf32 else normal

        values = draw(pattern.blocks, *self.block)
        zero_padding_(values, pattern)
        bias = draw(self.n) if self.bias else None
        inputs = Inputs(
            draw(self.m, self.k), draw(self.m, self.n), values, bias, pattern, build_index(pattern)
        )
        return inputs if self.device == "cpu" else inputs.to(self.device)


@dataclass(frozen=True)
class Inputs:
    """Operands of one case: x [m, k], dy [m, n], values [blocks, bm, bn], bias [n] or None, and the index of
    the blocks."""

    x: Tensor
    dy: Tensor
    values: Tensor
    bias: Tensor | None
    pattern: Pattern
    index: ops.Index

    def weight(self) -> Tensor:
        """Returns the dense weight [n, k]."""
        index = self.index
        return ops.call("unpack", self.values, index.crow, index.col, index.rows, index.cols)

    def to(self, device: str) -> Inputs:
        """Returns the same operands on another device."""
        bias = None if self.bias is None else self.bias.to(device)
        x, dy, values = (operand.to(device) for operand in (self.x, self.dy, self.values))
        return Inputs(x, dy, values, bias, self.pattern, self.index.to(device))


def round_to_tf32(x: Tensor) -> Tensor:
    """Rounds float32 to the nearest value of 10 explicit mantissa bits, ties to even."""
    bits = x.view(torch.int32)
    return ((bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF).view(torch.float32)


@contextmanager
def tf32_switch(on: bool) -> Iterator[None]:
    """Sets torch's own switch for TF32 in float32 products on CUDA, and restores it afterwards."""
    matmul = torch.backends.cuda.matmul
    allowed_before = matmul.allow_tf32
    matmul.allow_tf32 = on
    try:
        yield
    finally:
        matmul.allow_tf32 = allowed_before


def _numerics(case: Case) -> AbstractContextManager[None]:
    """Sets torch's TF32 switch only where it has an effect: the benchmarks time what runs inside."""
    reads = case.dtype == torch.float32 and case.device != "cpu"
    return tf32_switch(case.tf32) if reads else nullcontext()


def cases(device: str = "cpu") -> Iterator[Case]:
    """Yields the cases of one of DEVICES.

    They are every dtype, block and direction on a ragged shape, the edge shapes at some blocks, and the fused
    epilogues. On CUDA, float32 comes twice: with TF32 and without.
    """
    numerics = [(dtype, False) for dtype in DTYPES[device]] + [(torch.float32, True)] * (device == "cuda")
    for dtype, tf32 in numerics:
        options = {"dtype": dtype, "tf32": tf32, "device": device}
        for bm in BLOCK_SIDES:
            for bn in BLOCK_SIDES:
                for direction in ops.DIRECTIONS:
                    k, n = 3 * bn + bn // 2 + 1, 2 * bm + bm // 2 + 3
                    bias = direction == "forward"
                    yield Case("ragged", direction, block=(bm, bn), m=37, k=k, n=n, bias=bias, **options)  # type: ignore[arg-type]
        for block in ((32, 32), (8, 64), (64, 16)):
            for direction in ops.DIRECTIONS:
                yield from _edges(direction, block, options)
        for activation in ops.ACTIVATIONS:
            for bias in (False, True):
                fused: dict[str, Any] = options | {"bias": bias, "activation": activation}
                yield Case("epilogue", "forward", block=(32, 32), m=33, k=100, n=70, **fused)


def _edges(direction: str, block: tuple[int, int], options: dict[str, Any]) -> Iterator[Case]:
    bm, bn = block
    k, n = 4 * bn, 3 * bm

    def case(name: str, m: int, k: int, n: int, pattern: str, density: float = 0.5) -> Case:
        return Case(name, direction, block=block, m=m, k=k, n=n, pattern=pattern, density=density, **options)

    yield case("one_block", 5, bn, bm, "full")
    yield case("one_ragged_block", 5, bn - 3, bm - 5, "full")
    yield case("corner", 21, k + 1, n + 1, "corner")
    yield case("full", 21, k, n, "full")
    yield case("no_blocks", 21, k, n, "none")
    yield case("no_inputs", 5, 0, n, "none")
    yield case("no_outputs", 5, k, 0, "none")
    # These sums are long enough to be cut into pieces: a 1 MB L2 holds some 60 tokens of 4000 fp32 inputs. dw
    # on CUDA cuts 2003 tokens too, because its few blocks alone would not occupy the GPU.
    deep = {"forward": (201, 4000 + bn // 2, n), "dx": (201, k, 4000 + bm // 2), "dw": (2003, k, n)}[
        direction
    ]
    yield case("deep", *deep, "random", 0.3)
    for m in TOKEN_COUNTS[options["device"]]:
        yield case("tokens", m, k, n, "balanced")


def kernels_for(case: Case, inputs: Inputs | None = None) -> list[str]:
    """Returns the kernels of this build that do not refuse the case, in registry order."""
    index = build_index(inputs.pattern if inputs else case.make_pattern())
    with _numerics(case):
        plan = ops.plan(
            index, case.direction, case.dtype, case.m, case.bias, case.activation, device=case.device
        )
    return [candidate["kernel"] for candidate in plan["candidates"] if not candidate["refusal"]]


def sparse_product(case: Case, inputs: Inputs, kernel: str | None = None) -> Tensor:
    """Computes the case by one kernel, or by the plan's choice: y [m, n], dx [m, k] or dvalues [blocks, bm,
    bn]."""
    with _numerics(case):
        if case.direction == "forward":
            return ops.linear(
                inputs.x, inputs.values, inputs.index, inputs.bias, case.activation, kernel=kernel
            )
        if case.direction == "dx":
            return ops.linear_dx(inputs.dy, inputs.values, inputs.index, kernel=kernel)
        return ops.linear_dw(inputs.dy, inputs.x, inputs.index, kernel=kernel)


def dense_product(case: Case, x: Tensor, dy: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Computes torch's dense product of the same operands and dtype: y [m, n], dx [m, k] or the whole dW [n,
    k]."""
    with _numerics(case):
        if case.direction == "forward":
            return ops.activate(F.linear(x, weight, bias), case.activation)
        if case.direction == "dx":
            return dy @ weight
        return dy.t() @ x


def exact_product(case: Case, inputs: Inputs) -> Tensor:
    """Computes the dense product in fp64 of the operands as rounded to the case's dtype."""
    bias = None if inputs.bias is None else inputs.bias.double()
    return dense_product(case, inputs.x.double(), inputs.dy.double(), inputs.weight().double(), bias)
