"""MaskedLinear beside a dense twin of torch: products, gradients by every rule, gates, and pack."""

import copy
import io

import pytest
import torch
import torch.nn.functional as F
from torch.nn.utils import prune
from torch.utils._python_dispatch import TorchDispatchMode

from sparseloom import Error, Pattern
from sparseloom import sparsify as S
from sparseloom.nn import BlockSparseLinear, MaskedLinear
from sparseloom.nn.masked import product as masked_product
from sparseloom.sparsify.gates import Gate
from sparseloom.sparsify.grid import block_sums, expanded

SHAPES = [(70, 100, 16), (64, 32, 8), (8, 40, (8, 16))]


class Factors(Gate):
    """Factors that are a Parameter themselves."""

    def __init__(self, factors):
        super().__init__()
        self.factors = torch.nn.Parameter(factors)

    def forward(self, weight):
        return self.factors


def make(out, features, block, density=0.4, multiply="auto", dtype=torch.float32, **options):
    torch.manual_seed(out)
    layer = MaskedLinear(features, out, block=block, dtype=dtype, **options)
    layer.set_mask_(torch.rand(layer.mask.shape) < density)
    layer.multiply = multiply
    return layer


def elements(layer):
    return expanded(layer.mask, layer.block, (layer.out_features, layer.in_features))


