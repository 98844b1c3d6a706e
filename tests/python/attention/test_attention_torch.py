"""sparseloom.attention in torch's world: compile, export, autocast, checkpoints, transforms, errors."""

import json

import pytest
import torch
from attention_cases import Answer, Case
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import sparseloom
from sparseloom import AttentionPattern, Error
from sparseloom.attention import patterns, plan
from sparseloom.nn import BlockSparseSelfAttention


def inputs(dtype=torch.float32, tokens=256, heads=2):
    return [torch.randn(1, heads, tokens, 64, dtype=dtype, requires_grad=True) for _ in range(3)]


@pytest.mark.parametrize("case", [
    Case("heads first"), Case("tokens first", layout="bshd", causal=True), Case("grouped", heads=4, q=200),
    Case("documents", documents=True, density=1.0),
])  # fmt: skip
def test_compiled_whole(case):
    answer, torch_compile = Answer(case, torch.float32), torch.compile
    pattern = answer.pattern()

    def call(q, k, v):
        out, lse = sparseloom.attention(q * 2, k, v, pattern, causal=case.causal, return_lse=True)
        return out + 1, lse

    results = []
    for run in (call, torch_compile(call, fullgraph=True)):
        out, lse = run(*answer.inputs)
        gradients = torch.autograd.grad([out, lse], answer.inputs, [answer.dout, answer.dlse])
        results.append((out, lse, *gradients))
    for eager, compiled in zip(*results, strict=True):
        torch.testing.assert_close(compiled, eager)
        assert compiled.stride() == eager.stride()


def test_a_map_is_converted_inside_a_compiled_function():
    q, k, v = inputs()
    kept = torch.rand(4, 4) < 0.5
    call = torch.compile(lambda kept: sparseloom.attention(q, k, v, kept), fullgraph=True)
    torch.testing.assert_close(call(kept), sparseloom.attention(q, k, v, kept))
    torch.testing.assert_close(call(~kept), sparseloom.attention(q, k, v, ~kept))


def test_a_pattern_is_generated_inside_a_compiled_function_for_any_length():
    def call(q):
        pattern = patterns.sliding_window(q.shape[2], 64, block=64, causal=True)
        return sparseloom.attention(q, q, q, pattern)

    compiled = torch.compile(call, fullgraph=True, dynamic=True)
    for tokens in (256, 320, 500):
        q = torch.randn(1, 2, tokens, 64)
        torch.testing.assert_close(compiled(q), call(q))


def test_exported():
    class Model(torch.nn.Module):
        def forward(self, q, k, v, kept):
            return sparseloom.attention(q, k, v, AttentionPattern.from_map(kept, 64), causal=True)

    args = (*(each.detach() for each in inputs()), torch.rand(4, 4) < 0.5)
    exported = torch.export.export(Model(), args)
    torch.testing.assert_close(exported.module()(*args), Model()(*args))
    assert "sparseloom.block_attention" in str(exported.graph)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_operator_checks(dtype):
    q, k, v = inputs(dtype)
    pattern = patterns.sliding_window(256, 64, block=64, causal=True)
    arguments = q, k, v, pattern.counts, pattern.indices, 64, 64, True, 0.125
    torch.library.opcheck(
        torch.ops.sparseloom.block_attention.default, arguments,
        # aot_dispatch compares the gradient of lse, whose zeros it makes itself
        test_utils=("test_schema", "test_faketensor", "test_aot_dispatch_dynamic"),
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype):
    q, k, v = inputs()
    pattern = patterns.full(256, block=64)
    with torch.autocast("cpu", dtype):
        out = sparseloom.attention(q, k, v, pattern)
    assert out.dtype == dtype
    expected = sparseloom.attention(*(each.to(dtype) for each in (q, k, v)), pattern)
    assert torch.equal(out, expected)
    assert all(each.dtype == torch.float32 for each in torch.autograd.grad(out.sum(), [q, k, v]))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints(reentrant):
    answer = Answer(Case("checkpoint", causal=True), torch.float32)
    pattern = answer.pattern()

    def block(q, k, v):
        return sparseloom.attention(q, k, v, pattern, causal=True)

    plain = torch.autograd.grad(block(*answer.inputs), answer.inputs, answer.dout)
    again = [each.detach().requires_grad_() for each in answer.inputs]
    checkpoint(block, *again, use_reentrant=reentrant).backward(answer.dout)
    for a, b in zip(plain, again, strict=True):
        assert torch.equal(a, b.grad)


