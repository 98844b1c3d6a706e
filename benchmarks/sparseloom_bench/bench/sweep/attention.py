"""The sweep's problems of attention over kept blocks (`bench sweep --family attention`)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
from torch.nn.functional import scaled_dot_product_attention

from sparseloom.attention.plans import planned
from sparseloom.errors import Error

from ..cells import DTYPES
from ..timing import Call
from .attention_operands import AttentionBench, AttentionOperands, AttentionReference
from .problems import SWEPT_DTYPES, Problem

T = TypeVar("T")


class Heads(NamedTuple):
    """The attention of known models."""

    models: str
    heads: int
    kv_heads: int
    head_dim: int


ZOO = (
    Heads("BERT-base, ViT-B, GPT-2", 12, 12, 64),
    Heads("ViT-L, BERT-large", 16, 16, 64),
    Heads("Llama 8B, Mixtral", 32, 8, 128),
    Heads("Qwen2.5 1.5B", 12, 2, 128),
    Heads("Llama 1B", 32, 8, 64),
    Heads("Wan 1.3B, video", 12, 12, 128),
    Heads("FLUX, images", 24, 24, 128),
    Heads("one head of keys", 8, 1, 128),
    Heads("ragged", 5, 5, 80),
)
#: A step is a forward and a backward pass: a graph of CUDA cannot capture a backward pass alone.
DIRECTIONS = ("forward", "step")
MASKS = ("random", "banded", "trained")
#: Lengths of a batch: all the same; of several lengths in one tensor (cu_seqlens).
LENGTHS = ("equal", "equal", "ragged")
TOKENS, BATCH = (128, 32768), (1, 4)
BLOCKS = ((64, 64), (128, 128), (64, 128), (128, 64))
DENSITIES = (0.03, 0.7)
CAUSAL_SHARE, CROSS_SHARE = 0.4, 0.15
LEAST_TOKENS = 64
#: What the kernels of GPUs take: the nearest of these head sizes, and 16 bits.
GPU_HEAD_DIMS, GPU_DTYPE = (64, 128), "bf16"


@dataclass(frozen=True)
class AttentionProblem(Problem):
    """Attention of ``m`` queries and ``k`` keys in each of ``batch`` sequences, of heads of size ``n``."""

    heads: int = 1
    kv_heads: int = 1
    batch: int = 1
    causal: bool = False
    lengths: str = "equal"

    def __str__(self) -> str:
        causal = "-causal" if self.causal else ""
        return f"{super().__str__()}-b{self.batch}-h{self.heads}-{self.kv_heads}{causal}-{self.lengths}"

    def plan(self, device: str) -> dict[str, Any]:
        """Returns the plan of the problem on a device: a step's is that of both passes together."""
        q = self.batch, self.heads, self.m, self.n
        k = self.batch, self.kv_heads, self.k, self.n
        room = max(1, round(self.density * -(-self.k // self.block[1])))
        what = q, k, DTYPES[self.dtype], torch.device(device), room, self.block, self.causal, False
        plan = planned(*what) | {"dense_copy_us": None}
        return plan if self.direction == "forward" else _both(plan, planned(*what, backward=True))

    def bench(self) -> AttentionBench:  # type: ignore[override]
        return AttentionBench(self)

    def operands(self, device: torch.device, l2_bytes: int) -> AttentionOperands:  # type: ignore[override]
        return AttentionOperands(self, device, l2_bytes)

    def reference(self, operands: AttentionOperands) -> AttentionReference:  # type: ignore[override]
        return AttentionReference(operands)

    def on_gpu(self) -> AttentionProblem:
        """Returns the problem with a dtype and a head size that kernels of GPUs take."""
        head_dim = min(GPU_HEAD_DIMS, key=lambda each: abs(each - self.n))
        return replace(self, n=head_dim, dtype=GPU_DTYPE if self.dtype == "f32" else self.dtype)

    def sizes(self) -> list[Problem]:
        """Returns the problem with its queries and keys halved, down to LEAST_TOKENS, and then with a single
        sequence; the smallest first."""
        found: list[Problem] = [self]
        while min(found[0].m, found[0].k) >= 2 * LEAST_TOKENS:
            found.insert(0, replace(found[0], m=found[0].m // 2, k=found[0].k // 2))
        if self.batch > 1:
            found.insert(0, replace(found[0], batch=1))  # type: ignore[call-arg]
        return found

    def dense_of_constants(self) -> Call:
        """Returns torch's dense call on the CPU of operands whose values are all the same."""
        shapes = (self.heads, self.m), (self.kv_heads, self.k), (self.kv_heads, self.k)
        q, k, v = (
            torch.full((self.batch, *shape, self.n), 0.5, dtype=DTYPES[self.dtype]) for shape in shapes
        )
        causal = self.causal and self.m == self.k
        call = partial(scaled_dot_product_attention, q, k, v, is_causal=causal, enable_gqa=True)
        if self.direction == "forward":
            return call
        inputs = [each.requires_grad_() for each in (q, k, v)]

        def step() -> torch.Tensor:
            with torch.enable_grad():
                return torch.autograd.grad(call(), inputs, q.detach())[0]

        return step

    @property
    def copies(self) -> bool:
        """Whether a layer may multiply with a dense copy: there is no weight."""
        return False

    def fields(self) -> dict[str, Any]:
        return super().fields() | {name: getattr(self, name) for name in MORE}

    @classmethod
    def more(cls, record: dict[str, Any]) -> dict[str, Any]:
        return {name: record[name] for name in MORE}


MORE = ("heads", "kv_heads", "batch", "causal", "lengths")


def _both(forward: dict[str, Any], backward: dict[str, Any]) -> dict[str, Any]:
    """Returns one plan of a step. Where the passes run different rows, the choice is that of both plans."""
    of_backward = {each["kernel"]: each for each in backward["candidates"]}
    candidates = []
    for each in forward["candidates"]:
        other = of_backward.get(each["kernel"], {"refusal": "it has no backward pass"})
        refusal = each["refusal"] or other["refusal"]
        us = None if refusal else float(each["predicted_us"]) + float(other["predicted_us"])
        candidates.append({"kernel": each["kernel"], "refusal": refusal, "predicted_us": us})
    chosen = forward["kernel"]
    if backward["kernel"] != chosen:
        chosen = f"{chosen}+{backward['kernel']}"
        us = float(forward["predicted_us"]) + float(backward["predicted_us"])
        candidates.append({"kernel": chosen, "refusal": "", "predicted_us": us})
    text = forward["text"] + backward["text"]
    return forward | {"kernel": chosen, "candidates": candidates, "text": text}


def require_kernel(name: str, device: str) -> None:
    """Raises Error where no kernel of attention on the device has this name."""
    like = AttentionProblem("forward", "bf16", 128, 128, 64, (64, 64), 1.0, "random")
    known = [each["kernel"] for each in like.plan(device)["candidates"]]
    if name not in known:
        raise Error("bench sweep", f"--kernel {' or '.join(known)}", repr(name), "name one of them")


def draw(seed: int, index: int) -> AttentionProblem:
    """Returns problem `index` of the seed, the same on every machine. The density is the share of the blocks
    that causal order leaves."""
    rng = random.Random(f"attention/{seed}/{index}")

    def pick(choices: Sequence[T]) -> T:
        return choices[int(rng.random() * len(choices))]

    def log_uniform(least: float, most: float) -> float:
        return float(least * (most / least) ** rng.random())

    direction, mask, dtype, model = pick(DIRECTIONS), pick(MASKS), pick(SWEPT_DTYPES), pick(ZOO)
    tokens, other = (int(log_uniform(TOKENS[0], TOKENS[1] + 1)) for _ in range(2))
    cross, causal = rng.random() < CROSS_SHARE, rng.random() < CAUSAL_SHARE
    keys = max(tokens, other) if cross else tokens  # no causal query is without keys
    block, lengths = pick(BLOCKS), pick(LENGTHS)
    batch = int(log_uniform(BATCH[0], BATCH[1] + 1))
    density, mask_seed = round(log_uniform(*DENSITIES), 5), int(rng.random() * 2**31)
    what = direction, dtype, tokens, keys, model.head_dim, block, density, mask
    more = model.heads, model.kv_heads, batch, causal, "equal" if batch == 1 or cross else lengths
    return AttentionProblem(*what, False, index, tokens, mask_seed, model.models, *more)
