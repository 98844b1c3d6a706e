"""The parts of a method alone: scores, choices, schedules, gates and the distillation loss."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F

from sparseloom import Error, ops
from sparseloom import nn as sparse
from sparseloom import sparsify as S
from sparseloom.ops.scores import gradient_scores
from sparseloom.sparsify.gates import HardConcreteGate, ScoreGate, SoftTopK, TransportGate
from sparseloom.sparsify.grid import block_sums, elements, expanded
from sparseloom.sparsify.regrow import shrunk

NORMS = {
    "l1": lambda b: b.abs().sum(),
    "l2": lambda b: b.square().sum().sqrt(),
    "max": lambda b: b.abs().max(),
}


def blocks_of(matrix, block):
    return [list(row.split(block[1], 1)) for row in matrix.split(block[0], 0)]


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_norms_are_those_of_the_blocks(norm, dtype):
    weight = torch.randn(48, 64).to(dtype)
    got = S.scores.Norm(norm)(S.Context(weight, (16, 8)))
    wanted = [[NORMS[norm](b.double()) for b in row] for row in blocks_of(weight, (16, 8))]
    torch.testing.assert_close(got.double(), torch.tensor(wanted, dtype=torch.float64), rtol=1e-6, atol=0)


@pytest.mark.parametrize("norm", NORMS)
def test_masks_follow_blocks_and_do_not_depend_on_the_dtype(norm):
    weight = torch.randn(64, 64)
    (mask,) = S.select.TopK()([S.scores.Norm(norm)(S.Context(weight, (8, 8)))], [0.3])
    order = torch.randperm(8)
    moved = torch.cat([weight.split(8)[i] for i in order])
    (after,) = S.select.TopK()([S.scores.Norm(norm)(S.Context(moved, (8, 8)))], [0.3])
    assert torch.equal(after, mask[order])
    for dtype in (torch.float16, torch.bfloat16):
        half = weight.to(dtype)
        scores = [S.scores.Norm(norm)(S.Context(w, (8, 8))) for w in (half, half.float())]
        assert torch.equal(*S.select.TopK()(scores, [0.3, 0.3]))


@pytest.mark.parametrize("norm", NORMS)
def test_a_ragged_block_counts_as_if_it_were_whole(norm):
    weight = torch.ones(20, 12)
    got = S.scores.Norm(norm)(S.Context(weight, (8, 8)))
    assert got.shape == (3, 2) and torch.allclose(got, got[0, 0].expand(3, 2))


def test_signs_do_not_count():
    """A trap of others' code: the largest signed value, and not the largest magnitude."""
    weight = torch.full((16, 16), 0.1)
    weight[8:, 8:] = -5.0
    scores = S.scores.Norm("max")(S.Context(weight, (8, 8)))
    (mask,) = S.select.TopK()([scores], [0.25])
    assert mask.tolist() == [[False, False], [False, True]]


@pytest.mark.parametrize("scope", ["layer", "row", "global"])
@pytest.mark.parametrize("share", [0.0, 0.13, 0.5, 0.875, 1.0])
def test_top_k_is_exact_and_ties_go_to_the_lowest_index(scope, share):
    scores = [torch.randint(0, 3, (6, 7)).float(), torch.randint(0, 3, (4, 4)).float()]
    masks = S.select.TopK(scope)(scores, [share, share])
    counts = [math.floor(share * each.numel() + 0.5) for each in scores]
    if scope == "global":
        scores, masks = [torch.cat([s.flatten() for s in scores])], [torch.cat([m.flatten() for m in masks])]
        counts = [sum(counts)]
    for score, mask, count in zip(scores, masks, counts, strict=True):
        assert int(mask.sum()) == count
        if scope == "row":
            per_row = mask.sum(1)
            assert int(per_row.max() - per_row.min()) <= 1
        else:
            order = sorted(range(score.numel()), key=lambda i: (-float(score.flatten()[i]), i))
            assert sorted(order[:count]) == mask.flatten().nonzero().flatten().tolist()


