"""Lists every figure that the GPU suite is held to: speed-ups over dense, and the other limits.

Speed-ups are over the dense product of the same dtype and shape, in bursts: SPEEDUPS[direction, dtype,
(tokens, in, out)][block side] has one figure per density of DENSITIES.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..cells import Cell

DENSITIES = (0.05, 0.1, 0.2, 0.5, 0.8)
Shape = tuple[int, int, int]  # tokens, in features, out features
SQUARE: Shape = (8192, 4096, 4096)
WIDE: Shape = (8192, 4096, 16384)
VIT_UP: Shape = (50432, 768, 3072)  # ViT-B's MLP at 256 images
VIT_DOWN: Shape = (50432, 3072, 768)
DECODE: Shape = (32, 12288, 12288)
DECODE_SMALL: Shape = (16, 4096, 16384)

Row = tuple[float, float, float, float, float]
_TF32_DW: Row = (4, 3.5, 2.5, 1.3, 1.0)
_FP32: Row = (20, 14, 9, 4.2, 2.7)
_DECODE: Row = (11, 7.5, 4.2, 1.9, 1.22)
_DECODE_SMALL: Row = (7, 5.5, 3.5, 1.7, 1.12)
SPEEDUPS: dict[tuple[str, str, Shape], dict[int, Row]] = {
    ("forward", "bf16", SQUARE): {
        128: (9.2, 7.4, 4.4, 1.93, 1.20),
        64: (8.2, 6.1, 3.7, 1.72, 1.14),
        32: (5.5, 3.5, 2.4, 1.5, 1.05),
        16: (3.0, 2.0, 1.5, 1.0, 1.0),
        8: (1.6, 1.1, 1.0, 1.0, 1.0),
    },
    ("forward", "bf16", WIDE): {128: (12, 7.8, 4.5, 1.93, 1.2), 64: (9.5, 6.2, 3.8, 1.73, 1.14)},
    ("forward", "bf16", VIT_UP): {64: (2.8, 2.7, 2.3, 1.45, 1.05)},
    ("forward", "bf16", VIT_DOWN): {64: (4.0, 3.3, 2.6, 1.5, 1.05)},
    ("dw", "bf16", SQUARE): {
        128: (6.5, 6.0, 4.2, 1.75, 1.1),
        64: (6.0, 4.6, 2.7, 1.35, 1.0),
        32: (4.5, 2.8, 1.8, 1.05, 1.0),
        16: (2.5, 1.7, 1.2, 1.0, 1.0),
    },
    ("forward", "bf16", DECODE): {128: _DECODE, 64: _DECODE, 32: _DECODE, 16: (10, 6.8, 3.9, 1.75, 1.1)},
    ("forward", "bf16", DECODE_SMALL): {128: _DECODE_SMALL, 64: _DECODE_SMALL, 32: _DECODE_SMALL},
    ("forward", "fp8", SQUARE): {128: (5.8, 5.2, 3.6, 1.65, 1.05), 64: (5, 4.2, 2.8, 1.4, 1.0)},
    ("forward", "tf32", SQUARE): {128: (8, 6.3, 3.8, 1.75, 1.1), 64: (7.2, 5.3, 3.2, 1.5, 1.05)},
    ("dw", "tf32", SQUARE): {128: _TF32_DW, 64: _TF32_DW},
    ("forward", "f32", SQUARE): {128: _FP32, 64: _FP32, 32: (17, 11, 6.5, 2.8, 1.8)},
}
#: dx must reach this share of the speed-up that the forward cell of the same size reached in the same run.
DX_OF_FORWARD = {"bf16": 0.93, "tf32": 0.85}
#: "As fast as dense" (a figure of 1.0) passes from here on, which leaves room for the overhead of a call
#: beside the product. dw gets more room: its dense kernel writes the whole dW and then gathers the blocks.
EVEN, EVEN_DW = 0.97, 0.95
#: Under load without a pause, this share of the burst's figure passes: the power cap lowers the clock for
#: both sides.
SUSTAINED = 0.92

#: The most time of a skewed pattern over a balanced one's, per stored element and each against the dense
#: product beside it.
OVER_BALANCED = 1.15
#: At least CANDIDATES candidates must be timed where so many can run. The plan's choice must take at most
#: WITHIN times the fastest's time in at least IN_SHARE of the cells.
CANDIDATES, WITHIN, IN_SHARE = 4, 1.05, 0.90
#: fp32: the most that our errors may be over those of cuBLAS fp32, on the same matrix. The first limits the
#: rms of a tile (the worst tile may have its sampling noise more), the second the largest error.
RMS_OVER_DENSE, MAX_OVER_DENSE = 1.0, 2.0
#: The most microseconds that a layer's training step may take beyond the sum of its three products; and the
#: least speed-up of the GPT MLP's forward and backward over dense, both compiled.
STEP_BEYOND_US, MLP_SPEEDUP = 75.0, 3.0
#: The most microseconds for a changed topology, 4096 x 4096 in blocks of 32: index and plan on the host;
#: tables by the device planner.
HOST_PLAN_US, DEVICE_PLAN_US = 1000.0, 30.0


@dataclass(frozen=True)
class Goal:
    """The target of one cell.

    `figure` is the table's speed-up or, with `of_forward`, the share of the forward cell's speed-up. `least`
    is the smallest value that passes.
    """

    figure: float
    least: float
    of_forward: bool = False

    def record(self) -> dict[str, float | bool]:
        return {
            "figure": self.figure,
            "least": self.least,
            "of_forward": self.of_forward,
            "sustained": SUSTAINED,
        }


def goal(cell: Cell) -> Goal | None:
    """Returns the goal of the cell; None for a cell that is measured without a target."""
    if cell.pattern != "balanced" or cell.density not in DENSITIES or cell.block[0] != cell.block[1]:
        return None
    shape, side = (cell.m, cell.k, cell.n), cell.block[0]
    if cell.direction == "dx":
        share = DX_OF_FORWARD.get(cell.dtype)
        promised = side in SPEEDUPS.get(("forward", cell.dtype, shape), {})
        return Goal(share, share, of_forward=True) if share and promised else None
    row = SPEEDUPS.get((cell.direction, cell.dtype, shape), {}).get(side)
    if row is None:
        return None
    figure = row[DENSITIES.index(cell.density)]
    even = EVEN_DW if cell.direction == "dw" else EVEN
    return Goal(figure, even if figure == 1.0 else figure)
