"""sparsify_ and densify_: what becomes sparse, what is left and why, and what is refused without a change."""

import copy
import logging
import re

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import sparseloom
from sparseloom import BlockSparse, densify_, pattern, sparsify_
from sparseloom.nn import BlockSparseLinear

HALF = BlockSparse(block=16, density=0.5)


def model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(64, 96), nn.LayerNorm(96), nn.Sequential(nn.Linear(96, 70), nn.ReLU()), nn.Linear(70, 5)
    )


def snapshot(module):
    return {name: (id(p), p.detach().clone()) for name, p in module.named_parameters()}


def unchanged(module, before):
    after = snapshot(module)
    return after.keys() == before.keys() and all(
        after[k][0] == i and torch.equal(after[k][1], v) for k, (i, v) in before.items()
    )


def test_matched_layers_become_sparse_in_place_with_their_largest_blocks():
    net = model()
    dense = copy.deepcopy(net)
    result = sparsify_(net, {r"0|2\.0": HALF})
    assert [change.names for change in result.changed] == [("0",), ("2.0",)]
    assert (
        isinstance(net[0], BlockSparseLinear)
        and isinstance(net[2][0], BlockSparseLinear)
        and type(net[3]) is nn.Linear
    )
    assert net[0].pattern == pattern.from_dense(dense[0].weight, 16, 0.5) and net[0].block == (16, 16)
    kept = net[0].to_dense().weight
    assert torch.equal(kept[kept != 0], dense[0].weight[kept != 0])
    assert result.parameters == (
        sum(p.numel() for p in dense.parameters()),
        sum(p.numel() for p in net.parameters()),
    )
    assert net(torch.randn(3, 64)).shape == (3, 5)


def test_names_are_matched_whole():
    net = nn.ModuleDict({"fc": nn.Linear(32, 32), "fc2": nn.Linear(32, 32)})
    sparsify_(net, {"fc": HALF})
    assert isinstance(net["fc"], BlockSparseLinear) and type(net["fc2"]) is nn.Linear


def test_the_result_names_every_layer_and_every_reason():
    net = model()
    result = sparsify_(net, {"[0-3]": HALF})
    assert [(skip.name, skip.reason) for skip in result.skipped] == [
        ("2.0", "no pattern matches"),
        ("3", "too small: 5 x 70 in blocks of 16 x 16"),
        ("1", "not a linear"),
    ]
    text = str(result)
    assert text.splitlines()[0].startswith("1 layer became block-sparse; 13,") and "96 x 64" in text
    assert "no pattern matches: 2.0 (Linear)" in text and "not a linear: 1 (LayerNorm)" in text
    assert result.to_dict()["changed"][0]["block"] == (16, 16)


def test_layers_that_differ_in_a_number_are_folded_into_one_name():
    net = nn.ModuleDict(
        {
            "h": nn.ModuleList(nn.ModuleDict({"a": nn.Linear(32, 32)}) for _ in range(5)),
            "b": nn.Linear(32, 32),
        }
    )
    net["c"] = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
    text = str(sparsify_(net, {"b": HALF}))
    assert "no pattern matches: h.0-4.a (Linear), c.0 (Linear), c.1 (Linear)" in text and "skipped 7:" in text
    text = str(sparsify_(net, {r"h\.[13]\.a": HALF}))
    assert "h.0,2,4.a (Linear)" in text and "h.1.a" in text and "h.3.a" in text


def test_the_result_is_logged_and_nothing_is_printed(caplog, capsys):
    with caplog.at_level(logging.INFO, "sparseloom"):
        sparsify_(model(), {"0": HALF})
    assert "1 layer became block-sparse" in caplog.text and capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        ({}, "expected {name or regex: BlockSparse"),
        ({"fc": HALF}, "names are matched whole; linear layers are 0, 2.0, 3"),
        ({"1": HALF}, r"got 1 \(LayerNorm\); linear layers are 0, 2.0, 3"),
        ({"2": HALF}, r"modules that hold others: 2; match the layers inside: '2\[.\]\.\*'"),
        ({"3": HALF}, "3: too small: 5 x 70"),
        ({"0": HALF, "0|0": HALF}, "only layers that '0' has taken"),
        ({"0": 0.5}, "expected a BlockSparse or Semi24 for '0', got 0.5"),
        ({"(": HALF}, "regular expressions as keys"),
        ({"0": BlockSparse(128, 0.5)}, "too small: 96 x 64 in blocks of 128 x 128"),
        ({"0": BlockSparse(16, 0.01)}, "too small: density 0.01 of 24 blocks leaves none"),
    ],
)
def test_a_pattern_that_would_do_nothing_raises_and_changes_nothing(patterns, message):
    net = model()
    before = snapshot(net)
    with pytest.raises(sparseloom.Error, match=message):
        sparsify_(net, patterns)
    with pytest.raises(sparseloom.Error, match=message):  # not hidden by a pattern that works
        sparsify_(net, {**patterns, r"2\.0": HALF} if patterns else {})
    assert unchanged(net, before)