def test_what_may_not_be_taken_is_not_and_rows_fill_up_from_others():
    scores = torch.arange(12.0).view(3, 4)
    scores[0] = -math.inf
    assert int(S.select.top(scores, 12).sum()) == 8
    by_row = S.select.top(scores, 6, "row")
    assert int(by_row.sum()) == 6 and not by_row[0].any()


def test_a_threshold_keeps_what_exceeds_it_and_a_least_share():
    scores = torch.tensor([[0.1, 0.4], [0.4, 0.9]])
    (mask,) = S.select.Threshold(0.0)([scores], [0.4])
    assert mask.tolist() == [[False, False], [False, True]]
    (mask,) = S.select.Threshold(0.3)([scores], [2.0])
    assert mask.tolist() == [[False, True], [False, True]]


@pytest.mark.parametrize("count", [0, 1, 5, 17, 24, 40])
def test_the_choice_that_leaves_the_host_out_is_the_same(count):
    """Scores of a layer on a GPU are sorted there; what does it runs on a CPU as well."""
    scores = torch.randint(0, 3, (4, 6), generator=torch.Generator().manual_seed(count)).float()
    scores[1, :4] = -math.inf
    assert torch.equal(S.select._top_there(scores, count), S.select.top(scores, count))


@pytest.mark.parametrize("select", [S.select.TopK(), S.select.NM(4), S.select.NM(6)])
def test_a_budget_on_the_device_buys_what_it_buys_on_the_host(select):
    assert select.leaves_host_out and not S.select.TopK("row").leaves_host_out
    scores = torch.randint(0, 9, (7, 10), generator=torch.Generator().manual_seed(0)).float()
    for share in [i / 30 for i in range(31)]:
        there = select.there(scores, torch.tensor(share, dtype=torch.float64))
        assert torch.equal(there, *select([scores], [share])), share


@pytest.mark.parametrize(
    "select", [S.select.TopK(), S.select.TopK("row"), S.select.TopK("global"), S.select.Threshold()]
)
def test_nan_scores_are_refused(select):
    scores = torch.rand(3, 3)
    scores[1, 2] = float("nan")
    with pytest.raises(Error, match="block row 1, block column 2"):
        select([scores], [0.5])


def test_the_cubic_begins_and_ends_where_it_should():
    cubic = S.schedules.Cubic(start=20, end=120, every=30, initial=0.9)
    assert [t for t in range(200) if cubic.due(t)] == [20, 50, 80, 110, 120]
    budgets = [cubic.budget(t, 0.2) for t in range(200)]
    assert budgets[:21] == pytest.approx([0.9] * 21) and budgets[120:] == [0.2] * 80
    assert all(a >= b for a, b in itertools.pairwise(budgets))
    assert budgets[70] == pytest.approx(0.2 + 0.7 * 0.5**3)
    assert budgets[119] - budgets[120] < 1e-5 < budgets[20] - budgets[21]  # flat at its end


def test_the_other_schedules():
    constant = S.schedules.Constant(every=10, end=40)
    assert [t for t in range(100) if constant.due(t)] == [10, 20, 30] and constant.is_fixed(0.3)
    assert constant.progress(20) == 0.5 and constant.budget(77, 0.3) == 0.3
    phases = S.schedules.Alternating(start=10, every=5, end=30)
    states = [phases.compressed(t) for t in range(40)]
    assert states == [False] * 10 + [True] * 5 + [False] * 5 + [True] * 5 + [False] * 5 + [True] * 10
    assert [t for t in range(40) if phases.due(t)] == [10, 15, 20, 25, 30]
    assert phases.budget(12, 0.2) == 0.2 and phases.budget(17, 0.2) == 1.0 and not phases.is_fixed(0.2)
    rising = S.schedules.Rising(0.1, start=10, turn=30, end=50, every=10)
    assert [round(rising.budget(t, 0), 6) for t in (0, 10, 20, 30, 40, 50, 90)] == [
        0,
        0,
        0.1,
        0.2,
        0.35,
        0.5,
        0.5,
    ]
    soft = S.schedules.Sharpening(10, 40)
    assert (
        soft.budget(5, 0.2) == pytest.approx(0.6)
        and soft.budget(10, 0.2) == 0.2
        and soft.progress(10) == 0.25
    )
    assert S.schedules.cosine(0) == 1 and S.schedules.cosine(1) == pytest.approx(0, abs=1e-12)
    with pytest.raises(Error, match="start <= end"):
        S.schedules.Cubic(5, 4)


