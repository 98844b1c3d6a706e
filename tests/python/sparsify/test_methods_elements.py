"""Methods that choose single elements of dense masters: unstructured and n:m, packed as CSR, n:m or 2:4."""

import copy
import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from method_runs import METHODS, MOVING, batches, begin, learn, model, require_packed, require_resumed, train

from sparseloom import Error, InLayout, layouts, pack_, sparsify_
from sparseloom import sparsify as S
from sparseloom.nn import MaskedLinear, Semi24Linear, SparseLinear
from sparseloom.sparsify import methods as M
from sparseloom.sparsify.gates import Gate

DENSITY = 0.25
MASTERS = [name for name in METHODS if METHODS[name][0].gradient.dense_master]


def of_m(name, m=4):
    return dataclasses.replace(METHODS[name][0], select=S.select.NM(m))


def recipe_of(name):
    if name in MOVING:
        return InLayout("csr", MOVING[name], S.RandomFraction(1 - DENSITY), density=DENSITY)
    method, takes = METHODS[name]
    if name == "l0":  # its penalty is a sum over what may be open, 64 times as many as blocks
        method = M.l0(0.005 / 64, lr=0.3)
    if name == "group lasso":  # of one element each
        method = M.group_lasso(2.0, 0.05, 2, 8, 16, 2)
    return InLayout("csr", method, **({"density": DENSITY} if takes else {}))


@pytest.mark.parametrize("name", [*MASTERS, *MOVING])
def test_a_method_trains_single_elements_and_packs_them_as_csr(name):
    net, optimizer, run = begin(recipe_of(name))
    learned = learn(net, optimizer, run)
    kept = [int(held.present().sum()) for held in run.weights]
    sizes = [64 * 96, 96 * 40]
    if name in MOVING or METHODS[name][1]:
        wanted = [math.floor(DENSITY * size + 0.5) for size in sizes]
        assert kept == wanted or ("global" in name and sum(kept) == sum(wanted))
    else:
        assert 0 < sum(kept) < sum(sizes), kept
    masks = {held.name: held.present() for held in run.weights}
    weights = {held.name: held.dense().clone() for held in run.weights}
    pack_(net, optimizer=optimizer)
    for layer_name, mask in masks.items():
        layer = net.get_submodule(layer_name)
        assert isinstance(layer, SparseLinear) and layer.layout.name == "csr"
        if name != "l0":  # whose gates are multiplied in
            assert layer.values.numel() == int(mask.sum())
            assert torch.equal(layer.to_dense().weight, weights[layer_name] * mask)
    require_packed(name, net, optimizer, *learned)


@pytest.mark.parametrize("name", ["magnitude", "gradual", "movement", "supermask", "ac/dc"])
@pytest.mark.parametrize("layout, kind, m", [("nm", SparseLinear, 8), ("semi24", Semi24Linear, 4)])
def test_a_method_trains_n_of_each_m_and_packs_them(name, layout, kind, m):
    options = {"n": 2, "m": 8} if layout == "nm" else {}
    net, optimizer, run = begin(InLayout(layout, of_m(name, m), **options))
    train(net, optimizer, run, batches(1) * 20)
    x = batches(1)[0][0]
    expected = net.eval()(x)  # which makes scores choose anew
    weights = {held.name: (held.dense().clone(), held.present()) for held in run.weights}
    for _, mask in weights.values():
        assert (mask.unflatten(1, (-1, m)).sum(-1) == 2).all()
    pack_(net, optimizer=optimizer)
    for layer_name, (weight, mask) in weights.items():
        layer = net.get_submodule(layer_name)
        assert isinstance(layer, kind) and layer.layout.name == layout
        assert torch.equal(layer.to_dense().weight, weight * mask)
        assert layer.values.requires_grad == (layout == "nm")  # 2:4 has no dW
    torch.testing.assert_close(net(x), expected, atol=1e-5, rtol=1e-5)


def test_n_falls_from_m_along_the_schedule():
    net, optimizer, run = begin(InLayout("nm", of_m("gradual"), n=1, m=4))
    seen = []
    for batch in batches(18):
        train(net, optimizer, run, [batch])
        counts = net[0].mask.unflatten(1, (-1, 4)).sum(-1)
        assert (counts == counts[0, 0]).all()
        seen.append(int(counts[0, 0]))
    assert sorted(set(seen), reverse=True) == [4, 2, 1] and seen == sorted(seen, reverse=True)


