"""A pattern from the tokens themselves: mean-pooled queries and keys score the blocks, and each block of
queries meets the best ones of its budget. Nothing is read on the host, so all of it may run on a GPU inside
of one graph."""

import torch
import torch.nn.functional as F

import sparseloom
from sparseloom import AttentionPattern
from sparseloom.attention import patterns


def scored(q: torch.Tensor, k: torch.Tensor, budget: int, block: int = 64) -> AttentionPattern:
    """Returns the pattern of each batch and head that keeps ``budget`` blocks of keys for each block of
    queries. Means and scores are in float32: in 16 bits close blocks would trade places."""
    group = q.shape[1] // k.shape[1]
    pooled = [F.avg_pool1d(each.float().flatten(0, 1).mT, block, ceil_mode=True).mT for each in (q, k)]
    q_means, k_means = (each.unflatten(0, x.shape[:2]) for each, x in zip(pooled, (q, k), strict=True))
    scores = q_means @ k_means.repeat_interleave(group, 1).mT
    best = scores.topk(budget, -1).indices.sort(-1).values
    counts = best.new_full(best.shape[:-1], budget)
    return AttentionPattern(counts, best, block, kv_blocks=scores.shape[-1])


if __name__ == "__main__":
    torch.manual_seed(0)
    tokens, blocks = 2048, 32
    # Tokens of a block are alike, as neighbours in text and video are.
    alike = torch.randn(1, 4, blocks, 1, 64).expand(-1, -1, -1, 64, -1).flatten(2, 3)
    q, k = (alike + torch.randn(1, 4, tokens, 64) for _ in range(2))
    v = torch.randn(1, 4, tokens, 64)
    dense = F.scaled_dot_product_attention(q, k, v)
    for budget in (2, 4, 8, 16):
        pattern = scored(q, k, budget)
        out, lse = sparseloom.attention(q, k, v, pattern, return_lse=True)
        full = sparseloom.attention(q, k, v, patterns.full(tokens), return_lse=True)[1]
        mass = (lse - full).exp().mean()
        error = (out - dense).norm() / dense.norm()
        print(f"{pattern.density:.0%} of the blocks: {mass:.1%} of the softmax, error {error:.2g}")