@pytest.mark.parametrize("shape, block", [((20, 30), (8, 16)), ((16, 16), (8, 8))])
def test_sums_over_blocks_and_back(shape, block):
    matrix = torch.randn(shape, dtype=torch.float64)
    sums = block_sums(matrix, block)
    wanted = [[b.sum() for b in row] for row in blocks_of(matrix, block)]
    torch.testing.assert_close(sums, torch.tensor(wanted, dtype=torch.float64))
    assert torch.equal(elements(shape, block).double(), block_sums(torch.ones(shape).double(), block))
    torch.testing.assert_close(block_sums(expanded(sums, block, shape), block), sums * elements(shape, block))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_gradient_scores_are_norms_of_the_sum_over_micro_batches(norm, dtype):
    pairs = [(torch.randn(n, 20).to(dtype), torch.randn(n, 30).to(dtype)) for n in (5, 9)]
    whole = sum(dy.double().t() @ x.double() for dy, x in pairs)
    wanted = [[NORMS[norm](b) for b in row] for row in blocks_of(whole, (8, 16))]
    got = gradient_scores(pairs, 20, 30, (8, 16), norm)
    torch.testing.assert_close(got.double(), torch.tensor(wanted, dtype=torch.float64), rtol=1e-5, atol=1e-6)


def test_gradient_scores_in_strips_are_the_same(monkeypatch):
    pairs = [(torch.randn(7, 200).double(), torch.randn(7, 64).double())]
    whole = gradient_scores(pairs, 200, 64, (8, 8), "l2")
    monkeypatch.setattr("sparseloom.ops.scores._STRIP", 1000)
    torch.testing.assert_close(gradient_scores(pairs, 200, 64, (8, 8), "l2"), whole, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "arguments, words",
    [
        ((torch.ones(4, 8), torch.ones(5, 8), 8, 8, "l2"), ("5 rows", "4")),
        ((torch.ones(4, 8), torch.ones(4, 8), 8, 8, "l3"), ("norm 'l1'", "'l3'")),
        ((torch.ones(4, 8), torch.ones(4, 8), 12, 8, "l2"), ("12",)),
        ((torch.ones(4, 8).double(), torch.ones(4, 8).double(), 8, 8, "l2"), ("f64",)),
        ((torch.ones(4, 8).half(), torch.ones(4, 8), 8, 8, "l2"), ("f32", "f16")),
    ],
)
def test_the_norms_of_a_gradient_refuse_what_does_not_fit(arguments, words):
    with pytest.raises(Error) as caught:
        ops.call("block_gradient_norms", *arguments)
    assert all(word in str(caught.value) for word in words)


def test_scores_get_the_gradient_of_the_mask_straight_through():
    gate = ScoreGate(S.scores.Learned(), S.select.TopK(), 4, 5, False, 0.0)
    gate.budget = 0.3
    mask = gate(torch.empty(0))
    assert int(mask.sum()) == 6
    grad = torch.randn(4, 5)
    (mask * grad).sum().backward()
    assert torch.equal(gate.scores.grad, grad)
    twin = ScoreGate(S.scores.Learned(), S.select.TopK(), 4, 5, False, 0.0)
    twin.load_state_dict(gate.half().state_dict())
    assert twin.budget == 0.3


def test_the_soft_penalty_follows_the_schedule():
    gate = ScoreGate(S.scores.Learned("zeros"), S.select.Threshold(), 4, 5, True, 3.0)
    gate.progress = 0.5
    assert gate.penalty().item() == pytest.approx(3.0 * 0.5 * 0.5)


