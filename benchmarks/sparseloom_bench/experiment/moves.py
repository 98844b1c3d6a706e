"""What moving blocks tell of themselves while a network trains: gradients of those that are dropped and
grown, their lives, Adam's first steps after growth, and how many blocks were ever tried."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from sparseloom.sparsify import Method, Run, regrow
from sparseloom.sparsify.held import Held

#: Steps after a change at which the updates of new blocks are compared with those of old ones.
AGES = (1, 2, 5, 10, 20, 50)
#: What a block may be at a change.
KINDS = ("kept", "dropped", "grown", "absent")


@dataclass(frozen=True)
class _Noted(regrow.Regrow):
    """Another rule, of which ``Moves`` reads the norms of the gradients of all blocks. SET has them here too,
    and does not use them."""

    rule: regrow.Regrow = regrow.Random()  # noqa: RUF009  frozen
    warm_up: int = 0
    steps: int = 1
    grace: int = 0

    @property
    def needs_gradient(self) -> bool:  # type: ignore[override]
        return True

    def share_at(self, progress: float) -> float:
        return self.rule.share_at(progress)

    def scores(self, held: Held, step: int) -> Tensor | None:
        norms = held.gradient_scores("l2")
        held.noted = norms  # type: ignore[attr-defined]
        return norms if self.rule.needs_gradient or norms is None else self.rule.scores(held, step)

    def grown(self, held: Held, step: int, mask: Tensor) -> Tensor | None:
        return self.rule.grown(held, step, mask)


def noted(method: Method) -> Method:
    """Returns a method whose blocks move as before, and tell ``Moves`` their gradients."""
    assert method.regrow is not None
    rule = method.regrow
    return replace(method, regrow=_Noted(rule, rule.warm_up, rule.steps, rule.grace))


class Moves:
    """Watches the weights of a run of one method. Call ``after()`` after each of its steps; it reads from the
    device only where blocks change, and at AGES."""

    def __init__(self, run: Run, method: Method, optimizer: Optimizer) -> None:
        self.run, self.method, self.optimizer = run, method, optimizer
        self.masks = [held.present() for held in run.weights]
        self.tried = [mask.clone() for mask in self.masks]
        #: The change that gave each block its place, 0 the start, and whether it was grown before.
        self.born = [torch.zeros(mask.shape, dtype=torch.int32) for mask in self.masks]
        self.dropped_once = [torch.zeros_like(mask) for mask in self.masks]
        self.changes: list[dict[str, Any]] = []
        self.lives: list[int] = []  # of grown blocks that were dropped again, in changes
        self.first = 0  # blocks of the start that were dropped
        self.steps: list[dict[str, Any]] = []  # updates of new blocks beside old ones
        self._new: list[Tensor] = []  # bool [blocks] of each weight: those of the last change
        self._since = 0

    def after(self) -> None:
        """Notes what the last step did."""
        step = self.run.steps
        if self.method.schedule.due(step):
            self._changed(step)
        elif self._new and step - self._since in AGES:
            self._compare(step)

    def _changed(self, step: int) -> None:
        number = len(self.changes) + 1
        counts = dict.fromkeys(KINDS, 0)
        sums = dict.fromkeys(KINDS, 0.0)
        returned, new = 0, []
        for at, held in enumerate(self.run.weights):
            mask, old = held.present(), self.masks[at]
            dropped, grown = old & ~mask, mask & ~old
            norms = getattr(held, "noted", None)
            places = {"kept": old & mask, "dropped": dropped, "grown": grown, "absent": ~(old | mask)}
            for kind, place in places.items():
                counts[kind] += int(place.sum())
                if norms is not None:
                    sums[kind] += float(norms[place].sum())
            born = self.born[at][dropped]
            self.first += int((born == 0).sum())
            self.lives += (number - born[born > 0]).tolist()
            returned += int((grown & self.dropped_once[at]).sum())
            self.dropped_once[at] |= dropped
            self.born[at][grown] = number
            self.tried[at] |= mask
            self.masks[at] = mask
            new.append(grown[mask])  # blocks are stored in row-major order
        if not counts["grown"] and not counts["dropped"]:
            return
        gradients = {kind: sums[kind] / counts[kind] if counts[kind] else None for kind in KINDS}
        self.changes.append(
            {"step": step, "grown": counts["grown"], "kept": counts["kept"], "returned": returned,
             "gradients": gradients, "tried": self.share_tried()}
        )  # fmt: skip
        self._new, self._since = new, step

    def share_tried(self) -> float:
        """Returns the share of all blocks that ever existed."""
        return sum(int(each.sum()) for each in self.tried) / sum(each.numel() for each in self.tried)

    @torch.no_grad()
    def _compare(self, step: int) -> None:
        """Notes the root of the mean square of Adam's updates over the rate, of new and of old blocks, and
        that of their second moments."""
        totals = torch.zeros(2, 3, dtype=torch.float64)
        for held, new in zip(self.run.weights, self._new, strict=True):
            totals += _squares(held, new, self.optimizer).cpu()
        means = (totals[:, :2] / totals[:, 2:].clamp(min=1)).sqrt()
        (grown, grown_v), (old, old_v) = means.tolist()
        self.steps.append(
            {"step": step, "age": step - self._since, "grown": grown, "kept": old,
             "second_grown": grown_v, "second_kept": old_v}
        )  # fmt: skip

    def record(self) -> dict[str, Any]:
        """Returns all of it as JSON has it. Lives are counts by their length in changes; blocks that still
        live are apart."""
        longest = max(self.lives, default=0)
        alive = [int(each) for mask, born in zip(self.masks, self.born, strict=True) for each in born[mask]]
        number = len(self.changes)
        return {
            "changes": self.changes, "updates": self.steps, "tried": self.share_tried(),
            "lives": [self.lives.count(each) for each in range(1, longest + 1)],
            "alive": _counts([number - each + 1 for each in alive if each > 0], number),
            "first_dropped": self.first, "first_left": sum(each == 0 for each in alive),
        }  # fmt: skip

    def state_dict(self) -> dict[str, Any]:
        """Returns plain data for ``load_state_dict``."""
        names = (
            "masks",
            "tried",
            "born",
            "dropped_once",
            "changes",
            "lives",
            "first",
            "steps",
            "_new",
            "_since",
        )
        return {name: getattr(self, name) for name in names}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from there."""
        for name, value in state.items():
            if isinstance(value, list) and value and isinstance(value[0], Tensor):
                value = [each.cpu() for each in value]
            setattr(self, name, value)


