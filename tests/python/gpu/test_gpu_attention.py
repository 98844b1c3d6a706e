"""sparseloom.attention on a GPU: the CPU's cases, equal bits, graphs whose pattern changes, errors."""

import pytest
import torch
from attention_cases import CASES, Answer, Case

import sparseloom
from sparseloom import AttentionPattern, Error
from sparseloom.attention import patterns

pytestmark = pytest.mark.gpu
TABLE = [
    pytest.param(case, dtype, id=f"{case.name}-{dtype}")
    for case in [
        *CASES,
        Case("many tiles", heads=8, kv_heads=8, q=1500, kv=1500, density=0.3, lists=(1, 8), dim=128),
        Case("many tiles of 128", heads=8, kv_heads=4, q=2500, kv=2500, block=(128, 128), dim=128,
             density=0.3, lists=(2, 8), layout="bshd"),
        Case("many tiles, causal", heads=8, kv_heads=2, q=1500, kv=2100, block=(128, 64), causal=True),
    ]
    if case.dim in (64, 128)
    for dtype in (torch.bfloat16, torch.float16)
]  # fmt: skip


@pytest.mark.parametrize("kernel", ["sm90_wgmma", "sm80_mma"])
@pytest.mark.parametrize(("case", "dtype"), TABLE)
def test_forward_and_gradients_have_the_same_bits_in_every_run(case, dtype, kernel):
    answer = Answer(case, dtype, "cuda")
    try:
        out, lse, ours = answer.check(kernel=kernel)
    except Error as error:
        assert "Hopper" in str(error)  # on another GPU
        return
    for _ in range(3):
        again = answer.run(kernel=kernel)
        for a, b in zip((out, lse, *ours), (again[0], again[1], *again[2]), strict=True):
            assert torch.equal(a, b)


def test_lists_on_a_gpu_are_those_of_the_cpu():
    for rows, columns, density in (
        (1, 1, 1.0),
        (3, 70, 0.3),
        (512, 512, 0.25),
        (1100, 40, 0.05),
        (40, 40, 0.0),
    ):
        kept = torch.rand(2, 3, rows, columns) < density
        there = AttentionPattern.from_map(kept.cuda(), 64)
        here = AttentionPattern.from_map(kept, 64)
        assert torch.equal(there.map().cpu(), kept)
        there.indices |= AttentionPattern.PARTIAL
        here.indices |= AttentionPattern.PARTIAL
        counts, indices = (each.cpu() for each in there.keys(columns))
        wanted_counts, wanted = here.keys(columns)
        assert torch.equal(counts, wanted_counts)
        listed = torch.arange(indices.shape[-1]) < counts[..., None]
        assert torch.equal(indices[listed], wanted[listed])


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


@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("block", [64, 128])
def test_sequences_do_not_see_the_nan_of_their_neighbours(dim, block):
    lengths = [100, 64, 200]
    starts = torch.tensor([0, 100, 164, 364], dtype=torch.int32, device="cuda")
    q, k, v = (torch.randn(364, 2, dim, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    dout = torch.randn_like(q)
    for each in (q, k, v, dout):
        each[100:164] = torch.nan
    inputs = [each.requires_grad_() for each in (q, k, v)]
    blocks = -(-max(lengths) // block)
    pattern = AttentionPattern.from_map(torch.ones(blocks, blocks, device="cuda").bool(), block)
    out = sparseloom.attention(*inputs, pattern, cu_seqlens=starts)
    results = [out, *torch.autograd.grad(out, inputs, dout)]
    for result in results:
        assert not result[:100].isnan().any() and not result[164:].isnan().any()


def test_refusals_name_what_they_need():
    pattern = torch.ones(2, 2, device="cuda").bool()

    def call(dtype=torch.bfloat16, dim=64, shift=0, **options):
        memory = torch.randn(1, 1, 128, dim + 8, device="cuda").to(dtype)
        q = memory[..., shift : shift + dim]
        return sparseloom.attention(q, q, q, pattern, **options)

    for options, words in (
        ({"dtype": torch.float32}, "bf16 and f16"),
        ({"dim": 96}, "head sizes of 64 and 128"),
        ({"shift": 1}, "multiples of 16 bytes"),
        ({"scale": -1.0}, "a positive scale"),
    ):
        with pytest.raises(Error, match=words):
            call(**options)


def test_more_tokens_than_the_pattern_has_room_for_are_refused():
    q = torch.randn(300, 2, 64, device="cuda", dtype=torch.bfloat16)
    starts = torch.tensor([0, 150, 300], dtype=torch.int32, device="cuda")
    pattern = AttentionPattern.from_map(torch.ones(2, 2, device="cuda").bool(), 64)
    with pytest.raises(Error, match="at most 256 tokens of q: 2 sequences of 128"):
        sparseloom.attention(q, q, q, pattern, cu_seqlens=starts)


@pytest.mark.parametrize("shape", [(0, 2, 64, 64), (2, 2, 0, 64)])
def test_nothing_to_compute(shape):
    q = torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    k, v = (
        torch.randn(shape[0], 2, 64, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        for _ in range(2)
    )
    pattern = AttentionPattern.from_map(torch.ones(-(-shape[2] // 64), 1, device="cuda").bool(), 64)
    out = sparseloom.attention(q, k, v, pattern)
    assert out.shape == q.shape
    for gradient in torch.autograd.grad(out.sum(), [q, k, v]):
        assert not gradient.any()


def test_compiled_as_one_graph():
    kept = torch.rand(1, 2, 8, 8, device="cuda") < 0.5
    pattern = AttentionPattern.from_map(kept, 64)
    q, k, v = (
        torch.randn(1, 2, 512, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)
    )

    def step(q, k, v):
        return sparseloom.attention(q * 0.5, k, v, pattern, causal=True).square().sum()

    compiled = torch.compile(step, fullgraph=True)
    got, expected = (torch.autograd.grad(f(q, k, v), (q, k, v)) for f in (compiled, step))
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, atol=5e-2, rtol=5e-2)