@pytest.mark.parametrize("multiply", ["auto", "blocks", "dense"])
@pytest.mark.parametrize("density", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("out, features, block", SHAPES)
def test_products_and_gradients_are_those_of_the_masked_weight(out, features, block, density, multiply):
    layer = make(out, features, block, density, multiply, dtype=torch.float32)
    x, dy = torch.randn(3, 11, features, requires_grad=True), torch.randn(3, 11, out)
    weight = layer.weight.detach().clone().requires_grad_()
    wanted = F.linear(x, weight * elements(layer), layer.bias)
    y = layer(x)
    torch.testing.assert_close(y, wanted, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(layer(x[0, 0]), wanted[0, 0], atol=1e-5, rtol=1e-5)
    got = torch.autograd.grad(y, [x, layer.weight, layer.bias], dy)
    for a, b in zip(got, torch.autograd.grad(wanted, [x, weight, layer.bias], dy), strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-5)
    assert not got[1][~elements(layer)].any()


@pytest.mark.parametrize("multiply", ["blocks", "dense"])
@pytest.mark.parametrize("share, decay", [(1.0, 0.0), (1.0, 2e-4), (0.25, 0.0), (0.0, 0.5)])
def test_the_pruned_part_gets_what_the_rule_says(share, decay, multiply):
    layer = make(70, 100, 16, multiply=multiply, share=share, decay=decay)
    x, dy = torch.randn(9, 100), torch.randn(9, 70)
    (got,) = torch.autograd.grad(layer(x), [layer.weight], dy)
    whole, inside = dy.t() @ x, elements(layer)
    wanted = torch.where(inside, whole, share * whole + decay * layer.weight.detach())
    torch.testing.assert_close(got, wanted, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("multiply", ["blocks", "dense"])
def test_gates_scale_blocks_and_get_their_gradient(multiply):
    """Also where the gate is zero, and not the sum of G, or that of the gated weight."""
    layer = MaskedLinear(40, 24, block=8, dtype=torch.float64)
    factors = torch.rand(3, 5, dtype=torch.float64)
    factors[0, 1] = factors[2, 2] = 0
    layer.gate, layer.multiply = Factors(factors), multiply
    x, dy = torch.randn(7, 40, dtype=torch.float64), torch.randn(7, 24, dtype=torch.float64)
    g = layer.gate.factors
    whole = dy.t() @ x
    got = torch.autograd.grad(layer(x), [layer.weight, g], dy)
    scale = expanded(factors, (8, 8), (24, 40))
    torch.testing.assert_close(layer(x), F.linear(x, layer.weight * scale, layer.bias))
    torch.testing.assert_close(got[0], whole * scale)
    torch.testing.assert_close(got[1], block_sums(whole * layer.weight.detach(), (8, 8)))
    assert got[1][0, 1] != 0
    assert layer.mask.tolist() == (factors != 0).tolist()


def test_supermask_gradients_are_masked_for_the_weight_and_products_for_the_scores():
    """The trap of the later torchao: an unmasked gradient for the weight, and the sum of G for the scores."""
    gate = S.gradients.Scores().gate(S.methods.supermask(), 5, 7, (16, 16))
    layer = MaskedLinear(100, 70, block=16, gate=gate)
    gate.budget = 0.4
    x, dy = torch.randn(9, 100), torch.randn(9, 70)
    dw, ds = torch.autograd.grad(layer(x), [layer.weight, gate.scores], dy)
    whole, inside = dy.t() @ x, elements(layer)
    assert int(layer.mask.sum()) == 14
    torch.testing.assert_close(dw, whole * inside, atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(ds, block_sums(whole * layer.weight.detach(), (16, 16)), atol=1e-3, rtol=1e-4)
    packed = layer.pack()
    dense = F.linear(x, layer.effective(), layer.bias)
    torch.testing.assert_close(packed(x), dense, atol=1e-5, rtol=1e-5)
    layer.multiply = "dense"
    folded = F.linear(x, packed.to_dense().weight, packed.bias)
    assert torch.equal(layer(x), folded)  # what was folded offline is what ran, to the last bit


def test_the_gradient_of_scores_is_that_of_a_soft_mask_by_finite_differences():
    layer = MaskedLinear(24, 16, block=8, dtype=torch.float64)
    layer.gate = Factors(torch.rand(2, 3, dtype=torch.float64))
    x, dy = torch.randn(5, 24, dtype=torch.float64), torch.randn(5, 16, dtype=torch.float64)

    def loss(factors):
        return (torch.func.functional_call(layer, {"gate.factors": factors}, (x,)) * dy).sum()

    start = layer.gate.factors.detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(loss, (start,))
    hard = S.gradients.Scores().gate(S.methods.movement(0, 9), 2, 3, (8, 8)).double()
    hard.budget, layer.gate = 0.5, hard
    (got,) = torch.autograd.grad((layer(x) * dy).sum(), [hard.scores])
    torch.testing.assert_close(got, torch.autograd.grad(loss_of_soft(layer, x, dy, start), [start])[0])


def loss_of_soft(layer, x, dy, factors):
    weight = layer.weight.detach() * expanded(factors, (8, 8), (16, 24))
    return (F.linear(x, weight, layer.bias.detach()) * dy).sum()


def test_what_is_pruned_may_be_nan():
    layer = make(64, 32, 8, multiply="dense")
    with torch.no_grad():
        layer.weight[~elements(layer)] = float("nan")
    assert layer(torch.randn(5, 32)).isfinite().all()
    assert layer.effective().isfinite().all()


@pytest.mark.parametrize("density", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("out, features, block", SHAPES)
def test_pack_keeps_the_kept_weights_bitwise(out, features, block, density):
    layer = make(out, features, block, density)
    packed = layer.pack()
    assert isinstance(packed, BlockSparseLinear) and torch.equal(packed.pattern.mask, layer.mask)
    assert torch.equal(packed.to_dense().weight, layer.weight * elements(layer))
    assert packed.bias is layer.bias


def test_a_mask_may_change_between_calls_and_copies_are_their_own():
    layer = make(64, 32, 8)
    x = torch.randn(4, 32)
    first = layer(x)
    twin = copy.deepcopy(layer)
    layer.set_mask_(~layer.mask)
    torch.testing.assert_close(
        layer(x) + first, F.linear(x, layer.weight, layer.bias) + layer.bias, atol=1e-5, rtol=1e-5
    )
    assert torch.equal(twin(x), first)
    buffer = io.BytesIO()
    torch.save(layer, buffer)
    buffer.seek(0)
    assert torch.equal(torch.load(buffer, weights_only=False)(x), layer(x))
    twin.load_state_dict(layer.state_dict())
    assert torch.equal(twin(x), layer(x))


def test_a_second_differentiation_is_refused():
    layer, x = make(64, 32, 8), torch.randn(4, 32, requires_grad=True)
    (dx,) = torch.autograd.grad(layer(x).square().sum(), [x], create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        dx.sum().backward()


def test_the_plan_decides_between_blocks_and_the_dense_weight(monkeypatch):
    layer = make(64, 32, 8)
    x, asked, used, answer = torch.randn(5, 32), [], [], {"kernel": "panel", "predicted_us": 2.0}
    real = masked_product.ops.linear
    monkeypatch.setattr(masked_product.ops, "linear", lambda *args: used.append(1) or real(*args))

    def plan(index, direction, dtype, tokens, bias, device):
        asked.append((direction, tokens, index.blocks))
        return answer

    monkeypatch.setattr(masked_product.ops, "plan", plan)
    for cost, blocks in ((1.0, 0), (3.0, 1), (None, 2)):
        masked_product._faster.cache_clear()
        answer["dense_copy_us"] = cost
        layer(x)
        layer(x[:5])  # asked once for one number of tokens and blocks
        assert len(used) == 2 * blocks
    assert asked == [("forward", 5, int(layer.mask.sum()))] * 3
    masked_product._faster.cache_clear()


@pytest.mark.parametrize("gated", [False, True])
def test_a_dense_product_is_one_graph_that_sees_the_next_mask(gated):
    layer = make(64, 32, 8, multiply="dense")
    if gated:
        rule = S.gradients.HardConcrete()
        layer.gate = rule.gate(S.methods.l0(1e-3), 8, 4, (8, 8)).eval()
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    x, dy = torch.randn(5, 32), torch.randn(5, 64)
    for seed in range(2):
        with torch.no_grad():
            torch.manual_seed(seed)
            if gated:
                layer.gate.log_alpha.normal_(0, 3)
            else:
                layer.set_mask_(torch.rand(8, 4) < 0.5)
        factors = layer.gate(layer.weight).detach() if gated else layer.mask.float()
        scale = expanded(factors, (8, 8), (64, 32))
        y = compiled(x)
        torch.testing.assert_close(y, F.linear(x, layer.weight * scale, layer.bias), atol=1e-5, rtol=1e-5)
        (dw,) = torch.autograd.grad(y, [layer.weight], dy)
        torch.testing.assert_close(dw, dy.t() @ x * scale, atol=1e-4, rtol=1e-5)
        assert layer.mask.tolist() == (factors != 0).tolist()


@pytest.mark.parametrize(
    "method", [S.methods.spartan(10, 2), S.methods.supermask()], ids=["spartan", "supermask"]
)
def test_off_the_host_a_gate_is_one_graph_for_all_budgets(method):
    """meta stands for a GPU: there, too, the host cannot read what a tensor holds."""
    layer = MaskedLinear(4, 4, block=1)
    layer.gate, layer.multiply = method.gradient.gate(method, 4, 4, (1, 1)), "dense"
    assert not layer.gate.on_device
    layer.to("meta")
    assert layer.gate.on_device and layer.gate.numbers.is_meta
    graphs = []
    compiled = torch.compile(layer, fullgraph=True, backend=lambda gm, _: graphs.append(gm) or gm)
    for budget in (0.25, 0.5):
        layer.gate.budget, layer.gate.progress = budget, budget
        compiled(torch.empty(3, 4, device="meta")).sum().backward()
    assert len(graphs) == 1 and layer.weight.grad.shape == (4, 4)


def test_autocast_casts_as_it_does_for_a_dense_layer():
    layer = make(64, 32, 8)
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(torch.randn(4, 32))
    y.sum().backward()
    assert y.dtype == torch.bfloat16 and layer.weight.grad.dtype == torch.float32


def test_a_dense_state_dict_rewinds_the_weight_and_leaves_the_mask():
    layer, dense = make(64, 32, 8), torch.nn.Linear(32, 64)
    mask = layer.mask.clone()
    layer.load_state_dict(dense.state_dict())
    assert torch.equal(layer.weight, dense.weight) and torch.equal(layer.mask, mask)
    pruned = prune.l1_unstructured(dense, "weight", 0.5).state_dict()
    layer.load_state_dict(pruned)
    assert torch.equal(layer.weight, dense.weight) and torch.equal(layer.mask, mask)


@pytest.mark.parametrize(
    "break_it, words",
    [
        (lambda layer: layer(torch.randn(3, 31)), r"\[3, 31\]"),
        (lambda layer: layer(torch.randn(3, 32).double()), "float64"),
        (lambda layer: layer.set_mask_(torch.ones(3, 3, dtype=torch.bool)), "one entry for each"),
        (lambda layer: layer.set_mask_(Pattern(64, 32, 16, torch.ones(4, 2, dtype=torch.bool))), "64 x 32"),
        (lambda layer: MaskedLinear(8, 8, block=9), "block"),
    ],
)
def test_what_does_not_fit_is_refused(break_it, words):
    with pytest.raises(Error, match=words):
        break_it(make(64, 32, 8))
    gated = MaskedLinear(32, 64, block=8, gate=Factors(torch.ones(8, 4)))
    with pytest.raises(Error, match="without a gate"):
        gated.set_mask_(gated.mask)


def test_autocast_casts_only_what_is_multiplied_with():
    class Casts(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            y = func(*args, **(kwargs or {}))
            if func is torch.ops.aten._to_copy.default and y.dtype == torch.bfloat16 and y.numel():
                cast.append(y.numel())
            return y

    layer = MaskedLinear(128, 64, block=16)
    layer.set_mask_(torch.eye(4, 8, dtype=torch.bool))
    layer.multiply, cast = "blocks", []
    x = torch.randn(32, 128, requires_grad=True)
    with Casts(), torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
        y.sum().backward()
    weight = layer.weight.detach().clone().requires_grad_()
    exact = F.linear(x, weight * expanded(layer.mask, (16, 16), (64, 128)), layer.bias)
    exact.sum().backward()
    assert y.dtype == torch.bfloat16 and sorted(cast) == sorted([32 * 128, 4 * 16 * 16, 64])
    assert layer.weight.grad.dtype == torch.float32
    torch.testing.assert_close(y.float(), exact, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(layer.weight.grad, weight.grad, rtol=2e-2, atol=0.2)
