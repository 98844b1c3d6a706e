"""Densities of single layers: by shape, and by a scan of what pruning each costs."""

import pytest
import torch

from sparseloom import Error, pattern
from sparseloom import sparsify as S
from sparseloom.layouts import Tiles
from sparseloom.sparsify.grid import expanded


@pytest.mark.parametrize("density", [0.05, 0.2, 0.6, 1.0])
def test_erdos_renyi_densities_meet_the_budget(density):
    shapes = {"a": (256, 64), "b": (256, 256), "c": (32, 32), "d": (1024, 4096)}
    found = S.densities.erdos_renyi(shapes, density, 16)
    cells = {name: (o // 16) * (i // 16) for name, (o, i) in shapes.items()}
    assert sum(found[n] * cells[n] for n in cells) == pytest.approx(density * sum(cells.values()))
    assert all(0 <= value <= 1 for value in found.values())
    partly = [n for n in ("a", "b", "d") if found[n] < 1]
    raw = [found[n] * cells[n] / (shapes[n][0] + shapes[n][1]) for n in partly]
    assert raw == pytest.approx([raw[0]] * len(raw)) if raw else density == 1.0


def test_a_scan_prunes_one_weight_at_a_time_and_its_proposal_spares_the_sensitive_one():
    torch.manual_seed(0)
    needed, other = torch.randn(64, 64), torch.randn(64, 64)
    x = torch.randn(50, 64)
    target = x @ needed.t()
    weights = {"needed": needed.clone(), "other": other.clone()}

    def loss():
        return float((x @ weights["needed"].t() + 1e-3 * (x @ weights["other"].t()) - target).square().mean())

    scan = S.densities.sensitivity(weights, loss, 8, (0.5, 0.25))
    assert torch.equal(weights["needed"], needed) and torch.equal(weights["other"], other)
    chosen = pattern.from_dense(needed, 8, 0.25, "l2").mask
    pruned = needed * expanded(chosen, (8, 8), (64, 64))
    wanted = float((x @ pruned.t() + 1e-3 * (x @ other.t()) - target).square().mean()) - loss()
    assert scan["needed"][0.25] == pytest.approx(wanted, rel=1e-4)
    tiles = S.densities.sensitivity(
        weights, loss, densities=(0.6,), mask=lambda w, density: Tiles.from_dense(w, density).mask()
    )
    halves = needed * Tiles.from_dense(needed, 0.6).mask()  # the only tile, 2:4
    wanted = float((x @ (needed - halves).t()).square().mean())
    assert tiles["needed"][0.6] == pytest.approx(wanted, rel=0.01) and torch.equal(weights["needed"], needed)
    found = S.densities.proposed(scan, {"needed": 64, "other": 64}, 0.7)
    assert found == {"needed": 1.0, "other": 0.25}
    with pytest.raises(Error, match=r"at least 0.25"):
        S.densities.proposed(scan, {"needed": 64, "other": 64}, 0.1)


def test_a_budget_of_time_goes_where_time_is_saved():
    scan = {"slow": {0.5: 1.0, 0.25: 2.0}, "fast": {0.5: 1.0, 0.25: 1.5}}
    costs = {"slow": {1.0: 100.0, 0.5: 99.0, 0.25: 20.0}, "fast": {1.0: 100.0, 0.5: 60.0, 0.25: 55.0}}
    # slow's first step saves next to nothing, and both steps at once save most for what they lose
    assert S.densities.proposed(scan, costs, 0.7) == {"slow": 0.25, "fast": 1.0}
    assert S.densities.proposed(scan, costs, 0.5) == {"slow": 0.25, "fast": 0.5}
    never = {"slow": {1.0: 1.0, 0.5: 1.0, 0.25: 1.2}, "fast": {1.0: 1.0, 0.5: 0.5, 0.25: 0.5}}
    assert S.densities.proposed(scan, never, 0.75) == {"slow": 1.0, "fast": 0.5}
    with pytest.raises(Error, match=r"at least 0.75"):
        S.densities.proposed(scan, never, 0.7)
    with pytest.raises(Error, match=r"the cost of slow .* at 1.0.*none at 1, 0.25"):
        S.densities.proposed(scan, {**costs, "slow": {0.5: 3.0}}, 0.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_times_are_those_of_the_plans_and_at_most_denses(dtype):
    weights = {"wide": torch.randn(256, 1024, dtype=dtype), "odd": torch.randn(70, 130, dtype=dtype)}
    found = S.densities.times(weights, 64, Tiles.from_dense, (0.5, 0.1))
    assert [list(each) for each in found.values()] == [[1.0, 0.5, 0.1]] * 2
    assert all(0 < us <= each[1.0] for each in found.values() for us in each.values())

    class Planned:
        def __init__(self, us):
            self.us = us

        def plan(self, *call):
            assert call == (64, "forward", dtype, False)
            return {"predicted_us": self.us}

    found = S.densities.times(weights, 64, lambda w, d: Planned(1e-3 if d < 0.2 else 1e12), (0.5, 0.1))
    assert all(each[0.1] == 1e-3 and each[0.5] == each[1.0] for each in found.values())
    with pytest.raises(Error, match="tokens"):
        S.densities.times(weights, 0, Tiles.from_dense)
