"""BlockSparseSelfAttention, and the function for serving stacks."""

import copy

import pytest
import torch
import torch.nn.functional as F

import sparseloom
from sparseloom import Error
from sparseloom.attention import patterns, serve
from sparseloom.nn import BlockSparseSelfAttention


def dense_twin(module, x, mask):
    heads = module.num_heads, module.kv_heads, module.kv_heads
    q, k, v = module.qkv(x).unflatten(-1, (-1, module.head_dim)).transpose(1, 2).split(heads, 1)
    out = F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)
    return module.out_proj(out.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("kv_heads", [None, 2])
@pytest.mark.parametrize("pattern", [
    patterns.sliding_window(200, 64, block=64),
    lambda tokens: patterns.sliding_window(tokens, 64, block=64),
], ids=["pattern", "function"])  # fmt: skip
def test_self_attention(kv_heads, pattern):
    module = BlockSparseSelfAttention(256, 4, pattern=pattern, kv_heads=kv_heads)
    x = torch.randn(2, 200, 256, requires_grad=True)
    kept = patterns.sliding_window(200, 64, block=64).map()
    mask = kept.repeat_interleave(64, 2).repeat_interleave(64, 3)[..., :200, :200]
    y, exact = module(x), dense_twin(module, x, mask)
    torch.testing.assert_close(y, exact, atol=1e-4, rtol=1e-4)
    parameters = [x, *module.parameters()]
    dy = torch.randn_like(y)
    both = (torch.autograd.grad(each, parameters, dy) for each in (y, exact))
    for a, b in zip(*both, strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


def test_life_of_a_module():
    module = BlockSparseSelfAttention(128, 2, pattern=patterns.full(128, block=64), causal=True)
    x = torch.randn(1, 128, 128)
    twin = copy.deepcopy(module)
    assert torch.equal(twin(x), module(x)) and twin.pattern.counts is not module.pattern.counts
    twin.load_state_dict(module.state_dict())
    assert "kv_heads=2" in repr(module) and set(module.state_dict()) == {
        "qkv.weight", "qkv.bias", "out_proj.weight", "out_proj.bias",
    }  # fmt: skip
    half = copy.deepcopy(module).bfloat16()
    assert half.pattern.counts.dtype == torch.int32 and half(x.bfloat16()).dtype == torch.bfloat16
    assert module.to("meta")(x.to("meta")).is_meta
    compiled = torch.compile(twin, fullgraph=True)
    torch.testing.assert_close(compiled(x), twin(x))


@pytest.mark.parametrize(("arguments", "text"), [
    ({"embed_dim": 100, "num_heads": 3}, "a multiple of num_heads"),
    ({"embed_dim": 128, "num_heads": 4, "kv_heads": 3}, "and that one of kv_heads"),
    ({"embed_dim": 128, "num_heads": 0}, "num_heads to be an int >= 1"),
    ({"embed_dim": 128, "num_heads": 2, "pattern": torch.ones(2, 2)}, "an AttentionPattern, or a function"),
])  # fmt: skip
def test_wrong_arguments(arguments, text):
    with pytest.raises(Error, match=text):
        BlockSparseSelfAttention(**{"pattern": patterns.full(128), **arguments})


def test_serving_layout():
    q, k, v = (torch.randn(2, 128, heads, 64) for heads in (4, 2, 2))
    kept = torch.tensor([[1, 0], [1, 1]]).bool()
    out = serve(q, k, v, kept, is_causal=True, softmax_scale=0.2)
    expected = sparseloom.attention(*(x.transpose(1, 2) for x in (q, k, v)), kept, causal=True, scale=0.2)
    assert torch.equal(out, expected.transpose(1, 2)) and out.is_contiguous()
