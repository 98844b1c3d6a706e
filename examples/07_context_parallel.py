"""One long sequence over two processes: each attends with its own queries to one part of the keys after the
other, and puts the partial results together by their lse. Result and gradients are those of one process."""

import tempfile
import warnings

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed._functional_collectives import all_gather_tensor_autograd

from sparseloom import AttentionPattern, attention
from sparseloom.attention import merge, patterns

TOKENS, WORLD = 1024, 2
SHARE = TOKENS // WORLD


def whole() -> tuple[list[torch.Tensor], torch.Tensor, AttentionPattern]:
    """Returns q, k and v of all tokens, the gradient of the result, and a causal pattern."""
    torch.manual_seed(0)
    q, k, v, dout = (torch.randn(1, heads, TOKENS, 64) for heads in (4, 2, 2, 4))
    window = patterns.sliding_window(TOKENS, 200, block=64, causal=True)
    return [q, k, v], dout, window | patterns.global_tokens(TOKENS, 64, block=64, causal=True)


def worker(rank: int, store: str) -> None:
    warnings.simplefilter("ignore", FutureWarning)  # torch 2.13 renames this collective
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD)
    inputs, dout, pattern = whole()
    own, blocks = slice(rank * SHARE, (rank + 1) * SHARE), SHARE // 64
    q, k, v = mine = [each[:, :, own].clone().requires_grad_() for each in inputs]
    # A ring would pass the parts on while the one before is attended to.
    keys, values = (all_gather_tensor_autograd(each, 0, dist.group.WORLD).chunk(WORLD) for each in (k, v))
    rows, parts = pattern.map()[:, :, rank * blocks : (rank + 1) * blocks], []
    for part in range(rank + 1):  # keys of later parts lie beyond the diagonal
        kept = rows[..., part * blocks : (part + 1) * blocks]
        causal = part == rank
        parts.append(attention(q, keys[part], values[part], kept, causal=causal, return_lse=True))
    out, _ = merge(parts)
    out.backward(dout[:, :, own])

    alone = [each.clone().requires_grad_() for each in inputs]
    expected = attention(*alone, pattern)
    expected.backward(dout)
    torch.testing.assert_close(out, expected[:, :, own], atol=1e-5, rtol=1e-4)
    for name, each, exact in zip("qkv", mine, alone, strict=True):
        torch.testing.assert_close(each.grad, exact.grad[:, :, own], atol=1e-4, rtol=1e-4)
        print(f"rank {rank}: d{name} {tuple(each.grad.shape)} is that of one process")
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.NamedTemporaryFile() as store:
        mp.spawn(worker, (store.name + ".store",), WORLD)
