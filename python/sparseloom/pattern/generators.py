"""The generators of patterns; their names are those of ``pattern::generate`` in C++."""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor

from .. import ops
from .._arguments import named_arguments
from .._checks import share, whole
from ..errors import Error
from .pattern import Block, Pattern, block_shape, require_sides

Seed: TypeAlias = int | torch.Generator | None


def draw_seed(seed: Seed) -> int:
    """Returns an int as it is; a generator, or torch's default one for None, gives its next 62 bits."""
    if seed is not None and not isinstance(seed, torch.Generator):
        return whole("pattern", "seed", seed, None)
    return int(torch.randint(2**62, (), dtype=torch.int64, device="cpu", generator=seed))


def truth(op: str, name: str, value: object) -> bool:
    """Returns a bool as it is. Raises Error for anything else: a number here means a forgotten argument."""
    if not isinstance(value, bool):
        raise Error(op, f"{name} to be True or False", repr(value), f"pass {name}=True")
    return value


def generated(name: str, rows: int, cols: int, block: Block, *numbers: float, seed: int = 0) -> Pattern:
    """Returns the pattern of a generator; its name and numbers are as ``pattern::generate`` in C++ takes
    them."""
    shape = block_shape(f"pattern_{name}", block)
    bits = ops.call("generate_pattern", name, rows, cols, *shape, [float(n) for n in numbers], seed)
    return Pattern(rows, cols, shape, bits)


@named_arguments
def random(rows: int, cols: int, block: Block, density: float, seed: Seed = None) -> Pattern:
    """Draws round(density * grid) blocks uniformly without replacement; grid is the number of blocks in the
    weight. The same seed gives the same pattern on every machine."""
    return generated("random", rows, cols, block, share("pattern", density), seed=draw_seed(seed))


@named_arguments
def balanced(rows: int, cols: int, block: Block, density: float, seed: Seed = None) -> Pattern:
    """Draws exactly as many blocks as random; every block row gets the floor or ceiling of its share."""
    return generated("balanced", rows, cols, block, share("pattern", density), seed=draw_seed(seed))


@named_arguments
def biregular(rows: int, cols: int, block: Block, density: float, seed: Seed = None) -> Pattern:
    """Draws exactly as many blocks as random; every block row and every block column gets the floor or
    ceiling of its share."""
    return generated("biregular", rows, cols, block, share("pattern", density), seed=draw_seed(seed))


@named_arguments
def banded(rows: int, cols: int, block: Block, bandwidth: int) -> Pattern:
    """Takes the blocks whose centre lies within ``bandwidth`` blocks of the stretched diagonal; 0 gives the
    diagonal alone."""
    return generated("banded", rows, cols, block, whole("pattern", "bandwidth", bandwidth))


@named_arguments
def block_diagonal(rows: int, cols: int, block: Block, groups: int, shuffle: bool = False) -> Pattern:
    """Takes ``groups`` dense boxes along the diagonal, as even as the grid allows; ``groups`` is 1 to the
    shorter side of the grid.

    With ``shuffle`` each box takes its columns from all groups in turn. That is the weight of a layer behind
    a channel shuffle (ShuffleNet, Zhang et al. 2018): two layers of g groups, the second with shuffle, join
    every input to every output where a group has at least g block columns.
    """
    numbers = whole("pattern", "groups", groups), truth("pattern_block_diagonal", "shuffle", shuffle)
    return generated("block_diagonal", rows, cols, block, *numbers)


@named_arguments
def full(rows: int, cols: int, block: Block) -> Pattern:
    """Takes every block."""
    bm, bn = block_shape("pattern_full", block)
    rows, cols = whole("pattern_full", "rows", rows), whole("pattern_full", "cols", cols)
    require_sides("pattern_full", bm, bn)
    return Pattern(
        rows, cols, (bm, bn), torch.ones(-(-rows // bm), -(-cols // bn), dtype=torch.bool, device="cpu")
    )


@named_arguments
def from_mask(rows: int, cols: int, block: Block, mask: Tensor) -> Pattern:
    """Takes the blocks where ``mask`` (bool [block rows, block columns]) is true."""
    return Pattern(rows, cols, block, mask)
