"""The group `attention` of the GPU suite: attention over kept blocks, forward and backward, beside dense SDPA
and, on the same lists, the peers of attention_peers.py."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

import sparseloom
from sparseloom import AttentionPattern
from sparseloom.errors import Error
from sparseloom.ops.attention import transpose

from ..timing import Spread
from .attention_peers import PEERS, Peer
from .measure import CALM_ROUNDS, Settings, one_line
from .replay import Replay, in_turn

Record = dict[str, Any]
GROUP = "attention"
HEADS, HEAD_DIM, DTYPE = 8, 128, torch.bfloat16
#: Useful TFLOP/s over kept blocks that a cell must reach on an H200, by the side of its blocks.
FORWARD, BACKWARD = {64: 400.0, 128: 500.0}, {64: 300.0, 128: 380.0}
#: The share of the full rate that a causal call, grouped heads and sequences of several lengths must keep.
SHARE = 0.85
#: Queries whose result is compared with fp64, and the largest error, of values of about 1.
CHECKED, TOLERANCE = 256, 2e-2


FORMS = ("plain", "causal", "grouped", "ragged")


class Cell(NamedTuple):
    """``form``: plain, causal, grouped (one head of keys for 8 of queries) or ragged (cu_seqlens).
    ``drawn``: random, or trained-like: a band, the first blocks of keys, and the rest at random."""

    tokens: int
    density: float
    block: int
    form: str = "plain"
    drawn: str = "random"

    def __str__(self) -> str:
        drawn = "" if self.drawn == "random" else f"-{self.drawn}"
        return f"attention-{self.form}{drawn}-s{self.tokens}-b{self.block}-d{self.density:g}"


CELLS = [
    *(Cell(s, density, block) for s in (8192, 32768) for block in (64, 128) for density in (0.25, 0.1)),
    *(Cell(32768, 0.25, block, drawn="trained") for block in (64, 128)),
    *(Cell(16384, 0.25, block, form) for block in (64, 128) for form in FORMS),
]  # fmt: skip


def fields(cell: Cell) -> Record:
    """Returns the fields that name a cell's record."""
    return {"op": GROUP, "name": str(cell)} | cell._asdict()


def kept_map(cell: Cell, device: torch.device) -> Tensor:
    """Returns the map [1, heads, blocks, blocks]; causal maps keep the density of what lies below the
    diagonal."""
    draw = torch.Generator(device).manual_seed(cell.tokens + cell.block)
    blocks = cell.tokens // cell.block
    number = torch.arange(blocks, device=device)
    distance = (number[:, None] - number).abs()
    kept = torch.zeros(1, HEADS, blocks, blocks, dtype=torch.bool, device=device)
    if cell.drawn == "trained":
        kept |= (distance <= blocks * cell.density / 4) | (number < 2)
    rest = torch.rand(kept.shape, device=device, generator=draw)
    share = kept.float().mean().item()
    kept |= rest < (cell.density - share) / (1 - share)
    kept |= distance == 0  # no query is without keys, as in a model
    return kept.tril() if cell.form == "causal" else kept


