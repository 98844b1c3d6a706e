"""torch's nn.MultiheadAttention, and the layers that hold one, over kept blocks (use_pattern)."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

import sparseloom
from sparseloom import BlockSparse, Error, densify_, sparsify_
from sparseloom.attention import patterns, use_pattern
from sparseloom.nn import BlockSparseMultiheadAttention

TOKENS, WIDTH = 200, 64
PATTERN = patterns.sliding_window(TOKENS, 10, block=64)
KEPT = PATTERN.map()[0, 0].repeat_interleave(64, 0).repeat_interleave(64, 1)[:TOKENS, :TOKENS]
CAUSAL = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)
PADDING = torch.zeros(2, TOKENS, dtype=torch.bool)
PADDING[1, 150:] = True


def encoder(batch_first=True, dropout=0.0):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 96, dropout, batch_first=batch_first)
    return nn.TransformerEncoder(layer, 2)


def window(queries, keys):
    return patterns.sliding_window(queries, 10, kv_tokens=keys, block=64)


def inputs(tokens=TOKENS, seed=0):
    return torch.randn(2, tokens, WIDTH, generator=torch.Generator().manual_seed(seed))


def as_numbers(mask):
    return torch.zeros(mask.shape).masked_fill(mask, -torch.inf)


#: What the caller passes, and what of the mask it means.
CALLS = {
    "plain": ({}, ~KEPT),
    "causal": ({"mask": CAUSAL, "is_causal": True}, ~KEPT | CAUSAL),
    "causal by its values": ({"mask": as_numbers(CAUSAL)}, ~KEPT | CAUSAL),
    "padding": ({"src_key_padding_mask": PADDING}, ~KEPT),
    "both": ({"mask": CAUSAL, "src_key_padding_mask": PADDING}, ~KEPT | CAUSAL),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("source", [PATTERN, window], ids=["pattern", "function"])
@pytest.mark.parametrize("training", [False, True])
def test_encoders_keep_blocks(call, source, training):
    dense = encoder().train(training)
    ours = copy.deepcopy(dense)
    use_pattern(ours, source)
    given, mask = CALLS[call]
    exact_given = {"mask": mask, "src_key_padding_mask": given.get("src_key_padding_mask")}
    results = []
    for model, how in ((ours, given), (dense, exact_given)):
        x = inputs().requires_grad_(training)
        y = model(x, **how)
        rows = y * ~PADDING[..., None] if "src_key_padding_mask" in given else y
        wanted = [x, *model.parameters()] if training else list(model.parameters())
        results.append([rows, *torch.autograd.grad(rows.square().sum(), wanted)])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, atol=2e-4, rtol=2e-3)
    with torch.no_grad():
        torch.testing.assert_close(
            ours.eval()(inputs(), **given)[0], results[1][0][0].detach(), atol=1e-4, rtol=1e-3
        )


def test_batches_second_and_cross_attention():
    dense = nn.Transformer(WIDTH, 2, 1, 1, 96, 0.0, batch_first=False)
    ours = copy.deepcopy(dense)
    use_pattern(ours, lambda queries, keys: window(queries, keys) if queries != keys else None)
    source, target = (inputs(tokens).transpose(0, 1) for tokens in (TOKENS, 130))
    kept = window(130, TOKENS).map()[0, 0].repeat_interleave(64, 0).repeat_interleave(64, 1)
    exact = dense(source, target, memory_mask=~kept[:130, :TOKENS])
    torch.testing.assert_close(ours(source, target), exact, atol=1e-4, rtol=1e-3)


def test_a_pattern_comes_and_goes():
    dense, x = encoder().eval(), inputs()
    ours = copy.deepcopy(dense)
    sparsify_(ours, {r".*linear1": BlockSparse(block=16, density=1.0)})
    use_pattern(ours, PATTERN)
    attention = ours.layers[0].self_attn
    assert type(attention) is BlockSparseMultiheadAttention and not ours.use_nested_tensor
    ours.load_state_dict(dense.state_dict(), strict=True)
    kept = ours(x)
    assert not torch.allclose(kept, dense(x), atol=1e-3)
    compiled = torch.compile(ours, fullgraph=True)
    torch.testing.assert_close(compiled(x), kept, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(copy.deepcopy(ours)(x), kept)
    assert [each.kind for each in sparseloom.report(ours, x, seconds=0.01).layers if each.x_shape] == [
        "BlockSparseMultiheadAttention"
    ] * 2
    use_pattern(ours, None)
    torch.testing.assert_close(ours(x), dense(x), atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(ours(x[:, :100]), dense(x[:, :100]), atol=1e-4, rtol=1e-3)
    use_pattern(ours, PATTERN)
    densify_(ours)
    assert type(ours.layers[0].self_attn) is nn.MultiheadAttention
    torch.testing.assert_close(ours(x), dense(x), atol=1e-4, rtol=1e-3)


REFUSED = [
    ({"need_weights": True}, "without attention weights"),
    ({"attn_mask": CAUSAL | (torch.rand(TOKENS, TOKENS) < 0.1)}, "of causal order"),
    ({"attn_mask": torch.rand(TOKENS, TOKENS)}, "a mask of 0 and -inf"),
    ({"attn_mask": CAUSAL.expand(4, -1, -1)}, "no attn_mask, or a causal one"),
    ({"key_padding_mask": torch.rand(2, TOKENS)}, "a mask of 0 and -inf"),
    ({"dropout": 0.5}, "without dropout"),
    (
        {"keys": 100, "attn_mask": torch.ones(TOKENS, 100, dtype=torch.bool).triu(1)},
        "as many queries as keys",
    ),
]


@pytest.mark.parametrize(("how", "text"), REFUSED)
def test_calls_that_the_kernels_do_not_compute(how, text):
    holder = nn.ModuleList([nn.MultiheadAttention(WIDTH, 2, how.pop("dropout", 0.0), batch_first=True)])
    use_pattern(holder, window)
    x, keys = inputs(), inputs(how.pop("keys", TOKENS))
    with pytest.raises(Error, match=text):
        holder[0](x, keys, keys, **{"need_weights": False, **how})


@pytest.mark.parametrize(("options", "text"), [
    ({"add_bias_kv": True}, "1: add_bias_kv"), ({"add_zero_attn": True}, "1: add_zero_attn"),
    ({"kdim": 32}, "1: keys or values of another size"),
])  # fmt: skip
def test_modules_that_stay_dense(options, text):
    model = nn.ModuleList([nn.MultiheadAttention(WIDTH, 2), nn.MultiheadAttention(WIDTH, 2, **options)])
    with pytest.raises(Error, match=text):
        use_pattern(model, PATTERN)
    assert type(model[0]) is nn.MultiheadAttention
    use_pattern(model, None)
    with pytest.raises(Error, match="a module that holds the attention"):
        use_pattern(nn.MultiheadAttention(WIDTH, 2), PATTERN)
    for bad in (5, "window", PATTERN.map()):
        with pytest.raises(Error, match="an AttentionPattern, a function, or None"):
            use_pattern(model, bad)


COMPUTED = {
    "out_proj": lambda each: parametrizations.weight_norm(each.out_proj),
    "out_proj's bias": lambda each: parametrizations.weight_norm(each.out_proj, "bias"),
    "in_proj": lambda each: parametrizations.orthogonal(each, "in_proj_weight"),
    "pruned": lambda each: prune.l1_unstructured(each.out_proj, "weight", 0.5),
}


@pytest.mark.parametrize("where", COMPUTED)
def test_weights_that_are_computed_are_refused(where):
    model = nn.ModuleList([nn.MultiheadAttention(WIDTH, 2), nn.MultiheadAttention(WIDTH, 2)])
    COMPUTED[where](model[1])
    classes = [type(each) for each in model]
    with pytest.raises(Error, match=r"use_pattern.*1: .*(parametrized|masks its weight)"):
        use_pattern(model, PATTERN)
    assert [type(each) for each in model] == classes


class Derived(nn.MultiheadAttention):
    """A class of a program's own."""


