"""sparseloom.attention on a GPU: the cases of the CPU, equal bits, graphs whose pattern changes, errors."""

import pytest
import torch
from attention_cases import CASES, Answer, Case, softmax_attention

import sparseloom
from sparseloom import AttentionPattern, Error

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


@pytest.fixture
def deterministic(request):
    torch.use_deterministic_algorithms(request.param)
    yield request.param
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("deterministic", [False, True], indirect=True, ids=["free", "deterministic"])
@pytest.mark.parametrize(("case", "dtype"), TABLE)
def test_forward_and_gradients(case, dtype, deterministic):
    answer = Answer(case, dtype, "cuda")
    out, lse, ours = answer.check()
    again = answer.run()
    assert torch.equal(out, again[0]) and torch.equal(lse, again[1])
    if deterministic:
        for a, b in zip(ours, again[2], strict=True):
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
        for got, expected in zip(there.keys(columns), here.keys(columns), strict=True):
            assert got.shape[:3] == expected.shape[:3]
        counts, indices = (each.cpu() for each in there.keys(columns))
        wanted_counts, wanted = here.keys(columns)
        assert torch.equal(counts, wanted_counts)
        listed = torch.arange(indices.shape[-1]) < counts[..., None]
        assert torch.equal(indices[listed], wanted[listed])


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


def test_a_graph_replays_with_another_pattern():
    kept = torch.rand(1, 4, 12, 12, device="cuda") < 0.4
    q, k, v = (
        torch.randn(1, 4, 768, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)
    )
    dout = torch.randn_like(q)
    first = AttentionPattern.from_map(kept, 64)
    pattern = AttentionPattern(first.counts, first.indices, 64, kv_blocks=12, dynamic=True)

    def step():
        out = sparseloom.attention(q, k, v, pattern)
        return out, *torch.autograd.grad(out, (q, k, v), dout)

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step()
    other = AttentionPattern.from_map(torch.rand(1, 4, 12, 12, device="cuda") < 0.6, 64)
    pattern.counts.copy_(other.counts)
    pattern.indices.copy_(other.indices)
    graph.replay()
    for got, expected in zip(results, step(), strict=True):
        torch.testing.assert_close(got, expected)
    mask = other.map().repeat_interleave(64, -1).repeat_interleave(64, -2)
    exact, _ = softmax_attention(*(each.detach().double() for each in (q, k, v)), mask)
    torch.testing.assert_close(results[0].double(), exact, atol=2e-2, rtol=0)


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
    with pytest.raises(Error, match="cpu"):
        sparseloom.attention(*(torch.randn(1, 1, 128, 64) for _ in range(3)), pattern)


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