class Operands:
    """The inputs of a cell, and the pairs of queries and keys that count as work."""

    def __init__(self, cell: Cell, device: torch.device) -> None:
        self.cell, kv_heads = cell, 1 if cell.form == "grouped" else HEADS
        sizes = [(heads, cell.tokens, HEAD_DIM) for heads in (HEADS, kv_heads, kv_heads)]
        self.inputs = [
            torch.randn(1, *size, device=device, dtype=DTYPE, requires_grad=True) for size in sizes
        ]
        self.kept = kept_map(cell, device)
        self.options: dict[str, Any] = {"causal": cell.form == "causal"}
        self.pairs = int(self.kept.sum()) * cell.block**2
        if cell.form == "causal":  # the upper half of the diagonal's blocks is no work
            self.pairs -= HEADS * cell.tokens * (cell.block - 1) // 2
        if cell.form == "ragged":
            self._cut(device)
        self.pattern = AttentionPattern.from_map(self.kept, cell.block)

    def _cut(self, device: torch.device) -> None:
        """Makes eight sequences of several lengths of the tokens, each with the map's first blocks."""
        shares = torch.tensor([1, 3, 2, 5, 1, 6, 4, 2])
        lengths = shares * self.cell.tokens // int(shares.sum())
        lengths[-1] += self.cell.tokens - int(lengths.sum())
        starts = F.pad(lengths.cumsum(0), (1, 0)).int().to(device)
        blocks = -(-int(lengths.max()) // self.cell.block)
        self.kept = self.kept[..., :blocks, :blocks].contiguous()
        edge = torch.arange(blocks + 1) * self.cell.block
        self.pairs = 0
        for length in lengths.tolist():
            sides = edge.clamp(max=length).diff().to(device)
            self.pairs += int((self.kept * (sides[:, None] * sides)).sum())
        self.inputs = [x[0].transpose(0, 1).contiguous().detach().requires_grad_() for x in self.inputs]
        self.options |= {"cu_seqlens": starts}

    def forward(self) -> Tensor:
        q, k, v = self.inputs
        out = sparseloom.attention(q, k, v, self.pattern, **self.options)
        assert isinstance(out, Tensor)
        return out

    def error(self) -> float:
        """Returns the largest error of the first CHECKED queries of the second block, against fp64."""
        if self.cell.form == "ragged":
            return 0.0  # tests/python/attention checks it
        cell, (q, k, v) = self.cell, (x.detach() for x in self.inputs)
        rows = slice(cell.block, cell.block + min(CHECKED, cell.block))
        group = HEADS // k.shape[1]
        keys, values = (x.double().repeat_interleave(group, 1) for x in (k, v))
        scores = q[:, :, rows].double() @ keys.transpose(-1, -2) * HEAD_DIM**-0.5
        mask = self.kept[:, :, 1].repeat_interleave(cell.block, -1)[:, :, None].expand(scores.shape)
        if cell.form == "causal":
            number = torch.arange(cell.tokens, device=q.device)
            mask = mask & (number <= number[rows, None])
        exact = scores.masked_fill(~mask, -torch.inf).softmax(-1) @ values
        return float((self.forward().detach()[:, :, rows].double() - exact).abs().max())


def measure(cell: Cell, settings: Settings) -> Record:
    """Returns the cell's record. Raises Error where the result is wrong."""
    operands = Operands(cell, settings.device)
    error = operands.error()
    if not error <= TOLERANCE:
        raise Error("bench", f"an error of {TOLERANCE} at most", f"{error:.3g}", "see tests/python/attention")
    contenders, absent = _replays("ours", _differentiable(operands.forward, operands), operands), {}
    if cell.form == "plain":
        q, k, v = operands.inputs
        dense = lambda: F.scaled_dot_product_attention(q, k, v)  # noqa: E731
        contenders |= _replays("dense", _differentiable(dense, operands), operands)
        for name, make in PEERS.items() if settings.peers else ():
            try:
                contenders |= _replays(name, _checked(make(operands), operands), operands)
            except Exception as failure:
                absent[name] = one_line(failure)
    names = [name for name in contenders if not name.endswith(" step")]
    pattern, blocks = operands.pattern, operands.kept.shape[-1]
    contenders["lists of a map"] = Replay(
        [lambda: AttentionPattern.from_map(operands.kept, cell.block).counts]
    )
    contenders["lists of keys"] = Replay([lambda: transpose(pattern.counts, pattern.indices, blocks)[0]])
    us = {name: Spread.of(times).median for name, times in in_turn(contenders, CALM_ROUNDS).items()}
    whole = HEADS * cell.tokens**2
    # A backward pass runs on the stream of its forward pass, so no graph captures it alone: it is the step
    # less the forward pass.
    took = {
        name: {"forward": us[name]}
        | ({"backward": us[f"{name} step"] - us[name]} if f"{name} step" in us else {})
        for name in names
    }
    rates = {
        name: {
            way: round((4 if way == "forward" else 10) * (whole if name == "dense" else operands.pairs)
                       * HEAD_DIM / time / 1e6, 1)
            for way, time in ways.items()
        }
        for name, ways in took.items()
    }  # fmt: skip
    return fields(cell) | {
        "us": {name: round(time, 2) for name, time in us.items()},
        "tflops": rates,
        "kept": round(float(operands.kept.float().mean()), 4),
        "error": round(error, 5),
        "must": {"forward": FORWARD[cell.block], "backward": BACKWARD[cell.block]},
        "peers_absent": absent,
    }


def below(records: list[Record]) -> list[str]:
    """Names the cells that miss what they must reach, and by how much."""
    plain = {
        (each["tokens"], each["block"]): each["tflops"]["ours"]
        for each in records
        if each["op"] == GROUP and "tflops" in each and each["form"] == "plain" and each["density"] == 0.25
        and each["drawn"] == "random"
    }  # fmt: skip
    found = []
    for record in records:
        if record["op"] != GROUP:
            continue
        if "tflops" not in record:
            found.append(f"{record['name']}: {record['error']}")
            continue
        for way, must in record["must"].items():
            full = plain.get((record["tokens"], record["block"]))
            if record["form"] != "plain":
                must = SHARE * full[way] if full else 0.0
            if (got := record["tflops"]["ours"][way]) < must:
                found.append(f"{record['name']}: {way} {got:.0f} of {must:.0f} TFLOP/s")
    return found


def row(record: Record) -> list[str]:
    """Returns the columns of the suite's table: kernel, us, dense us, speedup, target."""
    if "tflops" not in record:
        return [record["error"], *[""] * 8]
    us, rates, dense = record["us"], record["tflops"]["ours"], record["us"].get("dense")
    must = f"{record['must']['forward']:.0f} / {record['must']['backward']:.0f}"
    return [
        f"{rates['forward']:.0f} / {rates['backward']:.0f} TF/s",
        f"{us['ours']:.1f}",
        "" if dense is None else f"{dense:.1f}",
        "" if dense is None else f"{dense / us['ours']:.2f}",
        must,
        *[""] * 4,
    ]


def _quiet(call: Callable[[], Tensor]) -> Callable[[], Tensor]:
    def run() -> Tensor:
        with torch.no_grad():
            return call()

    return run


def _differentiable(forward: Callable[[], Tensor], operands: Operands) -> Peer:
    """Returns the call with its backward pass by autograd."""
    return Peer(forward, lambda dout: torch.autograd.grad(forward(), operands.inputs, dout)[0])


def _replays(name: str, call: Peer, operands: Operands) -> dict[str, Replay]:
    """Returns the timed forward pass, and the step of forward and backward where there is one."""
    replays = {name: Replay([_quiet(call.forward)])}
    if call.step is not None:
        replays[f"{name} step"] = Replay([partial(call.step, torch.randn_like(operands.inputs[0]))])
    return replays


def _checked(peer: Peer, operands: Operands) -> Peer:
    """Returns the peer, whose first call compiles. Raises RuntimeError where its result or dq is not ours to
    the rounding of bfloat16: a wrong product is not worth timing."""
    dout = torch.randn_like(operands.inputs[0])
    ours = _differentiable(operands.forward, operands)
    assert ours.step is not None
    pairs = [("out", peer.forward, ours.forward)]
    if peer.step is not None:
        pairs.append(("dq", partial(peer.step, dout), partial(ours.step, dout)))
    for name, theirs, own in pairs:
        found = theirs().detach().float()
        expected = own().detach().float()
        error = float((found - expected).abs().max() / expected.abs().max())
        if not error <= TOLERANCE:
            raise RuntimeError(f"its {name} is wrong: {error:.2g} of the largest value")
    return peer