@pytest.mark.parametrize(("make", "text"), [
    (lambda: nn.ModuleList([Derived(WIDTH, 2), nn.MultiheadAttention(WIDTH, 2)]), r"they are: 0 \(Derived"),
    (lambda: nn.Sequential(nn.Linear(4, 4)), "no attention of Sequential takes a pattern"),
])  # fmt: skip
def test_what_takes_no_pattern_is_told(make, text):
    with pytest.warns(UserWarning, match=text) as told:
        use_pattern(make(), PATTERN)
    assert len(told) == 1 and told[0].filename == __file__


@pytest.mark.parametrize("names", [".*", r".*self_attn.*"])
def test_torchs_attention_comes_back_with_its_parameters(names):
    model, fired = encoder().eval(), []
    model.layers[0].self_attn.register_forward_hook(lambda *_: fired.append(1))
    parameters, exact = dict(model.named_parameters()), model(inputs())
    use_pattern(model, window)
    fired.clear()
    model(inputs())
    assert fired
    densify_(model, names)
    assert type(model.layers[0].self_attn) is nn.MultiheadAttention and model.use_nested_tensor
    after = dict(model.named_parameters())
    assert after.keys() == parameters.keys() and all(after[name] is parameters[name] for name in after)
    torch.testing.assert_close(model(inputs()), exact)
    with pytest.raises(Error, match="a model without any"):
        densify_(model, names)


@pytest.mark.parametrize("bias", [True, False])
def test_state_dicts_have_torchs_names(bias, tmp_path):
    make = [nn.ModuleDict({"a": nn.MultiheadAttention(WIDTH, 2, bias=bias)}) for _ in range(3)]
    dense, ours, half = make
    use_pattern(ours, PATTERN)
    sparsify_(half, {r"a\.out_proj": BlockSparse(block=16, density=0.5)})
    assert ours.state_dict().keys() == dense.state_dict().keys() and "a.in_proj_weight" in half.state_dict()
    for source, target in ((dense, ours), (ours, dense)):
        nn.init.normal_(source["a"].in_proj_weight)
        target.load_state_dict(source.state_dict(), strict=True)
        assert torch.equal(source["a"].in_proj_weight, target["a"].in_proj_weight)
    file = tmp_path / "half.safetensors"
    older = copy.deepcopy(half)
    older["a"]._state_dict_hooks.clear()  # an earlier version had none
    before = {name.replace("in_proj_", "in_proj."): each for name, each in half.state_dict().items()}
    copy.deepcopy(half).load_state_dict(before, strict=True)
    assert older.state_dict().keys() == before.keys()
    for saved in (older, half, ours):
        twin = copy.deepcopy(half if saved is older else saved)
        sparseloom.save(saved, file)
        nn.init.zeros_(twin["a"].in_proj_weight)
        sparseloom.load(file, twin)
        assert torch.equal(saved["a"].in_proj_weight, twin["a"].in_proj_weight)
    sparseloom.load(file, dense)  # the last one
    assert torch.equal(dense["a"].in_proj_weight, ours["a"].in_proj_weight)
