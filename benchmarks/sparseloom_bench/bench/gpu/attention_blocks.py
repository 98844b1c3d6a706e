"""The group `attention_blocks` of the GPU suite: whole transformer blocks with attention over a quarter of
the blocks, beside the same blocks with dense scaled_dot_product_attention. Both are compiled by torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sparseloom
from sparseloom import AttentionPattern

from ..timing import Spread
from .measure import CALM_ROUNDS, Settings
from .replay import Replay, in_turn

Record = dict[str, Any]
GROUP = "attention_blocks"
HEAD_DIM, BLOCK, DENSITY, DTYPE = 128, 128, 0.25, torch.bfloat16
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


class Cell(NamedTuple):
    """``kind``: video, a block of a diffusion transformer (12 heads, all see all), or context, one of a
    causal language model (16 heads on 2 of keys, SwiGLU)."""

    kind: str
    tokens: int

    def __str__(self) -> str:
        return f"block-{self.kind}-s{self.tokens}"


CELLS = [Cell(kind, tokens) for kind in ("video", "context") for tokens in (16384, 65536)]


def fields(cell: Cell) -> Record:
    """Returns the fields that name a cell's record."""
    return {"op": GROUP, "name": str(cell)} | cell._asdict()


class TransformerBlock(nn.Module):
    """Attention and an MLP, each behind a norm; in a video transformer with a shift and a scale from outside
    and normalised q and k (adaLN), in a language model without rotary positions (they are no product)."""

    def __init__(self, kind: str, attend: Attend) -> None:
        super().__init__()
        self.video, self.attend = kind == "video", attend
        self.heads, self.kv_heads = (12, 12) if self.video else (16, 2)
        width = self.heads * HEAD_DIM
        inner = 4 * width if self.video else 11 * width // 4 // 128 * 128
        self.qkv = nn.Linear(width, (self.heads + 2 * self.kv_heads) * HEAD_DIM, bias=self.video)
        self.out = nn.Linear(width, width, bias=self.video)
        self.up = nn.Linear(width, inner if self.video else 2 * inner, bias=self.video)
        self.down = nn.Linear(inner, width, bias=self.video)
        norm = nn.LayerNorm if self.video else nn.RMSNorm
        self.first, self.second = norm(width), norm(width)
        self.q_norm, self.k_norm = nn.RMSNorm(HEAD_DIM), nn.RMSNorm(HEAD_DIM)
        self.shift_and_scale = nn.Parameter(torch.randn(6, width) / 10)

    def forward(self, x: Tensor) -> Tensor:
        shift, scale, gate, shift2, scale2, gate2 = self.shift_and_scale.unbind()
        inner = self.first(x)
        if self.video:
            inner = inner * (1 + scale) + shift
        sizes = [self.heads, self.kv_heads, self.kv_heads]
        q, k, v = self.qkv(inner).unflatten(-1, (-1, HEAD_DIM)).transpose(1, 2).split(sizes, 1)
        if self.video:
            q, k = self.q_norm(q), self.k_norm(k)
        attended = self.out(self.attend(q, k, v).transpose(1, 2).flatten(2))
        x = x + (gate * attended if self.video else attended)
        inner = self.second(x)
        if self.video:
            return x + gate2 * self.down(F.gelu(self.up(inner * (1 + scale2) + shift2), approximate="tanh"))
        one, two = self.up(inner).chunk(2, -1)
        return x + self.down(F.silu(one) * two)


def pattern_of(cell: Cell, device: torch.device) -> AttentionPattern:
    """Returns a band, the first block of keys and random blocks; causal ones are drawn below the diagonal."""
    blocks, heads = cell.tokens // BLOCK, 12 if cell.kind == "video" else 16
    number = torch.arange(blocks, device=device)
    distance = (number[:, None] - number).abs()
    draw = torch.Generator(device).manual_seed(blocks)
    kept = torch.rand(1, heads, blocks, blocks, device=device, generator=draw) < DENSITY - 3 / blocks
    kept |= (distance <= 1) | (number == 0)
    return AttentionPattern.from_map(kept if cell.kind == "video" else kept.tril(), BLOCK)


def measure(cell: Cell, settings: Settings) -> Record:
    """Returns the cell's record: inference and a step (forward and backward), by one graph each."""
    causal, pattern = cell.kind == "context", pattern_of(cell, settings.device)

    def dense(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=causal)

    def sparse(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = sparseloom.attention(q, k, v, pattern, causal=causal)
        assert isinstance(out, Tensor)
        return out

    contenders = {}
    x = torch.randn(1, cell.tokens, (12 if cell.kind == "video" else 16) * HEAD_DIM, device=settings.device)
    x = x.to(DTYPE).requires_grad_()
    for name, attend in (("dense", dense), ("sparse", sparse)):
        torch._dynamo.reset()
        block = TransformerBlock(cell.kind, attend).to(settings.device, DTYPE)
        contenders[name] = Replay([_inference(torch.compile(block, fullgraph=True), x)])
        contenders[f"{name} step"] = Replay([_step(torch.compile(block, fullgraph=True), block, x)])
    samples = in_turn(contenders, CALM_ROUNDS)
    us = {name: Spread.of(times).median for name, times in samples.items()}
    return fields(cell) | {
        "us": {name: round(time, 1) for name, time in us.items()},
        "speedup": {
            "inference": round(us["dense"] / us["sparse"], 3),
            "step": round(us["dense step"] / us["sparse step"], 3),
        },
        "kept": round(float(pattern.map().float().mean()), 4),
    }


def row(record: Record) -> list[str]:
    """Returns the columns of the suite's table."""
    if "us" not in record:
        return [record["error"], *[""] * 8]
    us, speedup = record["us"], record["speedup"]
    return [
        f"step {us['dense step'] / 1e3:.2f} / {us['sparse step'] / 1e3:.2f} ms = {speedup['step']:.2f}",
        f"{us['sparse']:.0f}",
        f"{us['dense']:.0f}",
        f"{speedup['inference']:.2f}",
        *[""] * 5,
    ]


def _inference(block: Callable[[Tensor], Tensor], x: Tensor) -> Callable[[], Tensor]:
    def run() -> Tensor:
        with torch.no_grad():
            return block(x)

    return run


def _step(compiled: Callable[[Tensor], Tensor], block: nn.Module, x: Tensor) -> Callable[[], Tensor]:
    inputs, dout = [x, *block.parameters()], torch.randn_like(x)

    def run() -> Tensor:
        gradient: Tensor = torch.autograd.grad(compiled(x), inputs, dout, allow_unused=True)[0]
        return gradient

    return run