def test_selective_checkpoints_keep_the_operator():
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    q, k, v = inputs()
    pattern, runs = patterns.full(256, block=64), []

    def policy(ctx, op, *args, **kwargs):
        runs.append(op is torch.ops.sparseloom.block_attention.default)
        return CheckpointPolicy.MUST_SAVE if runs[-1] else CheckpointPolicy.PREFER_RECOMPUTE

    out = checkpoint(
        lambda q: sparseloom.attention(q, k, v, pattern).square(), q, use_reentrant=False,
        context_fn=lambda: create_selective_checkpoint_contexts(policy),
    )  # fmt: skip
    out.sum().backward()
    expected = torch.autograd.grad(sparseloom.attention(q, k, v, pattern).square().sum(), q)[0]
    torch.testing.assert_close(q.grad, expected)
    assert any(runs)


def test_dynamic_lists_are_transposed_in_each_backward_pass():
    q, k, v = inputs()
    pattern = AttentionPattern.from_map(torch.ones(4, 4).bool(), 64)
    dynamic = AttentionPattern(pattern.counts, pattern.indices, 64, dynamic=True)
    pairs = [
        torch.autograd.grad(sparseloom.attention(q, k, v, p).sum(), [q, k, v]) for p in (pattern, dynamic)
    ]
    assert all(torch.equal(a, b) for a, b in zip(*pairs, strict=True))
    assert dynamic._keys is None


def test_needed_gradients_alone():
    q, k, v = inputs()
    pattern = patterns.full(256, block=64)
    k.requires_grad_(False)
    sparseloom.attention(q, k, v, pattern).sum().backward()
    assert q.grad is not None and k.grad is None and v.grad is not None
    _, lse = sparseloom.attention(q, k, v, pattern, return_lse=True)
    assert torch.autograd.grad(lse.sum(), q)[0].any()


def test_flops_count_the_lists():
    q, k, v = inputs()
    pattern = patterns.sliding_window(256, 0, block=64)
    with FlopCounterMode(display=False) as counter:
        sparseloom.attention(q, k, v, pattern).sum().backward()
    pairs = 2 * 4 * 64 * pattern.indices.shape[-1] * 64 * 64
    assert counter.get_total_flops() == 4 * pairs + 10 * pairs


@pytest.mark.parametrize(("dtype", "backward"), [(torch.float32, False), (torch.bfloat16, True)])
def test_plans_name_the_kernel_that_runs(dtype, backward):
    q, k, v = inputs(dtype)
    pattern = patterns.full(256, block=64)
    chosen = plan(q, k, pattern, backward=backward)
    before = runs().get(chosen["kernel"], 0)
    sparseloom.attention(q, k, v, pattern).sum().backward()
    assert runs()[chosen["kernel"]] > before
    assert "head_dim=64" in chosen["text"] and chosen["predicted_us"] > 0
    with pytest.raises(Error, match="strict forbids the reference"):
        plan(q.double(), k.double(), pattern, strict=True)


def runs():
    return json.loads(torch.ops.sparseloom.kernel_runs())


def test_transforms_are_refused():
    q, k, v = inputs()
    pattern = patterns.full(256, block=64)

    def total(q):
        return sparseloom.attention(q, k, v, pattern).sum()

    with pytest.raises(Error, match=r"outside of torch\.func"):
        torch.func.grad(total)(q)
    with pytest.raises(Error, match=r"outside of torch\.func"):
        torch.vmap(lambda q: sparseloom.attention(q, k, v, pattern))(q[None])
    first = torch.autograd.grad(total(q), q, create_graph=True)[0]
    with pytest.raises(Error, match="a second backward"):
        first.sum().backward()


def test_batched_gradients():
    q, k, v = inputs()
    out = sparseloom.attention(q, k, v, patterns.sliding_window(256, 64, block=64))
    douts = torch.randn(3, *out.shape)
    batched = torch.autograd.grad(out, [q, k, v], douts, retain_graph=True, is_grads_batched=True)
    for i, dout in enumerate(douts):
        alone = torch.autograd.grad(out, [q, k, v], dout, retain_graph=True)
        for a, b in zip(batched, alone, strict=True):
            torch.testing.assert_close(a[i], b)


def test_a_module_with_its_pattern_is_exported_and_saved(tmp_path):
    module = BlockSparseSelfAttention(128, 2, pattern=patterns.full(256, block=64), causal=True)
    x = torch.randn(2, 256, 128)
    torch.export.save(torch.export.export(module, (x,)), tmp_path / "module.pt2")
    torch.testing.assert_close(torch.export.load(tmp_path / "module.pt2").module()(x), module(x))
    torch.save(module, tmp_path / "module.pt")
    assert torch.equal(torch.load(tmp_path / "module.pt", weights_only=False)(x), module(x))


def test_meta_tensors():
    q, k, v = (torch.empty(1, 2, 256, 64, device="meta") for _ in range(3))
    pattern = patterns.full(256, block=64).to("meta")
    assert sparseloom.attention(q, k, v, pattern).shape == q.shape