@pytest.mark.parametrize("shape, m", [((5, 16), 4), ((3, 10), 4), ((2, 3), 8)])
def test_n_of_m_is_what_the_sparsifier_of_that_name_keeps(shape, m):
    torch.manual_seed(0)
    weight = torch.randn(shape).round(decimals=1)  # with ties
    for n in range(1, m + 1):
        (mask,) = S.select.NM(m)([weight.abs()], [n / m])
        assert torch.equal(mask, S.PerBlockNM(n, m).select_mask(weight))
    (mask,) = S.select.NM(m)([weight.abs()], [0.0])
    assert not mask.any()
    with pytest.raises(Error, match="NaN"):
        S.select.NM(m)([weight * math.nan], [0.5])


@pytest.mark.parametrize("scope", ["layer", "row", "global"])
def test_elements_compete_within_their_scope(scope):
    recipe = InLayout("csr", M.magnitude(2, scope=scope), density=DENSITY)
    net, optimizer, run = begin(recipe)
    with torch.no_grad():
        net[2].weight.mul_(10)
    train(net, optimizer, run, batches(2))
    weights = [held.dense().abs() for held in run.weights]
    masks = [held.present() for held in run.weights]
    if scope == "global":
        flat, kept = (torch.cat([each.flatten() for each in many]) for many in (weights, masks))
        assert int(kept.sum()) == round(DENSITY * len(flat)) and flat[kept].min() >= flat[~kept].max()
        assert masks[1].float().mean() > masks[0].float().mean()
        return
    for weight, mask in zip(weights, masks, strict=True):
        if scope == "row":
            assert (mask.sum(1) == DENSITY * mask.shape[1]).all()
        rows = zip(weight, mask, strict=True) if scope == "row" else [(weight, mask)]
        assert all(each[kept].min() >= each[~kept].max() for each, kept in rows)


@pytest.mark.parametrize("name", ["gradual", "movement", "rigl", "set"])
def test_a_resumed_run_is_the_same_to_the_last_bit(name):
    require_resumed(begin(recipe_of(name)), begin(recipe_of(name)), batches(18))


def test_rigl_among_elements_grows_those_of_the_largest_gradient_from_zero():
    net, optimizer, run = begin(recipe_of("rigl"))
    train(net, optimizer, run, batches(3))
    layer, (x, y) = net[0], batches(1, 7)[0]
    old, seen = layer.mask.clone(), {}

    def watch(module, inputs, output):
        output.register_hook(lambda dy: seen.update(dy=dy))

    layer.register_forward_hook(watch)
    train(net, optimizer, run, [(x, y)])
    new = layer.mask
    share = run._groups[0][0].regrow.share_at(4 / 17)
    count = int(old.sum())
    target = math.floor(DENSITY * old.numel() + 0.5)
    assert int(new.sum()) == target
    growth = (seen["dy"].t() @ x).abs()
    fresh, candidates = new & ~old, ~old & ~new
    assert int(fresh.sum()) >= int(share * min(count, target)) // 2
    assert growth[fresh].min() >= growth[candidates].max() * (1 - 1e-5)
    assert not layer.weight[fresh].any() and not layer.weight[~new].any()
    assert not optimizer.state[layer.weight]["exp_avg"][~(old & new)].any()


class Factors(Gate):
    """Factors that are a Parameter themselves."""

    def __init__(self, factors):
        super().__init__()
        self.factors = torch.nn.Parameter(factors)

    def forward(self, weight):
        return self.factors


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("share, decay", [(0.0, 0.0), (1.0, 2e-4)])
@pytest.mark.parametrize("multiply", ["auto", "blocks", "dense"])
def test_products_and_gradients_are_those_of_the_masked_weight(multiply, share, decay, gated):
    torch.manual_seed(0)
    layer = MaskedLinear(20, 7, block=1, share=share, decay=decay)
    layer.multiply = multiply
    mask = torch.rand(7, 20) < 0.4
    factors = torch.rand(7, 20) * mask if gated else mask.float()
    if gated:
        layer.gate = Factors(factors)
    else:
        layer.set_mask_(mask)
    x, dy = torch.randn(3, 5, 20, requires_grad=True), torch.randn(3, 5, 7)
    y = layer(x)
    torch.testing.assert_close(y, F.linear(x, layer.weight * factors, layer.bias))
    wanted = [*torch.autograd.grad(F.linear(x, layer.weight * factors, layer.bias), [x, layer.bias], dy)]
    extra = [layer.gate.factors] if gated else []
    got = torch.autograd.grad(y, [x, layer.bias, layer.weight, *extra], dy)
    whole = dy.flatten(0, 1).t() @ x.detach().flatten(0, 1)
    wanted.append(whole * factors + ~mask * (share * whole + decay * layer.weight.detach()))
    wanted += [whole * layer.weight.detach()] if gated else []
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)
    assert torch.equal(layer.mask, mask)
    twin = copy.deepcopy(layer)
    twin.load_state_dict(layer.state_dict())
    assert torch.equal(twin(x), y)


