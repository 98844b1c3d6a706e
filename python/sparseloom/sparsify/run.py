"""Run: applies methods to the weights of a model, step by step."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .._checks import as_optimizers, warn
from ..errors import Error
from .held import Held
from .method import Method


class Run:
    """The object ``sparsify_(...).run``: counts steps and changes blocks when their schedules say so.

    A run whose optimizer sparsify_ was given takes its steps with that one's. Else call ``step()`` after each
    step of the optimizer, or ``attach(optimizer)`` once. ``state_dict`` has the
    count; topologies, masks, scores and moments are saved with the model and the optimizer, so that a resumed
    run is the same to the last bit.
    """

    def __init__(
        self,
        groups: Sequence[tuple[Method, Sequence[Held]]],
        optimizer: Optimizer | Sequence[Optimizer] | None = None,
    ) -> None:
        self._optimizers = None if optimizer is None else as_optimizers("Run", optimizer)
        self.steps = 0
        self._groups = [(method, list(weights)) for method, weights in groups]
        self._waiting = [False] * len(self._groups)  # a change was due, and its gradient was not finite
        for number, held in enumerate(self.weights):
            held.number, held.run = number, self
        self.tail = False  # whether dense_tail was called
        self._asked = self._warned = False  # whether penalty was read; whether warn_of_unused has run
        self._pace: Optimizer | None = None  # the optimizer that the run is attached to
        #: Whether the pace is that of the optimizer given, and nobody has called ``step`` or ``attach``; and
        #: whether the last step was taken so.
        self._attached_itself = self._stepped_itself = False
        self._hooks: list[Any] = []
        self._tells = self._stepped = False  # whether a hook has seen any step; one since the last step()
        self._listen()
        with torch.no_grad():
            for method, weights in self._groups:
                method.begin(weights)
        self._watch()
        for method, weights in self._groups:
            if method.schedule.never_due() and _changes(method, weights):
                names = ", ".join(held.name for held in weights[:3])
                warn(f"{method.schedule} changes nothing of {names}: choose a shorter every, or a later end")

    @property
    def optimizers(self) -> list[Optimizer]:
        """The optimizers whose state moves with the blocks. They may be assigned."""
        return self._optimizers or []

    @optimizers.setter
    def optimizers(self, optimizer: Optimizer | Sequence[Optimizer]) -> None:
        self._optimizers = as_optimizers("Run", optimizer)
        if self._attached_itself:
            self.attach_itself()
        self._listen()

    @property
    def weights(self) -> list[Held]:
        """The weights of all methods."""
        return [held for _, weights in self._groups for held in weights]

    def attach(self, optimizer: Optimizer) -> Run:
        """Takes a step after each one of the optimizer, whose state moves with the blocks; returns self. A
        step that GradScaler skips does not count then."""
        (attached,) = as_optimizers("Run.attach", optimizer)
        if self._attached_itself:  # what was asked for by name counts
            self._attached_itself, self._pace = False, None
        if self._pace is not None:
            raise Error(
                "Run.attach", "one optimizer that gives the pace", "another one", "call step() yourself"
            )
        self._pace = attached
        if all(attached is not known_optimizer for known_optimizer in self.optimizers):
            self._optimizers = [*self.optimizers, attached]
        self._listen()
        return self

    def attach_itself(self) -> None:
        """Takes a step after each one of the optimizer that holds a driven weight, until somebody calls
        ``step`` or ``attach``. sparsify_ calls this where it was given the optimizer."""
        driven = {id(held.parameter) for held in self.weights}
        self._pace = next((each for each in self.optimizers if driven & _parameters(each)), None)
        self._attached_itself, self._stepped_itself = self._pace is not None, False

    def follow(self, copy: nn.Module) -> Run:
        """Lets the blocks of a copy of the model, such as an average of its weights
        (torch.optim.swa_utils.AveragedModel's ``module``), move with those of the model; returns self. The
        copy has the model's blocks now. Raises Error where it lacks a layer that the run drives."""
        for held in self.weights:
            held.follow(copy)
        return self

    def detach(self) -> None:
        """Undoes ``attach``, and stops watching the layers."""
        self._pace, self._attached_itself = None, False
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._tells = [], False
        for held in self.weights:
            held.decay_in_step(False)
            held.watching = False
            held.pairs.clear()
            held.fresh.clear()

    @torch.no_grad()
    def step(self) -> None:
        """Counts a step of the optimizer, and makes the changes that are due. A change that needs a finite
        gradient, which this step does not have or GradScaler skipped, is made after the next step that has
        one. Raises Error for NaN scores: nothing of that method has changed then. Raises Error if no
        optimizer is known and its state would have to move.

        A run that was attached by itself leaves the pace to whoever calls this: the first call counts the
        optimizer's step that the run has taken already."""
        if self._attached_itself:
            self._attached_itself, self._pace = False, None
            if self.steps > 1:
                warn(
                    f"{self.steps} steps of the optimizer counted before step() was called: the run takes "
                    "them itself where sparsify_ gets optimizer=; call step() from the first one on"
                )
            if self._stepped_itself:
                self._stepped_itself = False
                return
        self._take_step()

    def _take_step(self) -> None:
        if self._optimizers is None and not all(m.gradient.keeps_pruned for m, _ in self._groups):
            remedy = "pass optimizer= to sparsify_, assign run.optimizers (may be []), or attach one"
            raise Error("Run.step", "an optimizer whose state moves with the blocks", "none", remedy)
        self.steps += 1
        skipped = not self._stepped and (self._tells or self._overflowed())
        self._stepped = False
        for number, (method, weights) in enumerate(self._groups):
            for held in weights:
                held.made_step(skipped)
                if self.tail and held.refreshes:
                    continue
                if method.regrow is not None and not skipped:
                    method.regrow.after_step(held, held.learning_rate(self.optimizers))
            if self.tail and all(held.refreshes for held in weights):
                continue
            if self._waiting[number] or method.schedule.due(self.steps):
                if skipped and method.needs_gradient(self.steps):
                    self._waiting[number] = True
                    continue
                self._waiting[number] = not method.change(weights, self.steps, self.optimizers)
                for held in weights:
                    held.pairs.clear()
        self._watch()

    def penalty(self) -> Tensor | float:
        """Returns the methods' term of the loss: 0.0 if none has a penalty."""
        self._asked = True
        penalties = [penalty for held in self.weights if (penalty := held.penalty()) is not None]
        return sum(penalties[1:], penalties[0]) if penalties else 0.0

    def warn_of_unused(self) -> None:
        """Emits a UserWarning, once, if the training did not call what the methods need; pack_ calls this."""
        if self._warned:
            return
        self._warned = True
        for method, weights in self._groups:
            names = ", ".join(held.name for held in weights[:3])
            if not _changes(method, weights):
                continue
            short = [held for held in weights if self._is_short_of(method, held)]
            if not self.steps:
                remedy = "call run.step() after each step of the optimizer, or run.attach(optimizer) once"
                warn(f"the method of {names} made no step, so that its blocks never changed: {remedy}")
            elif short:
                has = method.schedule.budget(self.steps, short[0].target)
                state = f"is at density {has:.3g} of {short[0].name} after {self.steps} steps"
                warn(f"the method {state}, {short[0].target:.3g} was asked for: let its schedule end earlier")
        if not self._asked and any(held.penalty() is not None for held in self.weights):
            warn("the methods' penalty was never read: add run.penalty() to the loss")

    def _is_short_of(self, method: Method, held: Held) -> bool:
        decides = method.gradient.decides or not method.select.takes_density
        return not decides and method.schedule.budget(self.steps, held.target) > held.target + 1e-6

    def flip_rates(self) -> dict[str, float]:
        """Returns, of each 2:4 weight that trains, the share of its mask that the last refresh changed; the
        host waits for them here. A mask that has settled is near 0; a weight without a refresh is missing."""
        rates = {held.name: float(held.flips()) for held in self.weights if held.refreshes}
        return {name: rate for name, rate in rates.items() if not math.isnan(rate)}

    @torch.no_grad()
    def dense_tail(self) -> None:
        """Ends the sparse phase of 2:4 weights that train: from now on their whole masters multiply, and no
        step changes a mask. Optimizers keep their state. Raises Error where no weight is 2:4."""
        held_weights = [held for held in self.weights if held.refreshes]
        if not held_weights:
            got, remedy = "none", 'sparsify_ with InLayout("semi24", method=methods.semi24())'
            raise Error("Run.dense_tail", "2:4 weights that train", got, remedy)
        for held in held_weights:
            held.refresh(1.0)
        self.tail = True

    def densities(self) -> dict[str, float]:
        """Returns the share of present blocks of each weight now."""
        return {held.name: float(held.present().float().mean()) for held in self.weights}

    def state_dict(self) -> dict[str, Any]:
        """Returns plain data for ``load_state_dict``; between two steps whose gradients are summed, also
        their operands."""
        state: dict[str, Any] = {"steps": self.steps, "waiting": list(self._waiting)}
        if self.tail:
            state["tail"] = True
        if any(held.pairs for held in self.weights):
            state["pairs"] = [list(held.pairs) for held in self.weights]
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from that step. Load the model and the optimizer, too. Raises Error for the state of a run
        of other methods."""
        pairs = state.get("pairs") or [[] for _ in self.weights]
        if len(state["waiting"]) != len(self._groups) or len(pairs) != len(self.weights):
            got = f"{len(state['waiting'])} methods of {len(pairs)} weights"
            expected = f"a state of {len(self._groups)} methods of {len(self.weights)} weights"
            raise Error("Run", expected, got, "call sparsify_ as before")
        by_masks = [held.in_tail for held in self.weights if held.refreshes]
        self.tail = bool(
            state.get("tail", by_masks and all(by_masks))
        )  # a Trainer's checkpoint has the masks
        self.steps, self._waiting = int(state["steps"]), list(state["waiting"])
        for held, saved_pairs in zip(self.weights, pairs, strict=True):
            held.pairs = [(dy.to(held.device), x.to(held.device)) for dy, x in saved_pairs]
            held.fresh = []
        self._watch()

    def _watch(self) -> None:
        """Lets layers keep the operands of the next step if a change soon after it needs them."""
        for waiting, (method, weights) in zip(self._waiting, self._groups, strict=True):
            ahead = method.regrow.steps if method.regrow is not None and method.regrow.needs_gradient else 0
            due = method.schedule.due
            watching = ahead > 0 and (waiting or any(due(self.steps + 1 + i) for i in range(ahead)))
            for held in weights:
                if not watching:
                    held.pairs.clear()
                held.watching = watching

    def _listen(self) -> None:
        """Registers hooks that see the optimizers' steps."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = [
            *(optimizer.register_step_pre_hook(self._before_step) for optimizer in self.optimizers),
            *(optimizer.register_step_post_hook(self._on_step) for optimizer in self.optimizers),
        ]
        stepped = _parameters(*self.optimizers)
        for held in self.weights:
            held.decay_in_step(id(held.parameter) in stepped)
        self._warm_up()

    def _warm_up(self) -> None:
        """Tells optimizers how slowly new blocks begin. Raises Error where one counts no steps of blocks and
        the method needs them."""
        for method, weights in self._groups:
            regrow = method.regrow
            for held in weights if regrow is not None and (regrow.warm_up or regrow.grace) else ():
                for optimizer in self.optimizers:
                    if id(held.parameter) not in _parameters(optimizer):
                        continue
                    if not hasattr(optimizer, "warm_up"):
                        got, remedy = type(optimizer).__name__, "take sparseloom.optim.AdamW"
                        raise Error("Run", "an optimizer that counts each block's steps", got, remedy)
                    if regrow is not None and regrow.warm_up:
                        optimizer.warm_up(held.parameter, regrow.warm_up)

    def _before_step(
        self, optimizer: Optimizer, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Adds the decays of gradient rules once to the gradients that this step takes, after GradScaler has
        unscaled them; those that a closure computes, behind it."""
        closure = arguments[1] if len(arguments) > 1 else named.get("closure")
        if closure is None:
            self._add_decays(optimizer)
            return None

        def with_decays() -> Any:
            loss = closure()
            self._add_decays(optimizer)
            return loss

        if len(arguments) > 1:
            return (arguments[0], with_decays, *arguments[2:]), named
        return arguments, {**named, "closure": with_decays}

    def _add_decays(self, optimizer: Optimizer) -> None:
        stepped = _parameters(optimizer)
        scale = getattr(optimizer, "grad_scale", None)  # fused optimizers unscale in their kernels
        for held in self.weights:
            if id(held.parameter) in stepped:
                held.add_decay(scale)

    def _overflowed(self) -> bool:
        """Returns whether a gradient is not finite, for steps before the first that a hook has seen: whether
        hooks see any is not known then, and GradScaler may have skipped them. The host waits."""
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    gradient = parameter.grad
                    if hasattr(gradient, "to_local"):  # of this rank, since ranks ask alone
                        gradient = gradient.to_local()
                    if gradient is not None and not bool(gradient.isfinite().all()):
                        return True
        return False

    def _on_step(self, optimizer: Optimizer, *_: Any) -> None:
        self._tells = self._stepped = True
        if optimizer is self._pace:
            self._stepped_itself = self._attached_itself
            # A compiled step of the optimizer would trace the changes of blocks; fake tensors have no places.
            dynamo = sys.modules.get("torch._dynamo")
            step = self._take_step if dynamo is None else dynamo.disable(self._take_step)
            with torch.no_grad():
                step()

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out the hooks, because copies of the optimizers do not have them."""
        return {**self.__dict__, "_hooks": []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Lets a run that was copied with its model and its optimizers go on with the copies."""
        self.__dict__.update(state)
        for held in self.weights:
            held.watch()
        self._listen()


def _parameters(*optimizers: Optimizer) -> set[int]:
    """Returns the ids of the optimizers' Parameters."""
    groups = (group for optimizer in optimizers for group in optimizer.param_groups)
    return {id(parameter) for group in groups for parameter in group["params"]}


def _changes(method: Method, weights: Sequence[Held]) -> bool:
    """Returns whether a method does anything in its steps: gates choose without them."""
    return method.regrow is not None or not all(method.schedule.is_fixed(held.target) for held in weights)
