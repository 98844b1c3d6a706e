"""report, advise and plan of attention over kept blocks."""

import importlib
import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import sparseloom
from sparseloom import Error, advise
from sparseloom.attention import patterns, use_pattern
from sparseloom.nn import BlockSparseSelfAttention
from sparseloom.report.attentions import DenseAttention

TOKENS = 256


def window(tokens, keys=None):
    return patterns.sliding_window(tokens, 10, block=64, causal=True)


class Own(nn.Module):
    """A user's module that calls the function."""

    def __init__(self, **options):
        super().__init__()
        self.qkv, self.options = nn.Linear(64, 192), options

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (6, 32)).transpose(1, 2).split(2, 1)
        if "cu_seqlens" in self.options:
            q, k, v = (each[0].transpose(0, 1) for each in (q, k, v))
            return sparseloom.attention(q, k, v, window(TOKENS), **self.options).transpose(0, 1)[None]
        return sparseloom.attention(q, k, v, window(TOKENS), **self.options)


class Dense(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.options = options

    def forward(self, x):
        q = k = v = x.unflatten(-1, (2, 32)).transpose(1, 2)
        return F.scaled_dot_product_attention(q, k, v, **self.options)


def module(**options):
    return BlockSparseSelfAttention(64, 2, pattern=window, causal=True, **options)


def x(tokens=TOKENS):
    return torch.randn(2, tokens, 64, generator=torch.Generator().manual_seed(0))


MODELS = [
    (module, "BlockSparseSelfAttention", 2),
    (lambda: module(kv_heads=1), "BlockSparseSelfAttention", 2),
    (Own, "Own", 2),
    (lambda: nn.Sequential(module(), nn.Linear(64, 8)).requires_grad_(False), "BlockSparseSelfAttention", 1),
]


@pytest.mark.parametrize(("made", "kind", "directions"), MODELS)
def test_a_row_for_whatever_attends(made, kind, directions):
    model = made()
    told = sparseloom.report(model, x(), seconds=0.01)
    (row,) = [layer for layer in told.layers if layer.x_shape]
    assert (row.kind, row.shape, row.block, row.x_shape) == (kind, (2, 32), (64, 64), (2, 2, TOKENS, 32))
    assert row.density == pytest.approx(7 / 16)
    assert set(row.kernels) == {"forward", "dx"} if directions == 2 else {"forward"}
    assert all("softmax" in kernel for kernel in row.kernels.values())
    measured = {"forward", "backward"} if directions == 2 else {"forward"}
    assert set(row.times) == set(row.dense_times) == set(row.break_even) == measured
    assert min(*row.times.values(), *row.dense_times.values()) > 0
    assert not told.model.note and told.model.dense_times["forward"] > 0
    assert "b64 .44" in str(told)
    assert "blocks of 64 x 64, density 0.438, input 2 x 2 x 256 x 32" in told.to_html()
    json.dumps(told.to_dict())
    assert not nn.modules.module._global_forward_hooks and not nn.modules.module._global_forward_pre_hooks


def test_the_dense_twin_meets_every_key():
    layer, given = module(), x()
    q, k, v = layer.qkv(given).unflatten(-1, (6, 32)).transpose(1, 2).split(2, 1)
    exact = layer.out_proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
    torch.testing.assert_close(DenseAttention(layer)(given), exact)
    assert not torch.allclose(layer(given), exact)
    torch.testing.assert_close(torch.compile(DenseAttention(layer))(given), exact)


@pytest.mark.package("transformers")
def test_transformers_models_have_rows_and_a_twin():
    from test_attention_hf import llama

    pytest.importorskip("sparseloom.hf")
    model, dense = llama(attn_implementation="sparseloom"), llama(attn_implementation="sdpa")
    dense.load_state_dict(model.state_dict())
    use_pattern(model, window)
    tokens, padding = torch.randint(0, 100, (2, TOKENS)), torch.ones(2, TOKENS, dtype=torch.long)
    padding[1, :70] = 0
    for given in ({"input_ids": tokens}, {"input_ids": tokens, "attention_mask": padding}):
        told = sparseloom.report(model, given, seconds=0.01)
        rows = [layer for layer in told.layers if layer.kind == "LlamaAttention"]
        assert [row.shape for row in rows] == [(4, 32)] * 2 and all(row.times for row in rows)
        ours, exact = DenseAttention(model)(**given).logits, dense(**given).logits
        torch.testing.assert_close(ours[0], exact[0], atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(ours[1, 70:], exact[1, 70:], atol=1e-5, rtol=1e-4)


def test_what_is_not_timed_says_why():
    starts = torch.tensor([0, 100, TOKENS], dtype=torch.int32)
    told = sparseloom.report(Own(cu_seqlens=starts), x()[:1], seconds=0.01)
    row = next(layer for layer in told.layers if layer.x_shape)
    assert "several lengths" in row.note and row.times is None and "no dense twin" in told.model.note
    with pytest.raises(Error, match="forward reference"):
        sparseloom.report(module().double(), x().double(), seconds=0.01, strict=True)


def test_a_modules_plan_names_the_row_and_what_the_others_refuse():
    layer = module()
    plan = layer.plan((2, TOKENS, 64))
    assert "softmax" in plan["kernel"] and plan["predicted_us"] > 0 and "head_dim=32" in plan["text"]
    assert layer.plan((2, TOKENS, 64), "dx")["predicted_us"] > plan["predicted_us"]
    double = layer.plan((1, TOKENS, 64), dtype=torch.float64)
    refusals = {each["kernel"]: each["refusal"] for each in double["candidates"]}
    assert double["kernel"] == "reference"
    assert refusals["avx2_softmax"] and refusals["avx2_softmax"] in double["text"]
    for arguments, text in (
        (((2, TOKENS, 64), "dw"), "a direction of forward, dx"),
        (((2, 64),), r"x_shape \[batch, tokens, 64\]"),
    ):
        with pytest.raises(Error, match=text):
            layer.plan(*arguments)


@pytest.fixture
def taken(monkeypatch):
    """A dense call takes 100 us, and one over blocks by its kept share."""

    def in_turn(calls, seconds, gpu=None, **options):
        assert all(call() is not None for call in calls)
        return [[100.0] * 5, *[[40.0] * 5 for _ in calls[1:]]]

    monkeypatch.setattr(importlib.import_module("sparseloom.advise.attention"), "in_turn", in_turn)
    monkeypatch.setattr(
        importlib.import_module("sparseloom.advise"), "BUSY", 1.0
    )  # whatever else runs meanwhile


def encoder():
    layer = nn.TransformerEncoderLayer(64, 2, 64, batch_first=True)
    return nn.TransformerEncoder(layer, 2)


ADVISED = [
    (encoder, ["layers.0.self_attn", "layers.1.self_attn"], False, "use_pattern(model, ..)"),
    (lambda: nn.Sequential(Dense(is_causal=True)), ["0"], True, "sparseloom.attention(q, k, v, pattern)"),
    (
        lambda: nn.Sequential(Dense(attn_mask=torch.ones(TOKENS, TOKENS).tril().bool())),
        ["0"], True, "attn_implementation='sparseloom'",
    ),
]  # fmt: skip


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(("made", "names", "causal", "remedy"), ADVISED)
def test_advise_names_attention_that_gains(taken, made, names, causal, remedy, training):
    model = made()
    found = advise(
        model, x().requires_grad_(), densities=[0.25, 0.5], blocks=[], training=training, attention=True,
        seconds=0.01,
    )  # fmt: skip
    (entry,) = found.attention
    assert entry.names == names and entry.causal is causal and entry.shape == (2, 2, TOKENS, 32)
    assert [(each.block[0], each.density) for each in entry.options] == [
        (64, 0.25), (64, 0.5), (128, 0.25), (128, 0.5),
    ]  # fmt: skip
    assert [each.measured_us for each in entry.options] == [40.0, None] * 2
    assert entry.best(0.25).speedup(entry.dense_us) == 2.5 and 0.25 < entry.break_even[64] <= 1
    text = " ".join(str(found).split())
    assert "attention, 2 heads of 32, 256 queries" in text and remedy in text
    assert json.loads(json.dumps(found.to_dict()))["attention"][0]["names"] == names


def test_advise_without_attention_and_of_what_it_cannot_take():
    assert not advise(encoder(), x(), blocks=[], seconds=0.01).attention
    found = advise(Dense(), x(40), blocks=[], seconds=0.01, attention=True)
    assert not found.attention and "a single block of 64" in found.skipped[""]
