"""transformers' models with attn_implementation="sparseloom"."""

import importlib

import pytest
import torch

from sparseloom import Error
from sparseloom.attention import patterns, use_pattern

pytestmark = pytest.mark.package("transformers")


@pytest.fixture(autouse=True)
def _known_to_transformers():
    importlib.import_module("sparseloom.hf")


def llama(**changes):
    transformers = pytest.importorskip("transformers")
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
    import tiny_models

    model = tiny_models.made("BertForMaskedLM", "bert", attn_implementation="sparseloom").eval()
    twin = tiny_models.made("BertForMaskedLM", "bert", attn_implementation="sdpa").eval()
    twin.load_state_dict(model.state_dict())
    torch.testing.assert_close(model(tiny_models.tokens()).logits, twin(tiny_models.tokens()).logits)


def test_transformers_refusals():
    model = llama(attn_implementation="sparseloom", attention_dropout=0.5).train()
    with pytest.raises(Error, match="without dropout"):
        model(torch.randint(0, 100, (1, 8)))
