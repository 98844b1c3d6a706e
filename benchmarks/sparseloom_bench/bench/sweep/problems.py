"""Defines the distribution that problems are drawn from. It is fixed here and described in docs/sweep.md.

A change makes older records incomparable; `--compare` still replays their problems, which it reads from the
file.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from sparseloom import ops
from sparseloom.nn.held.state import build_index
from sparseloom.testing import TileCheck, dense_product

from ..cells import DIRECTIONS, DTYPES, Cell
from ..gpu.operands import Operands, Reference
from ..gpu.semi24_operands import Semi24Operands
from ..measure import Bench
from ..timing import Call
from .masks import MASKS, MaskedCase
from .scores import LAYERS as DEMO_LAYERS

T = TypeVar("T")
P = TypeVar("P", bound="Problem")


class Layer(NamedTuple):
    """A linear layer of known models. Each shape is listed once, whichever models share it."""

    models: str
    k: int  # in features
    n: int  # out features


ZOO = (
    Layer("BERT-base, ViT-B, GPT-2: attention's output", 768, 768),
    Layer("ViT-B, GPT-2: query, key and value", 768, 2304),
    Layer("BERT-base, ViT-B, GPT-2: MLP up", 768, 3072),
    Layer("BERT-base, ViT-B, GPT-2: MLP down", 3072, 768),
    Layer("ViT-L, BERT-large: attention's output", 1024, 1024),
    Layer("ViT-L: query, key and value", 1024, 3072),
    Layer("ViT-L, BERT-large: MLP up", 1024, 4096),
    Layer("ViT-L, BERT-large: MLP down", 4096, 1024),
    Layer("GPT-2 XL: query, key and value", 1600, 4800),
    Layer("GPT-2 XL: MLP up", 1600, 6400),
    Layer("GPT-2 XL: MLP down", 6400, 1600),
    Layer("Llama 8B, Mixtral: query", 4096, 4096),
    Layer("Llama 8B, Mixtral: MLP up", 4096, 14336),
    Layer("Llama 8B, Mixtral: MLP down", 14336, 4096),
    Layer("Llama 13B: query", 5120, 5120),
    Layer("Llama 13B: MLP up", 5120, 13824),
    Layer("Llama 13B: MLP down", 13824, 5120),
    Layer("T5-base: MLP up", 768, 2048),
    Layer("T5-base: MLP down", 2048, 768),
    Layer("T5-3B: MLP up", 1024, 16384),
    Layer("T5-3B: MLP down", 16384, 1024),
    Layer("Whisper large: attention", 1280, 1280),
    Layer("Whisper large: MLP up", 1280, 5120),
    Layer("Whisper large: MLP down", 5120, 1280),
    Layer("ragged", 3000, 5000),
    Layer("ragged", 5000, 1000),
    Layer("ragged", 777, 1333),
    Layer("ragged", 2050, 510),
)
TOKENS = (1, 65536)
SIDES = (16, 32, 64, 128)
SQUARE = tuple((side, side) for side in SIDES)
RECTANGULAR = tuple((bm, bn) for bm in SIDES for bn in SIDES if bm != bn)
RECTANGULAR_SHARE = 0.1
DENSITIES = (0.03, 0.7)
SWEPT_DTYPES = ("bf16", "f16", "f32")
#: In every tenth problem all candidates are timed, and in another tenth the product is launched eagerly too.
#: A problem does not depend on its index otherwise, so that these tenths are as random as the rest.
EVERY, ALL_CANDIDATES, EAGER = 10, 0, 5
#: The fields of a record that, with the block, tell a problem from all others.
NAMES = ("index", "direction", "dtype", "m", "drawn", "k", "n", "density", "pattern", "mask_seed", "layer")


class OnCpu(Protocol):
    """A problem's operands on the CPU, and its products: see bench.measure.Bench."""

    plan: dict[str, Any]
    stored: float

    def sparse(self, kernel: str) -> Tensor: ...

    def dense(self) -> Tensor: ...

    def check(self, kernel: str) -> TileCheck: ...