@pytest.mark.parametrize("k", [1, 4, 11])
def test_the_soft_top_k_meets_its_budget_and_its_gradient(k):
    v = torch.rand(12, dtype=torch.float64, requires_grad=True)
    m = SoftTopK.apply(v, k, 5.0)
    assert m.sum().item() == pytest.approx(k, abs=1e-6)
    assert torch.autograd.gradcheck(lambda v: SoftTopK.apply(v, k, 5.0), (v,), atol=1e-6)
    sharp = SoftTopK.apply(v.detach(), k, 1e6)
    hard = torch.zeros(12, dtype=torch.float64).scatter_(0, v.topk(k).indices, 1.0)
    torch.testing.assert_close(sharp, hard, atol=1e-4, rtol=0)


def test_spartans_factors_are_soft_and_then_fixed():
    gate, weight = TransportGate(4, 4, (8, 8), 20.0), torch.randn(32, 32) / 50
    gate.budget = 0.25
    gate.progress = 0.1
    soft = gate(weight)
    assert int((soft > 0).sum()) == 4 and bool((soft < 1).all())
    gate.progress = 1.0
    hard = gate(weight)
    assert set(hard.unique().tolist()) == {0.0, 1.0} and int(hard.sum()) == 4
    assert torch.equal(gate(torch.randn(32, 32)), hard)
    twin = TransportGate(4, 4, (8, 8), 20.0)
    twin.load_state_dict(gate.half().state_dict())
    assert (
        twin.numbers.tolist() == gate.numbers.tolist() == [0.25, 1.0] and gate.numbers.dtype == torch.float64
    )
    assert torch.equal(twin(torch.randn(32, 32)), hard)


@pytest.mark.parametrize("budget", [0.0, 0.01, 0.99, 1.0])
def test_spartans_mask_is_hard_where_none_or_all_are_kept(budget):
    gate, weight = TransportGate(4, 4, (8, 8), 20.0), torch.randn(32, 32, requires_grad=True)
    gate.budget, gate.progress = budget, 0.5
    factors = gate(weight)
    assert torch.equal(factors, torch.full((4, 4), round(budget) * 1.0))
    factors.sum().backward()
    assert weight.grad is None or not weight.grad.any()


def test_the_search_by_halvings_is_that_by_many_candidates(monkeypatch):
    v = torch.rand(500, dtype=torch.float64)
    found = []
    for few in (0, 500):
        monkeypatch.setattr(S.gates, "_FEW_ON_HOST", few)
        found.append(SoftTopK.apply(v, 100, 9.0))
    torch.testing.assert_close(*found, atol=1e-12, rtol=0)


def test_hard_concrete_gates_are_open_as_often_as_they_say():
    torch.manual_seed(0)
    gate = HardConcreteGate(S.scores.Learned("open", 0.3), 12, 5000, 0.5)
    with torch.no_grad():
        gate.log_alpha.copy_(torch.linspace(-2, 2, 12)[:, None].expand(12, 5000))
    drawn = torch.stack([gate(torch.empty(0)) > 0 for _ in range(12)]).float().mean((0, 2))
    torch.testing.assert_close(drawn, gate.open_chance()[:, 0], atol=1e-2, rtol=0)
    assert gate.penalty().item() == pytest.approx(0.5 * gate.open_chance().sum().item(), rel=1e-5)
    gate.eval()
    wanted = (torch.sigmoid(gate.log_alpha) * 1.2 - 0.1).clamp(0, 1)
    torch.testing.assert_close(gate(torch.empty(0)), wanted)


def test_the_gradient_of_hard_concrete_gates_is_that_of_finite_differences():
    gate = HardConcreteGate(S.scores.Learned("open"), 3, 4, 0.5).double()

    def drawn(log_alpha):
        torch.manual_seed(0)  # the same noise in each call
        return torch.func.functional_call(gate, {"log_alpha": log_alpha}, (torch.empty(0),))

    start = torch.linspace(-1, 1, 12, dtype=torch.float64).view(3, 4).requires_grad_()
    inside = ((factors := drawn(start).detach()) > 0) & (factors < 1)
    assert inside.any() and not inside.all()
    assert torch.autograd.gradcheck(drawn, (start,))


