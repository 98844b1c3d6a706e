"""Cases of attention, and their answer in fp64 by softmax over the expanded mask."""

import math
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F

import sparseloom
from sparseloom import AttentionPattern

EPS = {torch.float64: 2e-7, torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
TILE = 64


@dataclass(frozen=True)
class Case:
    """``lists``: (batch or 1, heads or 1) that the map has of its own; ``layout``: of q, k and v in memory;
    ``empty``: blocks of queries without keys; ``lengths``: of q and of k, for cu_seqlens."""

    name: str
    heads: int = 2
    kv_heads: int = 2
    q: int = 256
    kv: int = 256
    dim: int = 64
    block: tuple[int, int] = (64, 64)
    causal: bool = False
    density: float = 0.5
    lists: tuple[int, int] = (1, 1)
    layout: str = "bhsd"
    empty: tuple[int, ...] = ()
    documents: bool = False
    batch: int = 2
    lengths: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    dtypes: tuple[torch.dtype, ...] = field(default=(torch.float32, torch.bfloat16), repr=False)


CASES = [
    Case("plain", dtypes=tuple(EPS)),
    Case("head size 128", dim=128, block=(128, 128)),
    Case("head size 96", dim=96),
    Case("head size 20", dim=20, q=100, causal=True),
    Case("head size 256", dim=256, q=64, kv=192),
    Case("blocks 128 x 64", block=(128, 64), q=384),
    Case("blocks 64 x 128", block=(64, 128), kv=384),
    Case("causal", causal=True, density=0.7, dtypes=tuple(EPS)),
    Case("causal, more keys", causal=True, q=130, kv=400, density=0.7),
    Case("causal, fewer keys", causal=True, q=400, kv=130, density=0.7),
    Case("ragged tails", q=203, kv=301, block=(128, 128), density=0.7),
    Case("one query", q=1, kv=300),
    Case("no keys", kv=0),
    Case("ragged and causal, head size 128", q=203, kv=203, dim=128, causal=True, density=0.7),
    Case("grouped heads", heads=8, kv_heads=2, density=0.4),
    Case("one head of keys", heads=4, kv_heads=1, causal=True, lists=(1, 4)),
    Case("lists of each head", heads=4, kv_heads=4, lists=(1, 4)),
    Case("lists of each batch", lists=(2, 1)),
    Case("lists of both", heads=4, kv_heads=2, lists=(2, 4), q=200),
    Case("empty rows", empty=(0, 2), lists=(1, 2)),
    Case("nothing at all", density=0.0),
    Case("few queries", q=3, kv=200, heads=4, kv_heads=2, density=0.8),
    Case("few queries, causal", q=20, kv=150, causal=True, density=0.8),
    Case("few queries, long lists", q=5, kv=2100, heads=4, kv_heads=2, lists=(1, 4), density=0.6),
    Case("one query, long list", q=1, kv=2100, dim=128, block=(128, 128), causal=True, density=0.8),
    Case("tokens before heads", layout="bshd", heads=4, kv_heads=2),
    Case("packed q, k and v", layout="packed"),
    Case("head size not contiguous", layout="bhds"),
    Case("broadcast batch", layout="expanded"),
    Case("documents", documents=True, density=1.0),
    Case("documents, causal", documents=True, density=1.0, causal=True, q=190, kv=190),
    Case("one batch, no head shared", batch=1, heads=3, kv_heads=3, lists=(1, 3), density=0.3),
    Case("lengths", lengths=((100, 0, 64, 130), (100, 0, 64, 130)), q=192, kv=192, lists=(4, 1), batch=4),
    Case("lengths, causal", lengths=((100, 1, 130), (150, 192, 130)), q=192, kv=192, causal=True, batch=3,
         heads=4, kv_heads=2, lists=(3, 4), density=0.8),
    Case("lengths, one list", lengths=((128, 64), (128, 190)), q=128, kv=192, batch=2, density=0.8),
    Case("lengths, documents", lengths=((128, 90), (128, 90)), q=128, kv=128, batch=2, documents=True,
         density=1.0),
]  # fmt: skip


def drawn(shape, layout, dtype, device):
    """Returns a tensor [batch, heads, tokens, dim] with the layout's strides."""
    batch, heads, tokens, dim = shape
    if layout == "bshd":
        return torch.randn(batch, tokens, heads, dim, device=device).to(dtype).transpose(1, 2)
    if layout == "packed":
        return torch.randn(batch, tokens, 3, heads, dim, device=device).to(dtype)[:, :, 1].transpose(1, 2)
    if layout == "bhds":
        return torch.randn(batch, heads, dim, tokens, device=device).to(dtype).transpose(2, 3)
    if layout == "expanded":
        return torch.randn(1, heads, tokens, dim, device=device).to(dtype).expand(batch, -1, -1, -1)
    return torch.randn(shape, device=device).to(dtype)


def kept_blocks(case):
    blocks = tuple(-(-n // side) for n, side in zip((case.q, case.kv), case.block, strict=True))
    kept = torch.rand(*case.lists, *blocks) < case.density
    kept[..., list(case.empty), :] = False
    return kept


def expanded(case, kept, documents=None):
    """Returns the mask of elements [batch, heads, q, kv]."""
    mask = kept.repeat_interleave(case.block[0], -2).repeat_interleave(case.block[1], -1)
    mask = mask[..., : case.q, : case.kv].expand(case.batch, case.heads, -1, -1)
    if case.causal and case.lengths is None:
        mask = mask & torch.ones(case.q, case.kv, dtype=torch.bool).tril(case.kv - case.q)
    if documents is not None:
        mask = mask & (documents[0][:, None, :, None] == documents[1][:, None, None, :])
    return mask


def softmax_attention(q, k, v, mask, scale=None):
    """Returns out and lse by whole matrices; zeros and -inf for a query without keys."""
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    group = q.shape[1] // k.shape[1]
    k, v = (each.repeat_interleave(group, 1) for each in (k, v))
    scores = ((q @ k.transpose(-1, -2)) * scale).masked_fill(~mask, -math.inf)
    lse = scores.logsumexp(-1)
    # exp(-inf - 0) is zero, with a gradient of zero
    p = (scores - lse.masked_fill(lse == -math.inf, 0.0).unsqueeze(-1)).exp()
    return p @ v, lse


def gradients(out, lse, inputs, dout, dlse):
    lse_part = dlse.masked_fill(lse.isinf(), 0.0).to(lse.dtype)
    return torch.autograd.grad(
        [out, lse.masked_fill(lse.isinf(), 0.0)], inputs, [dout.to(out.dtype), lse_part]
    )


def require_close(name, actual, dense, exact, dtype, times=2):
    """Compares tiles of TILE tokens: at most ``times`` the worst error of whole matrices in that dtype, and a
    floor of its rounding."""
    assert actual.shape == exact.shape and actual.dtype == dense.dtype, name
    if exact.numel() == 0:
        return
    floor = EPS[dtype] * max(1.0, exact.abs().max().item())
    error, allowed = (actual.double() - exact).abs(), times * (dense.double() - exact).abs().max() + floor
    assert not error.isnan().any(), f"{name}: NaN"
    for start in range(0, error.shape[-2], TILE):
        worst = error[..., start : start + TILE, :].max()
        assert worst <= allowed, f"{name}, tokens from {start}: {worst:.3g} over {allowed:.3g}"


class Answer:
    """A case's inputs, its call and its answers in fp64 and in its dtype."""

    def __init__(self, case, dtype, device="cpu"):
        self.case, self.dtype, self.device = case, dtype, torch.device(device)
        sizes = [(case.heads, case.q), (case.kv_heads, case.kv), (case.kv_heads, case.kv)]
        self.inputs = [
            drawn((case.batch, heads, tokens, case.dim), case.layout, dtype, device).detach().requires_grad_()
            for heads, tokens in sizes
        ]
        self.kept = kept_blocks(case)
        self.documents = None
        if case.documents:
            ids = torch.randint(0, 2, (case.batch, max(case.q, case.kv))).cumsum(-1) // 40
            self.documents = ids[:, : case.q].int(), ids[:, : case.kv].int()
        self.mask = expanded(case, self.kept, self.documents).to(device)
        if case.lengths is not None:
            self._drop_beyond_lengths()
        self.dout = torch.randn(self.inputs[0].shape, device=device).to(dtype)
        self.dlse = torch.randn(self.inputs[0].shape[:3], device=device)

    def _drop_beyond_lengths(self):
        self.mask = self.mask.clone()  # it may be expanded
        for batch, (q, kv) in enumerate(zip(*self.case.lengths, strict=True)):
            mask = self.mask[batch]
            mask[:, q:] = False
            mask[:, :, kv:] = False
            if self.case.causal:
                allowed = torch.zeros_like(mask[0])
                allowed[:q, :kv] = torch.ones(q, kv, dtype=torch.bool).tril(kv - q)
                mask &= allowed

    def pattern(self):
        codes = self.kept.expand(self.case.batch if self.documents else self.kept.shape[0], -1, -1, -1)
        options = {}
        if self.documents is not None:
            q_documents, kv_documents = self.documents
            if self.case.lengths is not None:
                q_documents, kv_documents = (
                    torch.cat([row[:n] for row, n in zip(ids, lengths, strict=True)])[None]
                    for ids, lengths in zip(self.documents, self.case.lengths, strict=True)
                )
            options = {"q_documents": q_documents, "kv_documents": kv_documents}
        made = AttentionPattern.from_map(codes, self.case.block, **options)
        if self.documents is not None:
            made.indices |= AttentionPattern.PARTIAL
        return made.to(self.device)

    def run(self, **options):
        """Returns out, lse and the gradients of our call, as [batch, heads, tokens, dim]."""
        case = self.case
        if case.lengths is None:
            out, lse = sparseloom.attention(
                *self.inputs, self.pattern(), causal=case.causal, return_lse=True, **options
            )
            return out, lse, gradients(out, lse, self.inputs, self.dout, self.dlse)
        lengths = case.lengths[0], case.lengths[1], case.lengths[1]
        packed = [
            torch.cat([row[:, :n].transpose(0, 1) for row, n in zip(each, own, strict=True)])
            for each, own in zip(self.inputs, lengths, strict=True)
        ]
        starts = [F.pad(torch.tensor(own).cumsum(0), (1, 0)).int().to(self.device) for own in case.lengths]
        out, lse = sparseloom.attention(
            *packed, self.pattern(), causal=case.causal, cu_seqlens=tuple(starts), return_lse=True, **options
        )
        out, lse = self._batched(out, 0.0), self._batched(lse.transpose(0, 1), -math.inf)
        return out, lse, gradients(out, lse, self.inputs, self.dout, self.dlse)

    def _batched(self, packed, fill):
        """Returns [batch, heads, tokens, ..] of [all tokens, heads, ..]."""
        parts = packed.split(self.case.lengths[0])
        pad = self.case.q
        rows = [
            torch.cat([part, part.new_full((pad - len(part), *part.shape[1:]), fill)]).transpose(0, 1)
            for part in parts
        ]
        return torch.stack(rows)

    def check(self, times=2, **options):
        exact_inputs = [each.detach().double().requires_grad_() for each in self.inputs]
        exact = softmax_attention(*exact_inputs, self.mask)
        exact_gradients = gradients(*exact, exact_inputs, self.dout, self.dlse)
        dense_inputs = [each.detach().clone().requires_grad_() for each in self.inputs]
        dense = softmax_attention(*dense_inputs, self.mask)
        dense_gradients = gradients(*dense, dense_inputs, self.dout, self.dlse)
        out, lse, ours = self.run(**options)
        assert torch.equal(lse == -math.inf, exact[1] == -math.inf)
        require_close("out", out, dense[0], exact[0], self.dtype, times)
        no_inf = [each.masked_fill(each.isinf(), 0.0).unsqueeze(-1) for each in (lse, exact[1])]
        require_close("lse", no_inf[0], no_inf[0], no_inf[1], torch.float32)
        for name, a, b, c in zip(("dq", "dk", "dv"), ours, dense_gradients, exact_gradients, strict=True):
            require_close(name, a, b, c, self.dtype, times)
        return out, lse, ours
