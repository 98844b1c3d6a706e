"""sparseloom.attention against softmax over the expanded mask in fp64: forward, lse and gradients."""

import json
import math

import pytest
import torch
from attention_cases import CASES, Answer, Case, softmax_attention

import sparseloom
from sparseloom import AttentionPattern, Error
from sparseloom.attention import merge

TABLE = [pytest.param(case, dtype, id=f"{case.name}-{dtype}") for case in CASES for dtype in case.dtypes]


@pytest.mark.parametrize(("case", "dtype"), TABLE)
def test_forward_and_gradients(case, dtype):
    Answer(case, dtype).check()


@pytest.mark.parametrize("kernel", ["reference", "avx2_softmax", "avx512_softmax"])
@pytest.mark.parametrize(
    "case",
    [case for case in CASES if case.name not in ("plain", "head size 128")],
    ids=lambda case: case.name,
)
def test_every_kernel_of_the_cpu(case, kernel):
    for dtype in (torch.float32, torch.float16):
        answer = Answer(case, dtype)
        try:
            answer.check(kernel=kernel)
        except Error as error:
            assert "needs avx" in str(error)  # on another machine


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_16_bits_by_the_tiles_that_the_machine_has(case):
    """amx_softmax has no backward pass, so that no call is forced to it with gradients."""
    runs = [json.loads(sparseloom.ops.call("kernel_runs")).get("amx_softmax", 0)]
    Answer(case, torch.bfloat16).check()
    runs.append(json.loads(sparseloom.ops.call("kernel_runs")).get("amx_softmax", 0))
    expected = sparseloom.info()["isa_active"] == "amx"
    assert (runs[1] > runs[0]) is expected or case.kv == 0
    with pytest.raises(Error, match=r"the forward pass alone|needs amx"):
        Answer(case, torch.bfloat16).check(kernel="amx_softmax")


@pytest.mark.parametrize("scale", [0.0, -0.3])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_scales_of_zero_and_below(scale, dtype):
    q, k, v = (torch.randn(1, 2, 130, 40).to(dtype) for _ in range(3))
    kept = torch.ones(3, 3).bool().tril()
    mask = kept.repeat_interleave(64, 0).repeat_interleave(64, 1)[:130, :130].tril()
    out, lse = sparseloom.attention(
        q, k, v, AttentionPattern.from_map(kept, 64), causal=True, scale=scale, return_lse=True
    )
    exact, exact_lse = softmax_attention(q.double(), k.double(), v.double(), mask, scale)
    torch.testing.assert_close(out.double(), exact, atol=1e-5 if dtype == torch.float32 else 2e-2, rtol=1e-2)
    torch.testing.assert_close(lse.double(), exact_lse, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.name in ("grouped heads", "causal", "lengths")]
)
def test_every_number_of_threads_gives_the_same_bits(case):
    answer, threads = Answer(case, torch.float32), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = answer.run()
        torch.set_num_threads(3)
        three = answer.run()
    finally:
        torch.set_num_threads(threads)
    for a, b in zip((one[0], *one[2]), (three[0], *three[2]), strict=True):
        assert torch.equal(a, b)


def test_gradcheck():
    q, k, v = (torch.randn(1, 2, n, 8, dtype=torch.float64, requires_grad=True) for n in (70, 130, 130))
    pattern = AttentionPattern.from_map(torch.tensor([[1, 0, 1], [1, 1, 0]]).bool(), 64)
    # the lse is fp32, so that probabilities in the backward pass are, too
    assert torch.autograd.gradcheck(
        lambda *x: sparseloom.attention(*x, pattern, causal=True), (q, k, v), fast_mode=True, atol=1e-5
    )


def test_scale_and_bases_of_the_lse():
    q, k, v = (torch.randn(1, 1, 64, 64) for _ in range(3))
    pattern = torch.ones(1, 1, dtype=torch.bool)
    out, lse = sparseloom.attention(q, k, v, pattern, scale=0.5, return_lse=True)
    exact = softmax_attention(q.double(), k.double(), v.double(), torch.ones(64, 64).bool(), 0.5)
    torch.testing.assert_close(out.double(), exact[0], atol=1e-5, rtol=0)
    torch.testing.assert_close(lse.double(), exact[1], atol=1e-5, rtol=0)
    _, base2 = sparseloom.attention(q, k, v, pattern, scale=0.5, return_lse=True, base2=True)
    torch.testing.assert_close(base2 * math.log(2), lse)