def test_the_mask_of_a_call_is_that_of_its_gradient():
    layer = MaskedLinear(8, 4, block=1, bias=False)
    layer.set_mask_(torch.eye(4, 8, dtype=torch.bool))
    y = layer(torch.ones(2, 8))
    layer.set_mask_(~layer.mask)
    y.sum().backward()
    assert torch.equal(layer.weight.grad != 0, torch.eye(4, 8, dtype=torch.bool))


def test_what_is_kept_at_first_is_the_largest_unless_a_sparsifier_says_else():
    weight = model()[0].weight.detach()
    net, *_ = begin(InLayout("csr", MOVING["rigl"], density=DENSITY))
    assert torch.equal(net[0].mask, S.ScalarFraction(1 - DENSITY).select_mask(weight))
    chosen = weight > 0
    net = model()
    recipe = InLayout("csr", MOVING["rigl"], S.SameFormat(chosen), density=0.5)
    sparsify_(net, {"0": recipe})
    assert torch.equal(net[0].mask, chosen)


def test_a_scan_and_densities_of_single_elements():
    net = model()
    x, y = batches(1)[0]
    weights = {name: net.get_parameter(f"{name}.weight") for name in "02"}
    before = {name: weight.detach().clone() for name, weight in weights.items()}
    counts = []

    def evaluate():
        counts.append([int(weight.count_nonzero()) for weight in weights.values()])
        return float(F.cross_entropy(net(x), y).detach())

    S.densities.sensitivity(weights, evaluate, 1, (0.5, 0.1))
    assert counts == [[6144, 3840], [3072, 3840], [614, 3840], [6144, 1920], [6144, 384]]
    assert all(torch.equal(weights[name], before[name]) for name in weights)
    shapes = {name: tuple(weight.shape) for name, weight in weights.items()}
    found = S.densities.erdos_renyi(shapes, 0.1, block=1)
    assert sum(found[name] * weight.numel() for name, weight in weights.items()) == pytest.approx(998.4)


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: InLayout("csr", M.rigl(10), density=0.1), "trains a dense weight, got Stored"),
        (lambda: InLayout("csr", M.gradual(1, 2)), "a density"),
        (lambda: InLayout("csr", M.l0(1e-3), density=0.1), "no density"),
        (
            lambda: InLayout("csr", M.gradual(1, 2), density=0.1, mask=None),
            "density beside a method, got mask",
        ),
        (lambda: InLayout("nmg", M.gradual(1, 2), n=2, m=4, g=1), "elements a method can choose, got nmg"),
        (lambda: InLayout("nmg", M.gradual(1, 2), density=0.5), "layout nmg: n, m, g, got density"),
        (lambda: InLayout("nm", of_m("gradual"), n=2.5, m=4), r"whole numbers 0 < n < m, got n=2\.5, m=4"),
        (lambda: InLayout("nm", of_m("gradual"), n="a", m=4), "whole numbers 0 < n < m, got n='a', m=4"),
        (lambda: InLayout("nm", of_m("gradual"), n=4, m=4), "whole numbers 0 < n < m, got n=4, m=4"),
        (lambda: InLayout("nm", M.gradual(1, 2), n=2, m=4), r"select=select.NM\(4\)"),
        (lambda: InLayout("nm", of_m("gradual", 8), n=2, m=4), r"select=select.NM\(4\), .* got NM\(m=8\)"),
        (lambda: InLayout("semi24", of_m("gradual"), density=0.5), "layout semi24: prune, got density"),
        (
            lambda: InLayout("semi24", of_m("gradual"), prune="magnitude"),
            "no option beside a method, got prune",
        ),
        (lambda: dataclasses.replace(MOVING["rigl"], select=S.select.NM(4)), "no regrowth beside select.NM"),
        (lambda: S.select.NM(0), "m to be an int >= 1"),
        (lambda: S.select.NM(4).take([torch.ones(2, 4)], [3]), "a density, got counts"),
        (lambda: MaskedLinear(8, 4, block=1).pattern, "blocks, which have a pattern"),
        (lambda: MaskedLinear(8, 4, block=1).pack(), "pack_elements"),
        (lambda: MaskedLinear(8, 8, block=8).pack_elements(), r"call pack\(\)"),
        (lambda: MaskedLinear(8, 4, block=1).set_mask_(torch.ones(1, 1, dtype=torch.bool)), r"mask \[4, 8\]"),
    ],
)
def test_what_does_not_fit_is_refused(make, words):
    with pytest.raises(Error, match=words):
        make()


def test_elements_that_a_layout_cannot_store_are_refused():
    layer = MaskedLinear(8, 4, block=1, layout=layouts.Nm, options={"n": 1, "m": 4})
    with pytest.raises(Error, match="elements that nm can store"):
        layer.pack_elements()
