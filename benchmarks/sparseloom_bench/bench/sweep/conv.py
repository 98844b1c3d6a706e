"""The sweep's problems of block-sparse convolutions (`bench sweep --family bsr_conv`)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch

from sparseloom.errors import Error
from sparseloom.nn.held.state import build_index
from sparseloom.ops.conv import plans
from sparseloom.ops.conv.product import Window

from ..cells import DIRECTIONS, DTYPES
from ..timing import Call
from .conv_operands import LENT, ConvBench, ConvOperands, ConvReference, constants, dense_call, fastest_layout
from .convolutions import CONVOLUTIONS
from .masks import MASKS
from .problems import DENSITIES, RECTANGULAR, RECTANGULAR_SHARE, SQUARE, SWEPT_DTYPES, Problem

T = TypeVar("T")
IMAGES = (1, 64)
#: The demo's masks are of its linear layers.
CONV_MASKS = tuple(mask for mask in MASKS if mask != "demo")
POINT = Window((), (), (), ())


#: Of the last stages of classifiers.
LEAST_EXTENT = 7


def _halved(extent: int) -> int:
    return extent // 2 if extent >= 2 * LEAST_EXTENT else extent


@dataclass(frozen=True)
class ConvProblem(Problem):
    """A problem of a convolution of `m` images of `extents`, from k to n channels."""

    extents: tuple[int, ...] = ()
    window: Window = POINT

    def __str__(self) -> str:
        return (
            f"{super().__str__()}-{'x'.join(map(str, self.extents))}-{'x'.join(map(str, self.window.kernel))}"
        )

    def plan(self, device: str) -> dict[str, Any]:
        """Returns the plan of the layer on a device. LENT, torch's convolution, is a row; where no row runs
        the layer calls torch's, which nobody predicts."""
        number = torch.device(device).index or 0 if torch.device(device).type == "cuda" else -1
        index = build_index(self.case().make_pattern())
        how = self.direction, DTYPES[self.dtype], self.m, self.extents, self.window, index, number
        try:
            return plans.plan(*how)
        except Error as none_runs:
            lent: dict[str, Any] = {"kernel": LENT, "refusal": "", "predicted_us": None}
            return {"kernel": LENT, "candidates": [lent], "text": str(none_runs), "dense_copy_us": None}

    def bench(self) -> ConvBench:
        return ConvBench(self)

    def operands(self, device: torch.device, l2_bytes: int) -> ConvOperands:  # type: ignore[override]
        return ConvOperands(self, device, l2_bytes)

    def reference(self, operands: ConvOperands) -> ConvReference:  # type: ignore[override]
        return ConvReference(operands)

    def sizes(self) -> list[Problem]:
        """Returns the problem with its images halved, down to one, and then the extents of that, none below
        LEAST_EXTENT; the smallest first."""
        found = super().sizes()
        while (extents := tuple(map(_halved, found[0].extents))) != found[0].extents:  # type: ignore[attr-defined]
            found.insert(0, replace(found[0], extents=extents))  # type: ignore[call-arg]
        return found

    def dense_of_constants(self) -> Call:
        return dense_call(self, constants(self), fastest_layout(replace(self, m=1)))

    def fields(self) -> dict[str, Any]:
        window = {name: list(each) for name, each in self.window._asdict().items()}
        return super().fields() | {"extents": list(self.extents), "window": window}

    @classmethod
    def more(cls, record: dict[str, Any]) -> dict[str, Any]:
        window = Window(**{name: tuple(each) for name, each in record["window"].items()})
        return {"extents": tuple(record["extents"]), "window": window}


def require_kernel(name: str, device: str) -> None:
    """Raises Error where no kernel of convolutions on the device has this name."""
    how: Any = {"extents": (8, 8), "window": Window((3, 3), (1, 1), (1, 1), (1, 1))}
    like = ConvProblem("forward", "bf16", 1, 64, 64, (64, 64), 1.0, **how)
    known = [each["kernel"] for each in like.plan(device)["candidates"]]
    if name not in known:
        raise Error("bench sweep", f"--kernel {' or '.join(known)}", repr(name), "name one of them")


def draw(seed: int, index: int) -> ConvProblem:
    """Returns problem `index` of the seed, the same on every machine: masks, dtypes, blocks and densities as
    linear layers have them, but for blocks that are larger than the channels."""
    rng = random.Random(f"bsr_conv/{seed}/{index}")

    def pick(choices: Sequence[T]) -> T:
        return choices[int(rng.random() * len(choices))]

    def log_uniform(least: float, most: float) -> float:
        return float(least * (most / least) ** rng.random())

    direction, mask, dtype, layer = pick(DIRECTIONS), pick(CONV_MASKS), pick(SWEPT_DTYPES), pick(CONVOLUTIONS)
    images = int(log_uniform(IMAGES[0], IMAGES[1] + 1))
    squares, rectangles = (
        [each for each in sides if each[0] <= layer.n and each[1] <= layer.k]
        for sides in (SQUARE, RECTANGULAR)
    )
    rectangular, square, other = rng.random() < RECTANGULAR_SHARE, pick(squares), pick(rectangles)
    density, mask_seed = log_uniform(*DENSITIES), int(rng.random() * 2**31)
    block = other if rectangular else square
    what = direction, dtype, images, layer.k, layer.n, block, round(density, 5), mask
    more = index, images, mask_seed, layer.models, layer.extents, layer.window
    return ConvProblem(*what, False, *more)