def test_the_proximal_step_is_that_of_the_group_lasso():
    blocks = torch.randn(6, 8, 8)
    blocks[2] *= 1e-3
    blocks[4] = 0
    got = shrunk(blocks, 0.5, (1, 2))
    assert not got[2].any() and not got[4].any()
    # It minimises .5 ||z - w||^2 + .5 ||z||: the gradient there is zero.
    for z, w in zip(got, blocks, strict=True):
        if z.any():
            torch.testing.assert_close(z - w + 0.5 * z / z.norm(), torch.zeros(8, 8), atol=1e-5, rtol=0)


def test_the_distillation_loss_is_its_formula():
    student, teacher = torch.randn(6, 10, requires_grad=True), torch.randn(6, 10, requires_grad=True)
    labels = torch.randint(10, (6,))
    loss = S.distillation_loss(student, teacher, labels, temperature=3.0, alpha=0.7)
    p = torch.softmax(teacher / 3, -1)
    kl = (p * (p.log() - torch.log_softmax(student / 3, -1))).sum(-1).mean()
    torch.testing.assert_close(loss, 0.7 * 9 * kl + 0.3 * F.cross_entropy(student, labels))
    loss.backward()
    assert teacher.grad is None and student.grad is not None
    assert S.distillation_loss(student, student).item() == pytest.approx(0, abs=1e-6)
    # T^2 keeps the gradient's scale: for large T it is that of half the mean squared distance of the logits
    # less their means, over the number of classes
    (got,) = torch.autograd.grad(S.distillation_loss(student, teacher, temperature=1e3), [student])
    distance = student - teacher
    wanted = (distance - distance.mean(-1, keepdim=True)).detach() / distance.numel()
    torch.testing.assert_close(got, wanted, atol=1e-4, rtol=1e-2)


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: S.Method(score="l2"), "score to be a Score"),
        (lambda: S.Method(select=S.select.TopK("global")), "number is fixed"),
        (lambda: S.scores.Norm("l3"), "l1, l2, max"),
        (lambda: S.scores.Learned("ones"), "init"),
        (lambda: S.select.TopK("column"), "scope"),
        (lambda: S.regrow.Gradient(share=2), "share"),
        (lambda: S.regrow.Gradient(steps=0), "steps"),
        (lambda: S.regrow.Random(init="normal"), "init"),
        (lambda: S.Method(regrow=S.gradients.Masked()), "regrow to be a Regrow"),
    ],
)
def test_parts_that_do_not_fit_are_refused(make, words):
    with pytest.raises(Error, match=words):
        make()


METHODS = {
    "gradual": {"begin": 0, "end": 10},
    "set_": {},
    "rigl": {"end": 10},
    "decreasing": {"begin": 0, "end": 10},
    "movement": {"begin": 0, "end": 10},
    "soft_movement": {"begin": 0, "end": 10},
    "group_lasso": {"rate": 0.1, "threshold": 0.1, "begin": 0, "turn": 5, "end": 10},
    "ac_dc": {"warm_up": 1, "phase": 2, "end": 10},
    "spartan": {"warm_up": 1, "end": 10},
    "magnitude": {"at": 1},
}


@pytest.mark.parametrize("name", METHODS)
def test_steps_that_are_none_give_our_error(name):
    """every=0 gave ZeroDivisionError, words a TypeError."""
    make, options = getattr(S.methods, name), METHODS[name]
    make(**options)
    for key in {*options, "every"} - {"rate", "threshold"}:
        if key == "every" and key not in make.__code__.co_varnames:
            continue
        for wrong in (-1, math.nan, "a", *([0, 1.5, None] if key in ("every", "phase") else [])):
            with pytest.raises(Error):
                make(**{**options, key: wrong})


@pytest.mark.parametrize("drop", [0, 1, 0.0, 1.0, -0.5, 2, math.nan, math.inf, "a", None])
def test_a_share_of_dropped_blocks_without_log_odds_gives_our_error(drop):
    """ZeroDivisionError, ValueError, or gates of NaN, when the layer was made."""
    layer = sparse.BlockSparseLinear(32, 32, density=0.5, block=8)
    for make in (
        lambda: S.methods.l0(0.1, drop=drop),
        lambda: sparse.GatedBlockSparseLinear(layer, drop=drop),
    ):
        with pytest.raises(Error, match="drop"):
            make()
