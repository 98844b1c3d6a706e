"""The arms of `sparseloom experiment lm`: what is sparse, by which pattern and method, and how large."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

from sparseloom import BlockSparse
from sparseloom import pattern as patterns
from sparseloom.pattern import Pattern
from sparseloom.sparsify import Method, gradients, methods, schedules

from .lm_decoder import LAYERS, Shape
from .moves import noted

#: The dense arms: 25.8 and 56.8 million parameters, and one for a look.
PRESETS = {
    "small": Shape(512, 8, 8, 1408, 512),
    "base": Shape(768, 8, 12, 2048, 512),
    "tiny": Shape(64, 1, 2, 64, 32),
}
#: Steps over which the rate of a new block rises (SMET), and the share of blocks that RigL and SET move.
WARM_UP, SHARE = 20, 0.1
#: Changes before which a new block is not dropped, with a grace.
GRACE = 5


class Arm(NamedTuple):
    """One way to spend the parameters, or the time, of the dense arm. ``width`` and ``hidden`` are multiples
    of the dense arm's; with ``fitted``, ``fits`` says which of them is made so that a step takes dense's
    time."""

    text: str
    mlp: float = 1.0  # densities
    attention: float = 1.0
    width: float = 1.0
    hidden: float = 1.0
    depth: int = 1
    pattern: str = "balanced"
    method: str | None = None
    fits: str | None = None
    power: float = 0.0  # rates are divided by density**power
    mlp_rate: float = 1.0  # times the rate of all else
    own_steps: bool = True  # of each block, in AdamW


_WIDE = Arm("MLP 4 times wider, .25", mlp=0.25, hidden=4)
ARMS = {
    "dense": Arm("dense"),
    # as many parameters as dense
    "mlp25": _WIDE,
    "mlp125": Arm("MLP 8 times wider, .125", mlp=0.125, hidden=8),
    "all25": Arm("MLP and attention twice as wide, .25", mlp=0.25, attention=0.25, width=2, hidden=1),
    "all125": Arm("MLP and attention 2.9 times as wide, .125", 0.125, 0.125, width=2.9, hidden=0.94),
    "deep50": Arm("MLP and attention .5, twice as deep", mlp=0.5, attention=0.5, depth=2),
    # the control of -scaled: whether a higher rate is worth as much to a dense MLP
    "dense-rates": Arm("dense, four times the rate for its MLP", mlp_rate=4),
    # a step as long as dense's
    "mlp25-time": Arm("MLP .25, wider by dense's time", mlp=0.25, hidden=2, fits="hidden"),
    "mlp125-time": Arm("MLP .125, wider by dense's time", mlp=0.125, hidden=3, fits="hidden"),
    "all25-time": Arm("MLP and attention .25, wider by dense's time", 0.25, 0.25, 1.5, fits="width"),
    "all125-time": Arm("MLP and attention .125, wider by dense's time", 0.125, 0.125, 2, fits="width"),
    "mlp25-time-scaled": Arm(
        "MLP .25, wider by dense's time, rates by density", mlp=0.25, hidden=2, fits="hidden", power=1.0
    ),
    # patterns
    "mlp25-ba": _WIDE._replace(text="Barabasi-Albert", pattern="barabasi-albert"),
    "mlp25-shuffle": _WIDE._replace(text="block-diagonal and shuffle", pattern="shuffle"),
    "mlp25-butterfly": _WIDE._replace(text="butterfly-like", pattern="butterfly"),
    # methods
    "mlp25-scaled": _WIDE._replace(text="static, rates by density", power=1.0),
    "mlp25-set": _WIDE._replace(text="SET, SMET's rules", method="set", power=1.0),
    "mlp25-rigl": _WIDE._replace(text="RigL, SMET's rules", method="rigl", power=1.0),
    "mlp25-rigl-unscaled": _WIDE._replace(text="RigL, SMET's without scaled rates", method="rigl"),
    "mlp25-rigl-grace": _WIDE._replace(text="RigL, new blocks stay for 5 changes", method="grace"),
    "mlp25-set-grace": _WIDE._replace(text="SET, new blocks stay for 5 changes", method="set-grace"),
    "mlp25-rigl-plain": _WIDE._replace(text="RigL, one count of steps", method="plain", own_steps=False),
    # as many parameters as dense on average over the steps
    "gradual60": Arm("gradual to 60 % from 25 to 75 % of the steps", mlp=0.4, hidden=1.6, method="gradual"),
    "gradual60-all": Arm(
        "the same of attention too, 1.25 times as wide", 0.4, 0.4, 1.25, 1.02, method="gradual"
    ),
    "tail": Arm("MLP .25, dense in the last quarter", mlp=0.25, hidden=2.28, method="tail"),
}
#: The share of the steps in which ``tail`` is sparse.
TAIL = 0.75


def shape(arm: Arm, dense: Shape, block: int, multiple: float | None = None) -> Shape:
    """Returns the sizes of an arm; ``multiple`` is of what it fits. Sides are whole blocks, and heads stay as
    wide as dense's."""
    wide, hidden = arm.width, arm.hidden
    if multiple is not None and arm.fits == "width":
        wide = multiple
    elif multiple is not None:
        hidden = multiple
    head = dense.width // dense.heads
    side = max(block, head)
    width = side * max(1, round(wide * dense.width / side))
    inner = block * max(1, round(hidden * wide * dense.hidden / block))
    return Shape(width, dense.depth * arm.depth, width // head, inner, dense.context)


def pattern(kind: str, rows: int, cols: int, block: int, density: float, seed: int) -> Pattern:
    """Returns a pattern of exactly the share of blocks that ``balanced`` has. The graphs have other numbers:
    blocks are then dropped, or added, at random."""
    wanted = patterns.balanced(rows, cols, block, density, seed)
    if kind == "balanced":
        return wanted
    shorter = min(wanted.mask.shape)
    degree = density * shorter
    if kind == "barabasi-albert":
        found = patterns.barabasi_albert(rows, cols, block, max(1, min(shorter - 1, round(degree / 2))), seed)
    elif kind == "butterfly":
        most = max(1, shorter.bit_length() - 1)
        found = patterns.butterfly(rows, cols, block, max(1, min(most, round(degree) - 1)))
    else:
        found = patterns.block_diagonal(rows, cols, block, max(1, min(shorter, round(1 / density))), True)
    return _of_as_many(found, wanted.blocks, seed)


def _of_as_many(found: Pattern, blocks: int, seed: int) -> Pattern:
    if found.blocks < blocks:
        return patterns.extra_edges(found, blocks - found.blocks, seed) if not _square(found) else found
    mask = found.mask.flatten().clone()
    present = mask.nonzero().flatten()
    order = torch.randperm(len(present), generator=torch.Generator().manual_seed(seed))
    mask[present[order[: found.blocks - blocks]]] = False
    return Pattern(found.rows, found.cols, found.block, mask.view_as(found.mask))


def _square(found: Pattern) -> bool:
    return found.mask.shape[0] == found.mask.shape[1]  # there an edge is two blocks


def recipes(name: str, net: nn.Module, block: int, steps: int, seed: int) -> dict[str, BlockSparse]:
    """Returns what ``sparsify_`` does to each linear layer of an arm's network, by name."""
    arm = ARMS[name]
    found = {}
    method = None if arm.method is None else METHODS[arm.method](steps)
    for number, (layer, module) in enumerate(net.named_modules()):
        part = next((part for part, regex in LAYERS.items() if re.fullmatch(regex, layer)), None)
        density = 1.0 if part is None else getattr(arm, part)
        if density == 1.0 or not isinstance(module, nn.Linear):
            continue
        escaped = re.escape(layer)
        if arm.method in ("gradual", "tail"):
            room = 1.0 if arm.method == "tail" else None
            found[escaped] = BlockSparse(
                block, density, "random", seed + number, method=method, capacity=room
            )
            continue
        rows, cols, own = module.out_features, module.in_features, 10_007 * seed + number
        # products of two or three parts: a pattern for each, so that no graph's order tells them apart
        count = {"up": 2, "qkv": 3}.get(layer.rpartition(".")[2], 1)
        masks = [
            pattern(arm.pattern, rows // count, cols, block, density, own + 997 * i).mask
            for i in range(count)
        ]
        whole = Pattern(rows, cols, (block, block), torch.cat(masks))
        found[escaped] = BlockSparse(pattern=whole, method=method)
    return found


@dataclass(frozen=True)
class _Tail(schedules.Schedule):
    """The target until a step, then all blocks."""

    at: int

    def due(self, step: int) -> bool:
        return step == self.at

    def budget(self, step: int, target: float) -> float:
        return target if step < self.at else 1.0


def _every(steps: int) -> int:
    return max(1, min(100, round(steps / 50)))


#: method -> its parts for a training of that many steps
METHODS: dict[str, Callable[[int], Any]] = {
    "set": lambda n: noted(methods.set_(_every(n), SHARE, round(0.75 * n), 0, WARM_UP)),
    "rigl": lambda n: noted(methods.rigl(round(0.75 * n), _every(n), SHARE, 1, WARM_UP)),
    "grace": lambda n: noted(methods.rigl(round(0.75 * n), _every(n), SHARE, 1, WARM_UP, GRACE * _every(n))),
    "set-grace": lambda n: noted(
        methods.set_(_every(n), SHARE, round(0.75 * n), 0, WARM_UP, GRACE * _every(n))
    ),
    "plain": lambda n: noted(methods.rigl(round(0.75 * n), _every(n), SHARE)),
    "gradual": lambda n: methods.gradual(round(0.25 * n), round(0.75 * n), _every(n)),
    "tail": lambda n: Method(schedule=_Tail(max(1, round(TAIL * n))), gradient=gradients.Stored()),
}


def average_share(arm: Arm, density: float) -> float:
    """Returns the mean over the steps of a density that the arm's recipe has."""
    if arm.method == "gradual":  # the cubic's mean is a quarter of the way to the target
        return 0.25 + 0.5 * (density + (1 - density) / 4) + 0.25 * density
    return density if arm.method != "tail" else TAIL * density + 1 - TAIL