WRONG = [
    ("q as a list", lambda q, k, v, p: sparseloom.attention([q], k, v, p), "q as a tensor"),
    ("three dimensions", lambda q, k, v, p: sparseloom.attention(q[0], k, v, p), r"q \[batch, heads"),
    ("a nested tensor", lambda q, k, v, p: sparseloom.attention(
        torch.nested.nested_tensor([q[0], q[0]]), k, v, p), "q strided"),
    ("other blocks", lambda q, k, v, p: sparseloom.attention(q[:, :, :100], k, v, p),
     "a pattern of 2 x 4 blocks"),
    ("a map of no blocks", lambda q, k, v, p: sparseloom.attention(q, k, v, torch.ones(5, 4).bool()),
     "2 or 4 blocks for 256 queries"),
    ("a float map", lambda q, k, v, p: sparseloom.attention(q, k, v, torch.ones(4, 4)), "a bool map"),
    ("no pattern", lambda q, k, v, p: sparseloom.attention(q, k, v, None), "a pattern of blocks"),
    ("blocks of 32", lambda q, k, v, p: AttentionPattern.from_map(torch.ones(8, 8).bool(), 32), "64 or 128"),
    ("heads", lambda q, k, v, p: sparseloom.attention(torch.cat([q, q[:, :1]], 1), k, v, p), "a multiple of"),
    ("head sizes", lambda q, k, v, p: sparseloom.attention(q[..., :32], k, v, p), "head size"),
    ("dtypes", lambda q, k, v, p: sparseloom.attention(q, k.bfloat16(), v, p), "bf16"),
    ("integers", lambda q, k, v, p: sparseloom.attention(q.int(), k.int(), v.int(), p), "attention"),
    ("lists of a third head", lambda q, k, v, p: sparseloom.attention(
        q, k, v, p.map().expand(1, 3, -1, -1)), "2 or 1, blocks"),
    ("a block out of range", lambda q, k, v, p: sparseloom.attention(
        q, k, v, AttentionPattern(p.counts, p.indices + 1, 64)), "blocks 0 to 3"),
    ("descending blocks", lambda q, k, v, p: sparseloom.attention(
        q, k, v, AttentionPattern(p.counts, p.indices.flip(-1), 64)), "ascending blocks, got 2 after 3"),
    ("a count beyond the capacity", lambda q, k, v, p: sparseloom.attention(
        q, k, v, AttentionPattern(p.counts + 1, p.indices, 64)), "0 to 4 entries, got a count of 5"),
    ("partial blocks without documents", lambda q, k, v, p: sparseloom.attention(
        q, k, v, AttentionPattern(p.counts, p.indices | p.PARTIAL, 64)), "no partial blocks"),
    ("one kind of documents", lambda q, k, v, p: AttentionPattern(
        p.counts, p.indices, 64, q_documents=torch.zeros(256).int()), "documents of queries and of keys"),
    ("starts of floats", lambda q, k, v, p: sparseloom.attention(
        q[0].transpose(0, 1), k[0].transpose(0, 1), v[0].transpose(0, 1), p, cu_seqlens=torch.ones(2)),
     "cu_seqlens as int32"),
    ("starts that end early", lambda q, k, v, p: sparseloom.attention(
        q[0].transpose(0, 1), k[0].transpose(0, 1), v[0].transpose(0, 1), p,
        cu_seqlens=torch.tensor([0, 255]).int()), "ascending from 0 to all 256 tokens"),
    ("starts of no sequence", lambda q, k, v, p: sparseloom.attention(
        q[0].transpose(0, 1), k[0].transpose(0, 1), v[0].transpose(0, 1), p,
        cu_seqlens=torch.tensor([0]).int()), "ascending from 0 to all 256 tokens"),
    ("a sequence beyond the pattern", lambda q, k, v, p: sparseloom.attention(
        torch.cat([q[0], q[0]], 1).transpose(0, 1), k[0].transpose(0, 1), v[0].transpose(0, 1), p,
        cu_seqlens=(torch.tensor([0, 512]).int(), torch.tensor([0, 256]).int())), "at most 256 tokens"),
    ("strict", lambda q, k, v, p: sparseloom.attention(
        q.double(), k.double(), v.double(), p, strict=True), "strict forbids the reference"),
    ("an unknown kernel", lambda q, k, v, p: sparseloom.attention(q, k, v, p, kernel="fast"), "kernel"),
    ("a flag", lambda q, k, v, p: sparseloom.attention(q, k, v, p, causal=1), "causal to be a bool"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "call", "text"), WRONG, ids=[name for name, *_ in WRONG])
def test_errors(name, call, text):
    with pytest.raises(Error, match=text):
        call(*(each.detach() for each in inputs()), patterns.full(256, block=64))