def test_the_first_pattern_that_matches_counts():
    net = model()
    sparsify_(net, {"0": BlockSparse(8, 0.25), r"[0-9.]+": HALF})
    assert net[0].block == (8, 8) and net[2][0].block == (16, 16)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"density": 1.5}, r"density in \[0, 1\], got 1.5"),
        ({}, r"density in \[0, 1\], got None"),
        ({"density": 0.5, "block": 12}, "block"),
        (
            {"density": 0.5, "select": "best"},
            "'magnitude', 'l2', 'max', 'stored', 'random', a Pattern or a Sparsifier, got 'best'",
        ),
        ({"density": 0.5, "select": pattern.full(8, 8, 8)}, "density or a pattern, got both"),
    ],
)
def test_wrong_configurations_are_refused_when_made(arguments, message):
    with pytest.raises(sparseloom.Error, match=message):
        BlockSparse(**arguments)


def test_select_random_is_seeded_balanced_and_draws_from_nothing_else():
    def patched(config):
        net = nn.Sequential(nn.Linear(256, 256), nn.Linear(256, 256))
        sparsify_(net, {"[01]": config})
        return net

    a, b = (patched(BlockSparse(16, 0.5, "random", seed=3)) for _ in range(2))
    assert a[0].pattern == b[0].pattern and a[1].pattern == b[1].pattern and a[0].pattern != a[1].pattern
    assert (a[0].pattern.mask.sum(1) == 8).all()
    net = model()
    state = torch.get_rng_state()
    sparsify_(net, {"0": HALF, r"2\.0": BlockSparse(16, 0.5, "random", seed=3)})
    assert torch.equal(torch.get_rng_state(), state)


def test_select_takes_a_pattern_of_the_layers_size():
    net, chosen = model(), pattern.banded(96, 64, (32, 16), 1)
    sparsify_(net, {"0": BlockSparse(select=chosen)})
    assert net[0].pattern == chosen
    with pytest.raises(sparseloom.Error, match="the layer's size 70 x 96"):
        sparsify_(net, {r"2\.0": BlockSparse(select=chosen)})


def test_tied_weights_are_refused_by_identity_and_by_memory():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.head, self.free = nn.Embedding(64, 32), nn.Linear(32, 64), nn.Linear(32, 32)
            self.head.weight = self.embedding.weight

    net = Tied()
    with pytest.raises(sparseloom.Error, match=r"head: tied to embedding.weight"):
        sparsify_(net, {"head": HALF})
    assert "tied to embedding.weight" in str(sparsify_(net, {"head|free": HALF}))
    flat = torch.randn(64 * 32 * 2)  # apart in one allocation: not tied; overlapping: tied
    net = nn.Sequential(nn.Linear(32, 64), nn.Linear(32, 64))
    net[0].weight.data, net[1].weight.data = flat[: 64 * 32].view(64, 32), flat[64 * 32 :].view(64, 32)
    net[1].bias.data = flat[64 * 32 + 5 : 64 * 32 + 69]
    result = sparsify_(net, {"[01]": HALF})
    assert [change.names for change in result.changed] == [("0",)] and "tied to 1.bias" in str(result)


def test_strict_refuses_to_skip_and_forbids_dense_kernels():
    net = model()
    before = snapshot(net)
    with pytest.raises(sparseloom.Error, match=r"strict=True\), got 3: too small"):
        sparsify_(net, {"[03]": HALF}, strict=True)
    assert unchanged(net, before)
    sparsify_(net, {"0": HALF}, strict=True)
    assert net[0].strict
    sparsify_(net, {r"2\.0": HALF})
    assert not net[2][0].strict


def test_a_shared_module_is_replaced_in_all_its_places_once():
    shared = nn.Linear(32, 32)
    net = nn.ModuleDict({"a": shared, "b": nn.ModuleList([shared, nn.Linear(32, 32)])})
    result = sparsify_(net, {"a|b[.]1": HALF})
    assert net["a"] is net["b"][0] and isinstance(net["a"], BlockSparseLinear)
    assert result.changed[0].names == ("a", "b.0") and "a (shared as b.0)" in str(result)
    densify_(net)
    assert net["a"] is net["b"][0] and type(net["a"]) is nn.Linear