@pytest.mark.parametrize("compiled", [False, True])
def test_one_tensor_of_starts_serves_q_and_k(compiled):
    starts = torch.tensor([0, 100, 256]).int()
    q, k, v = (torch.randn(256, 2, 64, requires_grad=True) for _ in range(3))
    pattern = AttentionPattern.from_map(torch.ones(3, 3).bool(), 64)

    def call(q, k, v):
        return sparseloom.attention(q, k, v, pattern, causal=True, cu_seqlens=starts)

    out = (torch.compile(call, fullgraph=True) if compiled else call)(q, k, v)
    parts = [
        torch.nn.functional.scaled_dot_product_attention(
            *(x[part].transpose(0, 1) for x in (q, k, v)), is_causal=True
        ).transpose(0, 1)
        for part in (slice(0, 100), slice(100, 256))
    ]
    torch.testing.assert_close(out, torch.cat(parts))
    grads = [torch.autograd.grad(each.sum(), [q, k, v]) for each in (out, torch.cat(parts))]
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("base2", [False, True])
def test_merge_of_halves_of_the_keys_is_the_whole(base2):
    answer = Answer(Case("halves", q=130, empty=(2,)), torch.float64)
    pattern = answer.pattern()
    whole, lse, gradients = answer.run()
    q, k, v = answer.inputs
    kept = pattern.map()
    parts = [
        sparseloom.attention(q, k[:, :, half], v[:, :, half], kept[..., blocks], return_lse=True, base2=base2)
        for half, blocks in ((slice(0, 128), slice(0, 2)), (slice(128, 256), slice(2, 4)))
    ]
    out, total = merge(parts, base2)
    torch.testing.assert_close(out, whole, atol=1e-6, rtol=0)
    torch.testing.assert_close(total * (math.log(2) if base2 else 1), lse, atol=1e-5, rtol=0)
    ours = torch.autograd.grad(
        [out, (total * (math.log(2) if base2 else 1)).masked_fill(total.isinf(), 0.0)], answer.inputs,
        [answer.dout, answer.dlse.masked_fill(total.isinf(), 0.0)],
    )  # fmt: skip
    for a, b in zip(ours, gradients, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kernel", ["", "reference"])
def test_a_nan_spreads_to_the_queries_that_meet_it_alone(kernel):
    q, k, v = (torch.randn(1, 1, 128, 64) for _ in range(3))
    k[0, 0, 100] = math.nan
    out = sparseloom.attention(q, k, v, torch.tensor([[1, 0], [1, 1]]).bool(), kernel=kernel)
    assert not out[:, :, :64].isnan().any() and out[:, :, 64:].isnan().all()
    causal = sparseloom.attention(q, k, v, torch.ones(2, 2).bool(), causal=True, kernel=kernel)
    assert not causal[:, :, :100].isnan().any() and causal[:, :, 100:].isnan().all()


def test_infinite_scores():
    q, k, v = (torch.randn(1, 1, 64, 64) for _ in range(3))
    k[0, 0, 3] = -math.inf
    q = q.abs()
    exact, _ = softmax_attention(q, k, v, torch.ones(64, 64).bool())
    torch.testing.assert_close(sparseloom.attention(q, k, v, torch.ones(1, 1).bool()), exact)


@pytest.mark.parametrize("shape", [(0, 2, 64, 64), (2, 2, 0, 64)])
def test_nothing_to_compute(shape):
    q = torch.randn(shape, requires_grad=True)
    k, v = (torch.randn(shape[0], 2, 64, 64, requires_grad=True) for _ in range(2))
    blocks = -(-shape[2] // 64)
    pattern = AttentionPattern.from_map(torch.ones(blocks, 1).bool(), 64)
    out = sparseloom.attention(q, k, v, pattern)
    assert out.shape == q.shape
    for gradient in torch.autograd.grad(out.sum(), [q, k, v]):
        assert not gradient.any()


def test_the_result_has_the_layout_of_its_query():
    pattern = torch.ones(2, 2).bool()
    for layout, order in (("bhsd", (0, 1, 2, 3)), ("bshd", (0, 2, 1, 3))):
        answer = Answer(Case(layout, layout=layout, q=128, kv=128), torch.float32)
        out = sparseloom.attention(*answer.inputs, pattern)
        assert out.permute(order).is_contiguous()
