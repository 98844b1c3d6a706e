"""Feed-forwards whose hidden activations are 2:4, and 2:4 dropout, against masked twins in fp64."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.prune import l1_unstructured
from torch.utils.checkpoint import checkpoint

from sparseloom import BlockSparse, Error, InLayout, Semi24, prune_, sparsify_
from sparseloom.nn import Semi24Dropout, Semi24FeedForward, Semi24Linear, Semi24Training
from sparseloom.nn.semi24 import pairs
from sparseloom.sparsify import methods

SIZES = [(8, 16, 32, 8), (5, 7, 13, 6), (1, 3, 2, 4), (40, 12, 50, 20)]
#: What the first token of seed 12345 keeps.
KNOWN = [1, 1, 0, 0, 0, 1, 0, 1, 1, 1]


def layer_of(n_in, hidden, n_out, dtype=torch.float64, **options):
    torch.manual_seed(0)
    up, down = nn.Linear(n_in, hidden, dtype=dtype), nn.Linear(hidden, n_out, dtype=dtype)
    return Semi24FeedForward(up, down, **options)


def twin(layer, x, kept, factor=1.0):
    """By torch's own operators, with what stayed."""
    h = F.relu(layer.up(x))
    h = h.square() if layer.activation == "relu2" else h
    return layer.down(h * kept * factor)


def gradients(y, layer, x, dy):
    return torch.autograd.grad(y, [x, *layer.parameters()], dy)