def test_biases_stay_the_same_parameters_and_marks_move_along():
    net = model()
    bias, net[0].weight.no_decay = net[0].bias, True
    net[0].weight.requires_grad_(False)
    net.eval()
    sparsify_(net, {"0": HALF})
    assert (
        net[0].bias is bias
        and net[0].values.no_decay
        and not net[0].values.requires_grad
        and not net[0].training
    )
    densify_(net)
    assert net[0].bias is bias and net[0].weight.no_decay and not net[0].weight.requires_grad


def test_layers_that_cannot_move_are_named():
    class Own(nn.Linear):
        def forward(self, x):
            return super().forward(x) + 1

    net = nn.ModuleDict(
        {
            "hooked": nn.Linear(32, 32),
            "parametrized": nn.utils.parametrizations.weight_norm(nn.Linear(32, 32)),
            "own": Own(32, 32),
            "lazy": nn.LazyLinear(32),
            "integers": nn.Linear(32, 32),
            "plain": nn.Linear(32, 32),
            "pruned": nn.Linear(32, 32),
        }
    )
    net["hooked"].register_forward_hook(lambda *a: None)
    net["integers"].weight = nn.Parameter(torch.ones(32, 32, dtype=torch.int8), requires_grad=False)
    prune.identity(net["pruned"], "weight")
    result = sparsify_(net, {".*": HALF})
    assert [change.names for change in result.changed] == [("plain",)]
    why = {skip.name: skip.reason for skip in result.skipped if skip.kind == "Linear"}
    for name, word in {
        "hooked": "hooks",
        "parametrized": "parametrized",
        "own": "forward is not",
        "lazy": "lazy",
        "integers": "int8",
        "pruned": r"torch.nn.utils.prune.remove(module, 'weight')",
    }.items():
        assert word in why[name], name


def test_the_model_itself_and_other_things_are_refused():
    with pytest.raises(sparseloom.Error, match=r"BlockSparseLinear\.from_dense"):
        sparsify_(nn.Linear(32, 32), {".*": HALF})
    with pytest.raises(sparseloom.Error, match=r"an nn\.Module, got OrderedDict"):
        sparsify_(model().state_dict(), {".*": HALF})
    net = model()
    sparsify_(net, {"0": HALF})
    with pytest.raises(sparseloom.Error, match=r"0 \(BlockSparseLinear, sparse already\)"):
        sparsify_(net, {"0": HALF})
    assert "it is sparse already: 0" in str(sparsify_(net, {r"0|2\.0": HALF}))


def test_densify_is_the_inverse():
    net = model()
    names, x = list(net.state_dict()), torch.randn(4, 64)
    sparsify_(net, {r"0|2\.0": HALF})
    expected = net(x)
    result = densify_(net)
    assert (
        list(net.state_dict()) == names
        and type(net[0]) is nn.Linear
        and "2 layers became dense" in str(result)
    )
    torch.testing.assert_close(net(x), expected, atol=1e-5, rtol=1e-5)
    assert (net[0].weight == 0).float().mean() == 0.5
    with pytest.raises(sparseloom.Error, match="a block-sparse layer for"):
        densify_(net)


def test_densify_takes_names_and_carries_activations():
    net = nn.Sequential(
        BlockSparseLinear(32, 32, density=0.5, activation="gelu"), BlockSparseLinear(32, 32, density=0.5)
    )
    x = torch.randn(4, 32)
    expected = net(x)
    densify_(net, "0")
    assert isinstance(net[0], nn.Sequential) and isinstance(net[1], BlockSparseLinear)
    torch.testing.assert_close(net(x), expected, atol=1e-5, rtol=1e-5)


def test_meta_models_take_random_and_given_patterns_and_load_later():
    with torch.device("meta"):
        net = model()
    with pytest.raises(sparseloom.Error, match="values to rank the blocks of 0 by"):
        sparsify_(net, {"0": HALF})
    sparsify_(
        net,
        {"0": BlockSparse(16, 0.5, "random", seed=1), r"2\.0": BlockSparse(select=pattern.full(70, 96, 16))},
    )
    assert net[0].values.is_meta
    real = model()
    sparsify_(
        real,
        {"0": BlockSparse(16, 0.5, "random", seed=1), r"2\.0": BlockSparse(select=pattern.full(70, 96, 16))},
    )
    net.load_state_dict(real.state_dict(), assign=True)
    x = torch.randn(2, 64)
    assert torch.equal(net(x), real(x))


