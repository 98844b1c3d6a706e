"""BlockSparseSelfAttention, transformers' attn_implementation, and the function for serving stacks."""

import copy

import pytest
import tiny_models
import torch
import torch.nn.functional as F
import transformers

import sparseloom
import sparseloom.hf
from sparseloom import Error
from sparseloom.attention import patterns, serve, use_pattern
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
    assert module.to("meta").pattern.device.type == "meta"
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


def llama(**changes):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=100, hidden_size=128, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, **changes,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


def twins():
    model = llama(attn_implementation="sdpa")
    ours = llama(attn_implementation="sparseloom")
    ours.load_state_dict(model.state_dict())
    return model, ours


def test_transformers_without_a_pattern_is_dense():
    model, ours = twins()
    tokens = torch.randint(0, 100, (2, 150))
    torch.testing.assert_close(ours(tokens).logits, model(tokens).logits, atol=1e-5, rtol=1e-4)
    padding = torch.ones(2, 150, dtype=torch.long)
    padding[1, :60] = 0
    ours_padded, padded = (m(tokens, attention_mask=padding).logits for m in (ours, model))
    torch.testing.assert_close(ours_padded[0], padded[0], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(ours_padded[1, 60:], padded[1, 60:], atol=1e-5, rtol=1e-4)
    a, b = (m.generate(tokens[:, :80], max_new_tokens=5, do_sample=False) for m in (ours, model))
    assert torch.equal(a, b)


def test_transformers_with_a_pattern():
    model, ours = twins()
    tokens = torch.randint(0, 100, (1, 256))
    pattern = patterns.sliding_window(256, 10, block=64, causal=True)
    use_pattern(ours, lambda q, kv: pattern if q == kv else None)
    mask = pattern.map().repeat_interleave(64, 2).repeat_interleave(64, 3)
    mask = mask & torch.ones(256, 256, dtype=torch.bool).tril()
    exact = model(tokens, attention_mask=mask).logits
    torch.testing.assert_close(ours(tokens).logits, exact, atol=1e-5, rtol=1e-4)
    ours(tokens, labels=tokens).loss.backward()
    use_pattern(ours, None)
    assert not torch.allclose(ours(tokens).logits, exact)
    use_pattern(ours, pattern)  # of other tokens: all keys
    torch.testing.assert_close(
        ours(tokens[:, :100]).logits, model(tokens[:, :100]).logits, atol=1e-5, rtol=1e-4
    )


def test_transformers_encoders_see_both_sides():
    model = tiny_models.made("BertForMaskedLM", "bert", attn_implementation="sparseloom").eval()
    twin = tiny_models.made("BertForMaskedLM", "bert", attn_implementation="sdpa").eval()
    twin.load_state_dict(model.state_dict())
    torch.testing.assert_close(model(tiny_models.tokens()).logits, twin(tiny_models.tokens()).logits)


def test_transformers_refusals():
    model = llama(attn_implementation="sparseloom", attention_dropout=0.5).train()
    with pytest.raises(Error, match="without dropout"):
        model(torch.randint(0, 100, (1, 8)))
