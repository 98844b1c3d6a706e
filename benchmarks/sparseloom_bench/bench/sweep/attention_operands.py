"""Makes the operands of an attention's calls, ours and torch's dense ones, on a CPU or a GPU, and what checks
their results."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import sparseloom
from sparseloom import AttentionPattern
from sparseloom.testing import TileCheck, check_tiles
from sparseloom.testing.tolerance import TILE_TOKENS

from ..cells import DTYPES
from ..gpu.operands import DENSE, Call, sets_needed

if TYPE_CHECKING:
    from .attention import AttentionProblem

#: Queries of which the exact result is computed at once.
CHUNK = 1024
#: Roundings that a check allows for, of magnitudes that are roots of sums of squares: in 16 bits those of the
#: probabilities and their gradients; in fp32 those of the scores, which an exponential multiplies.
ROUNDINGS = {torch.float32: 32.0, torch.bfloat16: 4.0, torch.float16: 4.0}


class Set(NamedTuple):
    """Operands of one call: q [batch, heads, queries, head size], or with sequences of several lengths
    [tokens, heads, head size]; k and v; and the gradient of the result."""

    q: Tensor
    k: Tensor
    v: Tensor
    dout: Tensor

    def again(self) -> Set:
        return Set(*(each.detach().clone().requires_grad_(each.requires_grad) for each in self))


def kept_map(problem: AttentionProblem, generator: torch.Generator) -> Tensor:
    """Draws the map [1, heads, q blocks, kv blocks], on the CPU: the same count in each row, of the blocks
    that causal order leaves; at random, in a band, or as trained ones are, in a band and in columns that all
    rows look at. A query's own block is in each."""
    sides = zip((problem.m, problem.k), problem.block, strict=True)
    rows, columns = (-(-tokens // side) for tokens, side in sides)
    last = (torch.arange(1, rows + 1) * problem.block[0]).clamp(max=problem.m) - 1 + problem.k - problem.m
    own = (last // problem.block[1])[:, None]
    number = torch.arange(columns)
    apart = (own - number).abs() / columns
    scores = torch.rand((1, problem.heads, rows, columns), generator=generator)
    if problem.pattern == "trained":
        seen = torch.randn((1, problem.heads, 1, columns), generator=generator).exp()
        scores = scores * seen + 4 * (-16 * apart).exp()
    elif problem.pattern == "banded":
        scores = scores - 1e6 * apart
    allowed = number <= own if problem.causal else torch.ones_like(apart, dtype=torch.bool)
    scores = torch.where(number == own, torch.inf, scores).masked_fill(~allowed, -torch.inf)
    places = scores.argsort(-1, descending=True).argsort(-1)
    many = (problem.density * allowed.sum(-1, keepdim=True)).round().clamp(min=1)
    return (places < many) & allowed


class AttentionOperands:
    """Holds a problem's random operands in copies that take turns, and the calls. ``l2_bytes``: twice that
    many bytes lie between two uses of a copy; None makes one copy."""

    def __init__(self, problem: AttentionProblem, device: torch.device, l2_bytes: int | None) -> None:
        self.cell, self._device = problem, device
        generator = torch.Generator().manual_seed(problem.mask_seed)
        self.kept = kept_map(problem, generator)
        self.pattern = AttentionPattern.from_map(self.kept, problem.block).to(device)
        self.lengths = self._lengths(generator)
        self.options: dict[str, Any] = {"causal": problem.causal}
        if self.lengths is not None:
            starts = F.pad(torch.tensor(self.lengths).cumsum(0), (1, 0)).int().to(device)
            self.options["cu_seqlens"] = starts
        on_device = torch.Generator(device).manual_seed(problem.mask_seed)

        def drawn(heads: int, tokens: int, trained: bool = True) -> Tensor:
            shape = (problem.batch, heads, tokens, problem.n)
            if self.lengths is not None:
                shape = (sum(self.lengths), heads, problem.n)  # type: ignore[assignment]
            normal = torch.randn(shape, generator=on_device, device=device).to(DTYPES[problem.dtype])
            return normal.requires_grad_(trained and problem.direction == "step")

        sizes = (problem.heads, problem.m), (problem.kv_heads, problem.k), (problem.kv_heads, problem.k)
        q, k, v = (drawn(*size) for size in sizes)
        first = Set(q, k, v, drawn(problem.heads, problem.m, False))
        others = 0
        if l2_bytes is not None:
            others = sets_needed(sum(each.nbytes for each in first), l2_bytes) - 1
        self.copies = [first, *(first.again() for _ in range(others))]

    def _lengths(self, generator: torch.Generator) -> list[int] | None:
        """Returns the tokens of each sequence, of which none is longer than the pattern."""
        if self.cell.lengths == "equal":
            return None
        shares = torch.rand(self.cell.batch, generator=generator).clamp(min=0.1)
        shares[0] = 1.0
        return [max(1, int(share * self.cell.m)) for share in shares]

    @property
    def elements(self) -> float:
        """The kept share of the pairs of blocks, of the queries times the head size."""
        return self.share * self.cell.k * self.cell.n

    @property
    def share(self) -> float:
        """The kept blocks over those that dense attention computes."""
        allowed = self.kept.shape[-2] * self.kept.shape[-1]
        if self.cell.causal:
            dense = type(self.cell)(**{**vars(self.cell), "density": 1.0})
            allowed = int(kept_map(dense, torch.Generator())[0, 0].sum())
        return float(self.kept[0].sum()) / self.cell.heads / allowed

    def plan(self) -> dict[str, Any]:
        """Returns the plan of the problem on the device of its operands."""
        return self.cell.plan(str(self._device))

    def calls(self, kernel: str) -> list[Call]:
        """Returns our calls by that kernel, one for each copy; "a+b" is the choice of two plans."""
        return [
            partial(self._called, partial(self.ours, "" if "+" in kernel else kernel), own)
            for own in self.copies
        ]

    def dense_calls(self) -> dict[str, list[Call]]:
        """Returns the calls of torch's dense attention, sequence by sequence where their lengths differ."""
        return {DENSE: [partial(self._called, self.dense, own) for own in self.copies]}

    def _called(self, forward: Any, own: Set) -> Tensor:
        """Returns the result or, of a step, one of the three gradients, by the problem's number."""
        if self.cell.direction == "forward":
            out: Tensor = forward(own)
            return out
        with torch.enable_grad():
            inputs = own.q, own.k, own.v
            found = torch.autograd.grad(forward(own), inputs, own.dout)
        return found[self.cell.index % 3]

    def ours(self, kernel: str, own: Set) -> Tensor:
        return sparseloom.attention(*own[:3], self.pattern, kernel=kernel, **self.options)

    def dense(self, own: Set) -> Tensor:
        outs = [self._dense(*each) for each in self.sequences(own[:3])]
        return outs[0] if self.lengths is None else torch.cat([each[0].transpose(0, 1) for each in outs])

    def sequences(self, tensors: tuple[Tensor, ...]) -> Iterator[list[Tensor]]:
        """Yields the tensors [batch, heads, tokens, head size] of sequences of one length."""
        if self.lengths is None:
            yield list(tensors)
            return
        for parts in zip(*(each.split(self.lengths) for each in tensors), strict=True):
            yield [part.transpose(0, 1)[None] for part in parts]

    def _dense(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        causal = self.cell.causal and q.shape[2] == k.shape[2]
        return scaled_dot_product_attention(
            q, k, v, is_causal=causal, enable_gqa=self.cell.heads != self.cell.kv_heads
        )


class AttentionReference:
    """Holds the exact result in fp64 of the first sequence's first head of keys and its heads of queries, and
    torch's by a mask in the dtype under test, and compares results with them by tiles."""

    def __init__(self, operands: AttentionOperands) -> None:
        self._operands, problem = operands, operands.cell
        self._group = problem.heads // problem.kv_heads
        own = Set(*(each.detach() for each in operands.copies[0]))
        q, k, v, dout = next(operands.sequences(tuple(own)))
        q, dout = q[0, : self._group], dout[0, : self._group]
        k, v = k[0, 0], v[0, 0]
        q64, k64, v64, dout64 = (each.double() for each in (q, k, v, dout))
        wide = [self._exact(q64, k64, v64, dout64, rows) for rows in self._rows(q)]
        #: q's results and gradients are of rows, k's and v's are sums over them.
        self.exact, self.magnitude = (self._joined([each[at] for each in wide]) for at in (0, 1))
        self.magnitude = self.magnitude.sqrt()
        near = [self._masked(q, k, v, dout, rows) for rows in self._rows(q)]
        self.dense = self._joined(near)

    @property
    def _of_rows(self) -> bool:
        return self._operands.cell.direction == "forward" or self._operands.cell.index % 3 == 0

    def _rows(self, q: Tensor) -> list[slice]:
        return [slice(at, min(at + CHUNK, q.shape[1])) for at in range(0, q.shape[1], CHUNK)]

    def _joined(self, parts: list[Tensor]) -> Tensor:
        if self._of_rows:
            return torch.cat(parts, 1).flatten(0, 1)
        return torch.stack([each.double() for each in parts]).sum(0)

    def _mask(self, rows: slice, queries: int, keys: int, device: torch.device) -> Tensor:
        """Returns which keys the rows keep: [heads of the group, rows, keys]."""
        (q_block, kv_block), kept = self._operands.cell.block, self._operands.kept[0, : self._group]
        number, key = torch.arange(rows.start, rows.stop), torch.arange(keys)
        mask = kept[:, number // q_block][:, :, key // kv_block]
        if self._operands.cell.causal:
            mask = mask & (key <= number[:, None] + keys - queries)
        return mask.to(device)

    def _exact(self, q: Tensor, k: Tensor, v: Tensor, dout: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
        """Returns the rows' part of what a call returns, and the sum of the squares of what it sums."""
        mask, scale = self._mask(rows, q.shape[1], len(k), q.device), q.shape[-1] ** -0.5
        queries, d = q[:, rows], dout[:, rows]
        p = (queries @ k.T * scale).masked_fill(~mask, -torch.inf).softmax(-1).nan_to_num(0.0)
        if self._operands.cell.direction == "forward":
            return p @ v, p**2 @ v**2
        gradient = self._operands.cell.index % 3
        if gradient == 2:
            return (p.mT @ d).sum(0), (p.mT**2 @ d**2).sum(0)
        dp, delta = d @ v.T, (d * (p @ v)).sum(-1, keepdim=True)
        ds, size = p * (dp - delta) * scale, (p * scale) ** 2 * (dp**2 + delta**2)
        if gradient == 0:
            return ds @ k, size @ k**2
        return (ds.mT @ queries).sum(0), (size.mT @ queries**2).sum(0)

    def _masked(self, q: Tensor, k: Tensor, v: Tensor, dout: Tensor, rows: slice) -> Tensor:
        """Returns torch's result of the rows with an expanded mask."""
        mask, step = self._mask(rows, q.shape[1], len(k), q.device), self._operands.cell.direction == "step"
        heads = len(q)
        inputs = [q[:, rows], *(each[None].expand(heads, -1, -1) for each in (k, v))]
        inputs = [each.detach().clone().requires_grad_(step) for each in inputs]
        with torch.set_grad_enabled(step):
            queries, keys, values = (each[None] for each in inputs)
            out = scaled_dot_product_attention(queries, keys, values, mask[None])[0]
            if not step:
                return out
            found = torch.autograd.grad(out, inputs, dout[:, rows])[self._operands.cell.index % 3]
        return found if self._of_rows else found.double().sum(0)

    def check(self, actual: Tensor) -> TileCheck:
        """Checks each tile by the tolerance of sparseloom.testing; a NaN counts as infinitely wrong."""
        (first,) = next(self._operands.sequences((actual,)))
        part = first[0, : self._group].flatten(0, 1) if self._of_rows else first[0, 0]
        kind = part.dtype
        allowed = ROUNDINGS[kind] * torch.finfo(kind).eps / torch.finfo(torch.float32).eps
        tile = TILE_TOKENS, part.shape[-1]
        return check_tiles(part, self.dense.to(kind), self.exact, self.magnitude, tile, allowed)


class AttentionBench:
    """Holds the operands of one problem on the CPU and its exact result, as bench.measure.Bench does."""

    def __init__(self, problem: AttentionProblem) -> None:
        self._operands = AttentionOperands(problem, torch.device("cpu"), None)
        self.plan, self.stored = self._operands.plan(), self._operands.share
        self._reference = AttentionReference(self._operands)

    def sparse(self, kernel: str) -> Tensor:
        return self._operands.calls(kernel)[0]()

    def dense(self) -> Tensor:
        return self._operands.dense_calls()[DENSE][0]()

    def check(self, kernel: str) -> TileCheck:
        """Checks the kernel's result against fp64, tile by tile."""
        return self._reference.check(self.sparse(kernel))