@pytest.mark.parametrize("multiply", ["semi24", "dense"])
@pytest.mark.parametrize("dense", [0.0, 0.05, 0.3])
@pytest.mark.parametrize("prune", ["magnitude", "transposable_greedy", "transposable_exact"])
@pytest.mark.parametrize("activation", ["relu2", "relu"])
def test_forward_and_backward_are_those_of_the_twin(activation, prune, dense, multiply, monkeypatch):
    for tokens, n_in, hidden, n_out in SIZES:
        layer = layer_of(n_in, hidden, n_out, activation=activation, prune=prune, dense=dense)
        layer.multiply = multiply
        chosen, seen = layer._chosen, []
        monkeypatch.setattr(layer, "_chosen", lambda h, c=chosen, s=seen: s.append(c(h)) or s[-1])
        x = torch.randn(tokens, n_in, dtype=torch.float64, requires_grad=True)
        y, dy = layer(x), torch.randn(tokens, n_out, dtype=torch.float64)
        kept, whole = seen[0]
        wanted = twin(layer, x, kept)
        torch.testing.assert_close(y, wanted)
        torch.testing.assert_close(gradients(y, layer, x, dy), gradients(wanted, layer, x, dy))
        split = kept if whole is None else kept.index_fill(1, whole, False)
        counts = F.pad(split.int(), (0, -hidden % 4)).unflatten(1, (-1, 4)).sum(-1)
        assert int(counts.max()) <= 2 and (whole is None) == (dense == 0)
        groups = -(-hidden // 4)
        assert whole is None or len(whole) == 4 * -int(-dense * groups // 1)


@pytest.mark.parametrize("prune", ["magnitude", "transposable_greedy"])
def test_gradients_of_random_pairs_lose_no_token(prune, monkeypatch):
    layer = layer_of(8, 32, 8, choose="dropout", prune=prune)
    layer.multiply = "semi24"
    chosen, seen = layer._chosen, []
    monkeypatch.setattr(layer, "_chosen", lambda h: seen.append(chosen(h)) or seen[-1])
    x = torch.randn(40, 8, dtype=torch.float64, requires_grad=True)
    y, dy = layer(x), torch.randn(40, 8, dtype=torch.float64)
    wanted = twin(layer, x, seen[0][0], 2.0)
    torch.testing.assert_close(gradients(y, layer, x, dy), gradients(wanted, layer, x, dy))


def test_the_groups_that_lose_most_stay_whole_and_losses_are_told():
    layer = layer_of(8, 16, 8, activation="relu", dense=0.25)
    with torch.no_grad():
        layer.up.weight.zero_()
        layer.up.bias.copy_(torch.tensor([1.0, 0, 0, 0] * 2 + [5.0, 5, 5, 5] + [1.0, 1, 1, 0]))
    layer(torch.ones(3, 8, dtype=torch.float64))
    assert float(layer.overflowed) == 0.5 and float(layer.lost) == pytest.approx(1 / 25)


def test_a_dense_warm_up_is_the_dense_feed_forward_and_is_saved():
    layer = layer_of(8, 32, 8)
    x = torch.randn(5, 8, dtype=torch.float64)
    sparse = layer(x)
    layer.sparse = False
    torch.testing.assert_close(layer(x), twin(layer, x, 1))
    again = layer_of(8, 32, 8)
    again.load_state_dict(layer.state_dict())
    assert not again.sparse and not torch.equal(sparse, again(x))


@pytest.mark.parametrize("multiply", ["semi24", "dense"])
@pytest.mark.parametrize("choose", ["largest", "dropout"])
def test_checkpointing_computes_the_same_pairs_again(choose, multiply):
    layer = layer_of(8, 32, 8, choose=choose)
    layer.multiply = multiply
    x = torch.randn(6, 8, dtype=torch.float64, requires_grad=True)
    found = []
    for call in (lambda: layer(x), lambda: checkpoint(layer, x, use_reentrant=False)):
        torch.manual_seed(7)
        y = call()
        found.append((y, *torch.autograd.grad(y.sum(), [x, *layer.parameters()])))
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_dropout_keeps_random_pairs_alike_often_and_doubles_them():
    module, x = Semi24Dropout(), torch.ones(2000, 4 * 8)
    torch.manual_seed(3)
    y = module(x)
    torch.manual_seed(3)
    assert torch.equal(y, module(x))
    assert not torch.equal(y, module(x))
    groups = (y.view(-1, 4) != 0).int()
    assert bool((groups.sum(1) == 2).all()) and set(y.unique().tolist()) == {0.0, 2.0}
    codes = (groups * torch.tensor([1, 2, 4, 8])).sum(1).bincount(minlength=13)
    counts = codes[codes > 0].double()
    assert len(counts) == 6 and float(((counts - counts.mean()) ** 2 / counts.mean()).sum()) < 25  # chi^2, 5
    neighbours = torch.corrcoef(torch.stack([groups[:-1, 0], groups[1:, 0]]).double())[0, 1]
    assert abs(float(neighbours)) < 0.03
    assert module(torch.ones(3, 5)).shape == (3, 5) and torch.equal(module.eval()(x), x)
    layer = layer_of(8, 64, 8, choose="dropout").eval()
    x = torch.randn(4, 8, dtype=torch.float64)
    torch.testing.assert_close(layer(x), twin(layer, x, 1))
    layer.train()
    mean = torch.stack([layer(x) for _ in range(2000)]).mean(0)
    torch.testing.assert_close(mean, twin(layer, x, 1), rtol=0.1, atol=0.1)


def test_a_seed_and_a_place_give_the_same_pairs_everywhere():
    kept = pairs.drawn(torch.Size([2, 3, 10]), torch.tensor(12345))
    assert torch.equal(kept, pairs.drawn(torch.Size([6, 10]), torch.tensor(12345)).view(2, 3, 10))
    assert kept[0, 0].int().tolist() == KNOWN


@pytest.mark.parametrize("choose", ["largest", "dropout"])
def test_compiled_and_under_autocast(choose):
    torch._dynamo.reset()
    layer = layer_of(8, 32, 8, torch.float32, choose=choose)
    x = torch.randn(6, 8, requires_grad=True)
    call = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for layer.multiply in ("dense", "semi24"):
        torch.manual_seed(1)
        mine = call(x)
        torch.manual_seed(1)
        torch.testing.assert_close(mine, layer(x))
        mine.sum().backward()
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
    y.float().sum().backward()
    assert y.dtype == torch.bfloat16 and layer.up.weight.grad.dtype == torch.float32
    assert torch.equal(copy.deepcopy(layer).eval()(x), layer.eval()(x))


@pytest.mark.parametrize(
    "options", [{"activation": "gelu"}, {"choose": "smallest"}, {"dense": 1.5}, {"prune": None}]
)
def test_errors(options):
    with pytest.raises(Error, match="Semi24FeedForward"):
        layer_of(8, 16, 8, **options)


RECIPES = [
    InLayout("semi24", method=methods.semi24()),
    BlockSparse(density=0.5),
    Semi24("magnitude"),
    InLayout("csr"),
]


@pytest.mark.parametrize("names", [".*up", "ff.down", "shared"])
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: type(recipe).__name__)
def test_children_whose_weights_are_read_stay_dense(recipe, names):
    """They are never called, so that another layer in their place would be ignored."""
    ff = layer_of(32, 64, 32, torch.float32)
    model = nn.ModuleDict({"shared": ff.up, "ff": ff, "other": nn.Linear(32, 32)})
    with pytest.raises(Error, match="Semi24FeedForward reads its weight"):
        sparsify_(model, {names: recipe})
    patched = sparsify_(model, {"ff.*|other": recipe})
    assert type(ff.up) is type(ff.down) is nn.Linear and type(model["other"]) is not nn.Linear
    assert {skip.name for skip in patched.skipped} == {"shared", "ff.up", "ff.down"}


def test_pruning_leaves_children_whose_weights_are_read():
    model = nn.Sequential(layer_of(32, 64, 32, torch.float32), nn.Linear(32, 32))
    pruned = prune_(model, {".*": Semi24()}, method="magnitude")
    assert type(model[0].up) is nn.Linear and type(model[1]) is not nn.Linear
    assert {skip.name for skip in pruned.skipped} == {"0.up", "0.down"}


def with_forward(layer):
    layer.forward = lambda x: x
    return layer


@pytest.mark.parametrize(
    "change",
    [
        lambda layer: Semi24Linear.from_dense(layer, prune="magnitude"),
        lambda layer: Semi24Training(layer.in_features, layer.out_features),
        lambda layer: nn.Sequential(layer),
        with_forward,
        lambda layer: layer.register_forward_hook(lambda *_: None) and layer,
        lambda layer: layer.register_forward_pre_hook(lambda *_: None) and layer,
        lambda layer: layer.register_full_backward_hook(lambda *_: None) and layer,
        lambda layer: l1_unstructured(layer, "weight", 0.5),
    ],
)
@pytest.mark.parametrize("name", ["up", "down"])
def test_a_call_refuses_children_that_compute_more(name, change):
    layer = layer_of(32, 64, 32, torch.float32)
    setattr(layer, name, change(getattr(layer, name)))
    for layer.sparse in (True, False):
        with pytest.raises(Error, match=f"{name} to be an nn.Linear"):
            layer(torch.randn(2, 32))
    with pytest.raises(Error, match=f"{name} to be an nn.Linear"):
        Semi24FeedForward(layer.up, layer.down)


def test_statistics_stay_float32_and_multiply_is_checked():
    layer = layer_of(32, 64, 32, torch.float32)
    layer(torch.randn(4, 32))
    before = layer.lost.clone(), layer.overflowed.clone()
    layer.bfloat16()
    assert layer.up.weight.dtype == torch.bfloat16
    assert layer.lost.dtype == layer.overflowed.dtype == torch.float32
    assert torch.equal(layer.lost, before[0]) and torch.equal(layer.overflowed, before[1])
    layer(torch.randn(4, 32, dtype=torch.bfloat16))
    with pytest.raises(Error, match="'dense', 'semi24', got 'auto'"):
        layer.multiply = "auto"