def test_a_compiled_model_is_patched_under_its_own_names():
    net = model()
    compiled, x = torch.compile(net, backend="aot_eager"), torch.randn(3, 64)
    compiled(x)
    sparsify_(compiled, {"0": HALF})
    assert isinstance(net[0], BlockSparseLinear)
    torch.testing.assert_close(compiled(x), net(x), atol=1e-5, rtol=1e-5)
    torch._dynamo.reset()


def test_conversion_holds_one_layer_at_a_time_beyond_the_model():
    """Each dense weight is free before the next layer is packed, when nobody else holds it."""
    import weakref

    net = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    weights = [weakref.ref(layer.weight) for layer in net]
    sparsify_(net, {"[01]": HALF})
    assert [ref() for ref in weights] == [None, None]


class Masked(nn.Module):
    """What nncf keeps under a wrapped model: functions by the name of what they are run on."""

    def __init__(self, **hooks):
        super().__init__()
        self.pre_hooks, self.post_hooks = nn.ModuleDict(), nn.ModuleDict(hooks)


def test_a_model_whose_weights_nncf_masks_is_refused_until_it_is_stripped():
    net = model()
    net.add_module("__nncf_hooks", Masked(**{"0:weight__0": nn.ModuleDict({"0": nn.Identity()})}))
    before = snapshot(net)
    for call in (lambda: sparsify_(net, {"0": HALF}), lambda: densify_(net), lambda: sparseloom.pack_(net)):
        with pytest.raises(sparseloom.Error, match=r"nncf computes; call nncf.strip\(.*IN_PLACE\) first"):
            call()
    unchanged(net, before)
    net._modules["__nncf_hooks"] = Masked()  # which strip leaves behind
    assert sparsify_(net, {"0": HALF}).changed


def weight_normed(linear):
    with pytest.warns(FutureWarning):
        return nn.utils.weight_norm(linear)


COMPUTED = {
    "prune": (lambda m: prune.l1_unstructured(m, "weight", 0.5), "prune.remove(module, 'weight')"),
    "prune a bias": (lambda m: prune.l1_unstructured(m, "bias", 0.5), "prune.remove(module, 'bias')"),
    "weight_norm": (weight_normed, "torch.nn.utils.remove_weight_norm(module, 'weight')"),
    "spectral_norm": (nn.utils.spectral_norm, "torch.nn.utils.remove_spectral_norm(module, 'weight')"),
    "parametrized": (
        nn.utils.parametrizations.weight_norm,
        "torch.nn.utils.parametrize.remove_parametrizations(module, 'weight')",
    ),
}


@pytest.mark.parametrize("kind", COMPUTED)
def test_what_computes_a_weight_is_refused_with_the_call_that_makes_it_permanent(kind):
    apply, remedy = COMPUTED[kind]
    net = model()
    apply(net[0])
    before = snapshot(net)
    with pytest.raises(sparseloom.Error, match=re.escape(remedy)):
        sparsify_(net, {"0": HALF})
    unchanged(net, before)
    recurrent = nn.Sequential(nn.LSTM(32, 32), nn.MultiheadAttention(32, 4))
    prune.l1_unstructured(recurrent[0], "weight_hh_l0", 0.5)
    prune.l1_unstructured(recurrent[1], "in_proj_weight", 0.5)
    for name, entry in (("0", "weight_hh_l0"), ("1", "in_proj_weight")):
        with pytest.raises(sparseloom.Error, match=re.escape(f"prune.remove(module, '{entry}')")):
            sparsify_(recurrent, {name: HALF})


def test_a_mask_that_the_sparsifier_of_torch_made_too_large_is_refused_in_words():
    from torch.ao.pruning import WeightNormSparsifier

    net = nn.Sequential(nn.Linear(35, 33))
    sparsifier = WeightNormSparsifier(1.0, sparse_block_shape=(1, 4), zeros_per_block=2)
    sparsifier.prepare(net, [{"tensor_fqn": "0.weight"}])
    sparsifier.step()
    for way in (
        lambda: sparsify_(net, {"0": HALF}),
        lambda: sparseloom.nn.BlockSparseLinear.from_dense(net[0], density=0.5),
        lambda: sparseloom.nn.Semi24Linear.from_dense(net[0]),
        lambda: sparseloom.nn.SparseLinear.from_dense(net[0], "csr"),
    ):
        with pytest.raises(sparseloom.Error, match=r"mask is 33 x 36 for a weight of 33 x 35.*block_shape"):
            way()
