"""sparseloom.attention on a GPU: the CPU's cases, graphs whose pattern changes, determinism."""

import pytest
import torch
from attention_cases import CASES, Answer, Case

import sparseloom
from sparseloom import AttentionPattern
from sparseloom.attention import patterns

pytestmark = pytest.mark.gpu
#: Head sizes that CUDA kernels have.
CASES = [case for case in CASES if case.dim in (64, 128)]
DTYPES = [torch.bfloat16, torch.float16]
LONG = [
    Case("long", q=2048, kv=2048, heads=4, kv_heads=2, block=(128, 128), density=0.25, lists=(1, 4)),
    Case("long, causal", q=1999, kv=2048, heads=4, kv_heads=4, dim=128, causal=True, lists=(2, 1)),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES + LONG, ids=lambda case: case.name)
def test_forward_and_gradients(case, dtype):
    Answer(case, dtype, "cuda").check()


@pytest.mark.parametrize("case", LONG, ids=lambda case: case.name)
def test_deterministic_gradients_have_the_same_bits(case):
    answer = Answer(case, torch.bfloat16, "cuda")
    torch.use_deterministic_algorithms(True)
    try:
        first = answer.check()
        for _ in range(5):
            again = answer.run()
            for a, b in zip((first[0], *first[2]), (again[0], *again[2]), strict=True):
                assert torch.equal(a, b)
    finally:
        torch.use_deterministic_algorithms(False)


def test_the_transposition_is_the_cpus():
    pattern = AttentionPattern.from_map(torch.rand(2, 3, 70, 50) < 0.3, 64)
    pattern.indices[..., 0] |= AttentionPattern.PARTIAL
    on_gpu = AttentionPattern(pattern.counts.cuda(), pattern.indices.cuda(), 64, kv_blocks=50)
    (counts, indices), (expected, entries) = on_gpu.keys(50), pattern.keys(50)
    assert torch.equal(counts.cpu(), expected)
    listed = torch.arange(70) < expected[..., None]
    assert torch.equal(indices.cpu()[listed], entries[listed])


def test_a_graph_whose_pattern_changes_between_replays():
    q, k, v = (torch.randn(1, 4, 1024, 64, device="cuda").bfloat16().requires_grad_() for _ in range(3))
    kept, dout = torch.rand(4, 8, 8, device="cuda") < 0.5, torch.randn_like(q)

    def step():
        pattern = AttentionPattern.from_map(kept, dynamic=True)
        out = sparseloom.attention(q, k, v, pattern, causal=True)
        return out, *torch.autograd.grad(out, [q, k, v], dout)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step()
    for density in (0.2, 0.9):
        kept.copy_(torch.rand(4, 8, 8, device="cuda") < density)
        graph.replay()
        captured = [each.clone() for each in results]
        for a, b in zip(captured, step(), strict=True):
            torch.testing.assert_close(a, b)


def test_nothing_is_read_on_the_host():
    q, k, v = (torch.randn(1, 4, 1024, 64, device="cuda").bfloat16().requires_grad_() for _ in range(3))
    pattern = patterns.sliding_window(1024, 100, causal=True).to("cuda")
    sparseloom.attention(q, k, v, pattern).sum().backward()
    torch.cuda.set_sync_debug_mode("error")
    try:
        sparseloom.attention(q, k, v, pattern).sum().backward()
        kept = pattern.map() & True
        sparseloom.attention(q, k, v, kept).sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