@dataclass(frozen=True)
class Problem(Cell):
    """A cell of the sweep. `m` tokens are multiplied; `drawn` were drawn, which are more where the CPU's
    dense product took too long."""

    index: int = 0
    drawn: int = 0
    mask_seed: int = 0
    layer: str = ""  # the models of the zoo that have it; with a mask of the demo, the demo's layer

    def case(self, device: str = "cpu") -> MaskedCase:
        shape = (self.block, self.m, self.k, self.n, self.pattern, self.density)
        more: dict[str, Any] = {"device": device, "mask_seed": self.mask_seed, "layer": self.layer}
        return MaskedCase("sweep", self.direction, DTYPES[self.dtype], *shape, **more)

    def plan(self, device: str) -> dict[str, Any]:
        """Returns the plan of the problem on a device, without its operands."""
        index = build_index(self.case().make_pattern())
        return ops.plan(index, self.direction, DTYPES[self.dtype], self.m, device=device)

    def bench(self) -> OnCpu:
        """Returns the operands of the problem on the CPU."""
        return Bench(self)

    def operands(self, device: torch.device, l2_bytes: int) -> Operands | Semi24Operands:
        """Returns the operands of the problem on a GPU."""
        return Operands(self, device, l2_bytes)

    def reference(self, operands: Operands | Semi24Operands) -> Reference:
        """Returns what checks results on a GPU."""
        return Reference(operands)

    def sizes(self) -> list[Problem]:
        """Returns the problem with its tokens halved, down to one; the smallest first."""
        return [replace(self, m=self.m >> halvings) for halvings in range(self.m.bit_length())][::-1]

    def dense_of_constants(self) -> Call:
        """Returns torch's dense product on the CPU of operands whose values are all the same: no product
        depends on the values, and drawing them takes longer."""
        case = self.case()
        x, dy, weight = (
            torch.full(shape, 0.5, dtype=case.dtype)
            for shape in ((case.m, case.k), (case.m, case.n), (case.n, case.k))
        )
        return partial(dense_product, case, x, dy, weight, None)

    def on_gpu(self: P) -> P:
        """Returns the problem as a GPU is given it."""
        return self

    @property
    def all_candidates(self) -> bool:
        return self.index % EVERY == ALL_CANDIDATES

    @property
    def eager(self) -> bool:
        return self.index % EVERY == EAGER

    @property
    def copies(self) -> bool:
        """Whether a layer may multiply with a dense copy: in calls for inference. dX is timed as training
        takes it, where values change."""
        return self.direction == "forward"

    def fields(self) -> dict[str, Any]:
        """Returns the fields by which a record names its problem; problem_of reads them back."""
        return {"op": "sweep"} | {name: getattr(self, name) for name in NAMES} | {"block": list(self.block)}

    @classmethod
    def more(cls, record: dict[str, Any]) -> dict[str, Any]:
        """Reads back what the fields of a kind have beyond these."""
        return {}


def problem_of(record: dict[str, Any], kind: type[P] = Problem) -> P:  # type: ignore[assignment]
    """Returns the problem, of a kind, that a record was measured on, with the tokens halved as they were
    then."""
    named = {name: record[name] for name in NAMES}
    return kind(**named, block=tuple(record["block"]), **kind.more(record))


def draw(seed: int, index: int) -> Problem:
    """Returns problem `index` of the seed: the same on every machine, however many others are drawn."""
    # random.Random seeds from a text by its SHA-512. Of the generator's methods, only random() gives the same
    # values in every Python.
    rng = random.Random(f"{seed}/{index}")

    def pick(choices: Sequence[T]) -> T:
        return choices[int(rng.random() * len(choices))]

    def log_uniform(least: float, most: float) -> float:
        return float(least * (most / least) ** rng.random())

    direction, mask, dtype = pick(DIRECTIONS), pick(MASKS), pick(SWEPT_DTYPES)
    shape, layer = pick(ZOO), pick(tuple(DEMO_LAYERS))
    tokens = int(log_uniform(TOKENS[0], TOKENS[1] + 1))
    rectangular, square, other = rng.random() < RECTANGULAR_SHARE, pick(SQUARE), pick(RECTANGULAR)
    density, mask_seed = log_uniform(*DENSITIES), int(rng.random() * 2**31)
    name, k, n = (layer, *DEMO_LAYERS[layer]) if mask == "demo" else shape
    block = other if rectangular else square
    return Problem(
        direction, dtype, tokens, k, n, block, round(density, 5), mask, False, index, tokens, mask_seed, name
    )
