"""SmallWorldLSTM beside its equations, written out with dense matrices; and the products whose weight's
gradient waits for all steps."""

import copy
import gc

import pytest
import torch
import torch.nn.functional as F
from small_worlds import HIDDEN, make, small_world

import sparseloom
from sparseloom import Error, pattern, quantize_
from sparseloom.nn import BlockSparseLinear, BlockSparseLSTM, SmallWorldLSTM
from sparseloom.nn.recurrent.weights import beside_of
from sparseloom.ops.recurrent import norms, steps
from sparseloom.ops.recurrent.steps import Products
from sparseloom.ops.recurrent.walk import Weight


def dense_of(matrix):
    return (
        matrix.to_dense().weight.detach() if isinstance(matrix, BlockSparseLinear) else matrix.weight.detach()
    )


def equations(layer, x, h, c, weights):
    """The cell as the paper has it, in torch's own operators."""
    norm = lambda y, of: F.layer_norm(y, y.shape[-1:], of.weight, of.bias)  # noqa: E731
    mx, ax = norm(layer.multiply(x), layer.multiply_norm), norm(layer.add(x), layer.add_norm)
    at, outputs = torch.arange(0, HIDDEN, HIDDEN // layer.inputs), []
    for t in range(len(x)):
        h = norm(h @ weights[0].t(), layer.norms[0])
        h = h * torch.ones_like(h).index_copy(1, at, mx[t])
        h = norm(h @ weights[1].t(), layer.norms[1])
        h = F.relu(h + torch.zeros_like(h).index_copy(1, at, ax[t]))
        for step in range(2, len(layer.norms)):
            h = F.relu(norm(h @ weights[step].t(), layer.norms[step]))
        gates = [
            F.layer_norm(h @ w.t(), (HIDDEN,)) * g + b
            for w, g, b in zip(weights[-1].split(HIDDEN), layer.gate_scale, layer.gate_bias, strict=True)
        ]
        c = torch.sigmoid(gates[1]) * c + torch.sigmoid(gates[0]) * torch.tanh(gates[2])
        h = torch.sigmoid(gates[3]) * torch.tanh(c)
        outputs.append(h[:, :: HIDDEN // layer.outputs])
    return torch.stack(outputs), h, c


def test_the_gradient_of_one_tensor_alone_is_that_among_all():
    layer = make(tokens=11, classes=5, dtype=torch.float64)
    state = [torch.randn(2, HIDDEN, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    y, last = layer(torch.randint(11, (3, 2)), tuple(state))
    loss = sum(each.square().sum() for each in (y, *last))
    asked = [*state, *layer.parameters()]
    wanted = torch.autograd.grad(loss, asked, retain_graph=True)
    for leaf, theirs in zip(asked, wanted, strict=True):
        (mine,) = torch.autograd.grad(loss, [leaf], allow_unused=True, retain_graph=True)
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("sparse", [True, False])
def test_results_and_gradients_are_those_of_the_equations(sparse):
    layer = make(**({} if sparse else {"pattern": None}))
    twin = copy.deepcopy(layer)
    matrices = [*layer.steps, layer.gates]
    weights = [dense_of(m).clone().requires_grad_() for m in matrices]
    x = torch.randn(5, 3, 20, requires_grad=True)
    state = [torch.randn(3, HIDDEN, requires_grad=True) for _ in range(2)]
    leaves = [each.detach().clone().requires_grad_() for each in (x, *state)]
    y, (h, c) = layer(x, tuple(state))
    wanted = equations(twin, *leaves, weights)
    for mine, theirs in zip((y, h, c), wanted, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-4)
    for results in ((y, h, c), wanted):
        sum(
            (each * torch.linspace(-1, 1, each.numel()).view(each.shape)).sum() for each in results
        ).backward()
    for mine, theirs in zip((x, *state), leaves, strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, atol=1e-4, rtol=1e-3)
    for matrix, weight in zip(matrices, weights, strict=True):
        mine = matrix.values.grad if sparse else matrix.weight.grad
        theirs = matrix.sparse_weights()["values"].packed(weight.grad) if sparse else weight.grad
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-3)
    for (name, mine), theirs in zip(layer.named_parameters(), twin.parameters(), strict=True):
        if name.endswith("norm.weight") or name.startswith(("gate_", "multiply", "add")):
            torch.testing.assert_close(mine.grad, theirs.grad, atol=1e-4, rtol=1e-3)


def test_the_weights_gradient_is_one_product_over_all_steps():
    layer = BlockSparseLinear(64, 64, False, density=0.5, block=16)
    index = layer.index
    numbers = index.blocks, 64, 64, 16, 16, index.digest, 0
    calls = []

    class Counted(Weight):
        def dw(self, dy, x):
            calls.append(tuple(dy.shape))
            return super().dw(dy, x)

    h = torch.randn(3, 64, requires_grad=True)
    products = Products(Counted(layer.values, index.packed, numbers))
    y = h
    for _ in range(4):
        y = torch.tanh(products(y))
    y.square().sum().backward(retain_graph=True)
    assert calls == [(12, 64)]
    mine, dh = layer.values.grad.clone(), h.grad.clone()
    layer.values.grad, h.grad, z = None, None, h
    for _ in range(4):
        z = torch.tanh(layer(z))
    z.square().sum().backward()
    torch.testing.assert_close(mine, layer.values.grad)
    torch.testing.assert_close(dh, h.grad)
    y.square().sum().backward()  # again, of the kept graph
    torch.testing.assert_close(layer.values.grad, 2 * mine)


def test_gates_lie_side_by_side_in_the_product_where_they_share_a_pattern():
    layer = make()
    weight = beside_of(layer.gates, 4, torch.float32)
    blocks = len(layer.gates.values) // 4
    assert weight.side == 16 and weight.values.shape == (blocks, 64, 16)
    torch.testing.assert_close(weight.values[:, 16:32], layer.gates.values[blocks : 2 * blocks])
    x = torch.randn(5, HIDDEN)
    mine = weight.product(x).view(5, HIDDEN // 16, 4, 16).transpose(1, 2).flatten(1)
    torch.testing.assert_close(mine, layer.gates(x))
    other = pattern.random(4 * HIDDEN, HIDDEN, block=16, density=0.3, seed=0)
    assert beside_of(BlockSparseLinear(HIDDEN, 4 * HIDDEN, False, pattern=other), 4, torch.float32) is None
    wide = SmallWorldLSTM(8, 128, pattern=lambda step: pattern.full(128, 128, 64))
    assert beside_of(wide.gates, 4, torch.float32) is None


def test_hooks_of_norms_are_called_and_change_nothing_else():
    layer, x, seen = make(), torch.randn(3, 2, 20), []
    wanted = layer(x)[0]
    layer.norms[2].register_forward_hook(lambda module, inputs, y: seen.append(y.shape))
    torch.testing.assert_close(layer(x)[0], wanted)
    assert len(seen) == 3


def test_tokens_classes_and_a_carried_state():
    layer = make(tokens=30, classes=30)
    tokens = torch.randint(30, (7, 4))
    whole, end = layer(tokens)
    assert whole.shape == (7, 4, 30)
    first, state = layer(tokens[:2])
    second, state = layer(tokens[2:], state)
    torch.testing.assert_close(torch.cat([first, second]), whole)
    torch.testing.assert_close(state, end)
    F.cross_entropy(whole.flatten(0, 1), tokens.flatten()).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())
    with torch.no_grad():
        torch.testing.assert_close(layer(tokens)[0], whole)


def test_every_step_has_a_pattern_of_its_own_and_the_gates_share_one():
    layer = make()
    assert len({step.pattern for step in layer.steps}) == 4
    mask = layer.gates.pattern.mask
    assert torch.equal(mask, small_world(4).mask.repeat(4, 1)) and layer.gate_bias[1].eq(1).all()


def test_initial_values():
    wide = SmallWorldLSTM(8, 512, pattern=lambda s: pattern.balanced(512, 512, 16, 0.25, seed=s), steps=2)
    for matrix in [*wide.steps, wide.gates]:
        assert abs(matrix.values.std().item() * 128**0.5 - 1) < 0.02
    same = make(init="identity")
    assert all(torch.equal(dense_of(step), torch.eye(HIDDEN)) for step in same.steps)
    assert torch.equal(dense_of(same.gates), torch.eye(HIDDEN).repeat(4, 1))
    assert torch.equal(dense_of(make(init="identity", pattern=None).steps[0]), torch.eye(HIDDEN))


def test_dropout_is_of_training_alone():
    layer, x = make(dropout=0.5), torch.randn(3, 2, 20)
    assert not torch.equal(layer(x)[0], layer(x)[0])
    assert torch.equal(layer.eval()(x)[0], layer(x)[0])


def test_autocast_16_bits_and_files(tmp_path):
    layer, x = make(), torch.randn(4, 3, 20)
    wanted = layer(x)[0]
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)[0]
    y.float().sum().backward()
    torch.testing.assert_close(y.float(), wanted, atol=6e-2, rtol=6e-2)
    assert layer.gates.values.grad.dtype == torch.float32
    sparseloom.save(layer, tmp_path / "layer.safetensors")
    again = make()
    sparseloom.load(tmp_path / "layer.safetensors", again)
    assert torch.equal(again(x)[0], wanted)
    with pytest.raises(Error, match="a recurrent layer"):
        quantize_(layer)
    found = {each.name: each for each in sparseloom.report(layer, x, seconds=0.01).layers}
    assert found["gates"].tokens == 3 and found["steps.0"].tokens == 3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"steps": 1}, "2 steps"),
        ({"inputs": 36}, "divisor"),
        ({"init": "zeros"}, "identity"),
        ({"pattern": lambda step: pattern.full(64, 64, 16)}, "96 x 96"),
    ],
)
def test_refusals(options, words):
    with pytest.raises(Error, match=words):
        make(**options)
    with pytest.raises(Error, match="20"):
        make()(torch.randn(2, 3, 19))
    with pytest.raises(Error, match="h and c"):
        make()(torch.randn(2, 3, 20), torch.randn(3, HIDDEN))


def test_the_graph_of_a_sequence_goes_with_its_last_user():
    """A CUDA graph captured later must not meet nodes of an earlier backward pass."""
    layer = SmallWorldLSTM(8, 64, pattern=lambda step: pattern.balanced(64, 64, 16, 0.5, step), steps=2)
    lstm = BlockSparseLSTM(32, 64, density=0.5, block=16)
    gc.collect()
    gc.disable()
    try:
        for net, x in ((layer, torch.randn(3, 2, 8)), (lstm, torch.randn(3, 2, 32))):
            net(x)[0].sum().backward()
            kinds = norms.Norm, norms._Kept, steps.Products, steps._Kept
            assert [each for each in gc.get_objects() if type(each) in kinds] == []
    finally:
        gc.enable()