def _squares(held: Held, new: Tensor, optimizer: Optimizer) -> Tensor:
    """Returns float64 [new or old, 3]: the sums of squared updates over the rate and of second moments, and
    the number of elements."""
    parameter = held.parameter
    state = optimizer.state[parameter]
    beta1, beta2 = optimizer.param_groups[0]["betas"]
    eps = optimizer.param_groups[0]["eps"]
    steps = state["step"].to(parameter.device, torch.float64).reshape(-1, 1, 1)
    first = state["exp_avg"].double() / (1 - beta1**steps)
    second = state["exp_avg_sq"].double() / (1 - beta2**steps)
    updates = first / (second.sqrt() + eps)
    if state.get("warm_up"):
        updates *= (steps / state["warm_up"]).clamp(max=1)
    is_new = new.to(parameter.device)
    parts: Sequence[Tensor] = (is_new, ~is_new)
    sums = torch.stack([updates.square().sum((1, 2)), second.sum((1, 2))], 1)
    size = parameter[0].numel() if len(parameter) else 0
    rows = [torch.cat([sums[part].sum(0), part.sum().double()[None] * size]) for part in parts]
    return torch.stack(rows)


def _counts(values: list[int], longest: int) -> list[int]:
    return [values.count(each) for each in range(1, longest + 1)]
