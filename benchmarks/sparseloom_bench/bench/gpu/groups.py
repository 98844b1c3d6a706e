"""Lists the suite's cells by group, so that a part can be run alone: `--group dw`. Tests read this list
too."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..cells import DIRECTIONS, Cell
from ..skewed import KINDS, STRUCTURED, TRAINED
from .goals import DECODE, DECODE_SMALL, DENSITIES, SPEEDUPS, SQUARE, VIT_DOWN, VIT_UP, WIDE, Shape

#: Shapes that peers are compared on, and the block sides that torch BSR and cuSPARSE both take.
SMALL_BATCH: Shape = (256, 4096, 4096)
PEER_SHAPES = (SQUARE, WIDE, DECODE, VIT_UP, VIT_DOWN, SMALL_BATCH, DECODE_SMALL)
PEER_BLOCKS = (16, 32, 64, 128)
PEER_DENSITIES = (0.1, 0.2, 0.5)
#: Layers of BERT-base (32 texts of 128 tokens) and ViT-B (64 images), and one of 2048 features. Their
#: products take 5 to 40 us, so that what a kernel does before and after its main loop decides.
LAYERS: tuple[Shape, ...] = (
    (4096, 768, 768),
    (4096, 768, 3072),
    (4096, 3072, 768),
    (12608, 768, 768),
    (2048, 2048, 2048),
)
LARGE = (SQUARE, WIDE, VIT_UP, VIT_DOWN)
#: In and out features of an 8B model's MLP, and a product whose sizes no tile divides.
MLP_UP = (4096, 14336)
RAGGED: Shape = (1000, 3000, 5000)


def cells(
    direction: str, dtype: str, shape: Shape, blocks: Iterable[int], densities: Iterable[float] = DENSITIES
) -> list[Cell]:
    """Returns cells of square blocks, every block with every density; each block row stores the floor or the
    ceiling of its share."""
    return [Cell(direction, dtype, *shape, (side, side), density) for side in blocks for density in densities]


def forward() -> list[Cell]:
    return [
        cell
        for shape in LARGE
        for cell in cells("forward", "bf16", shape, SPEEDUPS["forward", "bf16", shape])
    ]


def dx() -> list[Cell]:
    return [
        cell for shape in LARGE for cell in cells("dx", "bf16", shape, SPEEDUPS["forward", "bf16", shape])
    ]


def dw() -> list[Cell]:
    return cells("dw", "bf16", SQUARE, SPEEDUPS["dw", "bf16", SQUARE])


def decode() -> list[Cell]:
    return [
        cell
        for shape in (DECODE, DECODE_SMALL)
        for cell in cells("forward", "bf16", shape, reversed(PEER_BLOCKS))
    ]


def fp8() -> list[Cell]:
    promoted = [
        Cell("forward", "fp8_promoted", *SQUARE, (side, side), density)
        for side in (128, 64)
        for density in (0.1, 0.5)
    ]
    return cells("forward", "fp8", SQUARE, SPEEDUPS["forward", "fp8", SQUARE]) + promoted


def tf32() -> list[Cell]:
    return [
        cell
        for direction in DIRECTIONS
        for cell in cells(direction, "tf32", SQUARE, SPEEDUPS["forward", "tf32", SQUARE])
    ]


def fp32() -> list[Cell]:
    return cells("forward", "f32", SQUARE, SPEEDUPS["forward", "f32", SQUARE])


def patterns() -> list[Cell]:
    """Returns skewed and structured patterns, each beside the balanced pattern that it is compared with."""
    return [
        Cell("forward", "bf16", *SQUARE, (64, 64), density, kind)
        for density in (0.1, 0.2)
        for kind in ("balanced", *KINDS, *STRUCTURED)
    ]


def masks() -> list[Cell]:
    """Returns problems on which users' masks, batches and shapes lost to dense: those of pruning beside
    balanced ones, batches between decode and training, features that fill the GPU badly."""

    def of(
        ways: str, shape: Shape, block: int, densities: tuple[float, ...], kinds: tuple[str, ...] = (TRAINED,)
    ) -> list[Cell]:
        return [
            Cell(way, "bf16", *shape, (block, block), density, kind)
            for way in ways.split()
            for density in densities
            for kind in kinds
        ]

    both, many = ("balanced", TRAINED), (0.1, 0.25, 0.5)
    found = of("forward", (64, *MLP_UP), 64, (0.1,), both)
    found += [
        cell for m in (16, 33, 64) for block in (64, 32) for cell in of("forward", (m, *MLP_UP), block, many)
    ]
    found += [cell for m in (65, 96, 128, 192) for cell in of("forward", (m, *MLP_UP), 32, (0.25,), both)]
    found += [cell for m in (128, 512) for cell in of("forward", (m, *MLP_UP), 16, many)]
    for block in (64, 32):
        found += of("forward dx dw", RAGGED, block, (0.1, 0.25, 0.5), ("balanced",))
    found += [cell for block in (64, 32) for cell in of("dx", (2048, 5120, 13824), block, many)]
    found += of("dw", (4096, 14336, 4096), 32, (0.25,)) + of("dw", SQUARE, 16, (0.2,), ("balanced",))
    return list(dict.fromkeys(found))


def layers() -> list[Cell]:
    """Returns layers that have no targets of their own; they test the plan's choice."""
    return [
        cell
        for way in DIRECTIONS
        for shape in LAYERS
        for cell in cells(way, "bf16", shape, (64, 32), (0.1, 0.25))
    ]


def others() -> list[Cell]:
    """Returns the cells where peers are compared beyond those above, and dtypes and block shapes that are
    promised to be right but not fast."""
    found = [
        cell for shape in PEER_SHAPES for cell in cells("forward", "bf16", shape, PEER_BLOCKS, PEER_DENSITIES)
    ]
    found += cells("forward", "bf16", SQUARE, PEER_BLOCKS, (0.3,))
    found += cells("forward", "f16", SQUARE, PEER_BLOCKS, (0.1, 0.5))
    found += cells("forward", "f32", SQUARE, (16,), (0.1, 0.5)) + cells(
        "forward", "tf32", SQUARE, (16, 32), (0.1, 0.5)
    )
    return found + [
        Cell(direction, "bf16", *SQUARE, block, 0.1)
        for direction in DIRECTIONS
        for block in ((8, 8), (16, 64))
    ]


GROUPS: dict[str, Callable[[], list[Cell]]] = {
    "forward": forward,
    "dx": dx,
    "dw": dw,
    "decode": decode,
    "patterns": patterns,
    "masks": masks,
    "fp8": fp8,
    "tf32": tf32,
    "fp32": fp32,
    "layers": layers,
    "others": others,
}


def gpu_cells(groups: Iterable[str] = GROUPS) -> list[Cell]:
    """Returns the cells of these groups; a cell of several groups appears once, where it comes first."""
    return list(dict.fromkeys(cell for name in groups for cell in GROUPS[name]()))


def compared(cell: Cell) -> bool:
    """Returns whether peers take part in the cell."""
    known = (
        (cell.m, cell.k, cell.n) in PEER_SHAPES
        and cell.block[0] == cell.block[1]
        and cell.block[0] in PEER_BLOCKS
    )
    wanted = cell.density in PEER_DENSITIES or (cell.m, cell.k, cell.n) == SQUARE
    return known and wanted and (cell.direction, cell.dtype, cell.pattern) == ("forward", "bf16", "balanced")
