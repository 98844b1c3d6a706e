"""One run of `sparseloom experiment lm`: a byte-level decoder, dense or wider and sparse.

The recipe is one for all arms: AdamW with a warm-up of 2 % of the steps and a cosine to zero, windows from
anywhere in the training texts, bf16 on a GPU. The search of runs.py takes the learning rate with the fewest
bits on half of the held-out windows; the other half judges. All arms take the same number of steps, so that
arms with as long a step have as much time, and all see as many bytes. Every batch follows from the seed and
the step, so that a run that goes on from a checkpoint is the run that never stopped.
"""

from __future__ import annotations

import logging
import math
import re
import statistics
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import sparseloom
from sparseloom import optim
from sparseloom.nn import MaskedLinear
from sparseloom.sparsify import densities

from . import corpus
from .corpus import Corpus
from .lm_arms import ARMS, METHODS, PRESETS, recipes, shape
from .lm_decoder import LAYERS, Decoder
from .lm_prune import bits
from .moves import Moves
from .runs import Plan, Run
from .steps import Graph, mixed
from .training import PartedTraining

PLAN = Plan("experiment lm", tuple(ARMS), (1.2e-4, 3e-4, 8e-4, 2e-3))
STEPS, BATCH = 4000, 32
#: Steps of one timed round, rounds, and the least seconds of all of them; and the steps before them, which
#: capture the graph.
TIMED, ROUNDS, LEAST, COLD = 10, 3, 0.6, 6


@dataclass(frozen=True)
class Setting:
    """What all arms of a table share. ``data`` is the SHA-256 of the texts."""

    data: str
    steps: int = STEPS
    batch: int = BATCH
    preset: str = "small"
    block: int = 64
    tested: int = 512  # windows to choose and to judge by


class Training(PartedTraining):
    """A network and its optimizer at one step of one run. Its losses are bits per byte."""

    op = PLAN.op
    net: Decoder

    def __init__(
        self, run: Run, setting: Setting, texts: Corpus, graphed: bool = True, multiple: float | None = None,
        compiled: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(run, setting, texts.train.device)
        logging.getLogger("sparseloom").setLevel(logging.WARNING)  # sparsify_ would print its table
        self.texts, self.arm = texts, ARMS[run.arm]
        self.shape = shape(self.arm, PRESETS[setting.preset], setting.block, multiple)
        torch.manual_seed(run.seed)
        with self.device:
            self.net = Decoder(self.shape)
        chosen = recipes(run.arm, self.net, setting.block, self.steps, run.seed)
        self.method = sparseloom.sparsify_(self.net, chosen).run if chosen else None
        self.net.draw()
        for layer in self.net.modules():
            if isinstance(layer, MaskedLinear):
                layer.multiply = "dense"  # in a CUDA graph, and no slower while much is left
            elif getattr(layer, "capacity", None) is not None:
                layer.values.detach()[layer.pattern.blocks :].zero_()  # type: ignore[operator, union-attr, index]
        if compiled and self.device.type == "cuda":
            torch.compiler.reset()  # the shapes of the run before would count against torch's limit
            # one program for all blocks; the whole network takes as many times longer to compile
            self.net.compiled = [torch.compile(block, dynamic=False) for block in self.net.blocks]
        self.optimizer = self._adamw()
        self.moves: Moves | None = None
        if self.method is not None:
            self.method.attach(self.optimizer)
        method = None if self.arm.method is None else METHODS[self.arm.method](self.steps)
        if self.method is not None and method is not None and method.regrow is not None:
            self.moves = Moves(self.method, method, self.optimizer)
        if graphed and self.device.type == "cuda":
            self.graph = Graph(self._gradients, list(self.net.parameters()), setting.batch, 0)
        self._none = torch.zeros(setting.batch, 0, device=self.device)
        held = corpus.spread(texts.held, setting.tested, self.shape.context)
        self._validation, self._test = held[0::2], held[1::2]

    def _adamw(self) -> torch.optim.Optimizer:
        """Returns the optimizer; matrices decay. Where blocks move it counts the steps of each."""
        groups: list[dict[str, Any]] = []
        for group in self._rates():
            for decay, wanted in ((0.1, True), (0.0, False)):
                some = [each for each in group["params"] if (each.dim() > 1) == wanted]
                if some:
                    peak = group["lr"] / self.run.rate
                    groups.append({"params": some, "lr": group["lr"], "weight_decay": decay, "peak": peak})
        if self.method is not None and self.arm.own_steps:
            return optim.AdamW(groups, self.run.rate, betas=(0.9, 0.95))
        fused = self.device.type == "cuda"
        return torch.optim.AdamW(groups, self.run.rate, betas=(0.9, 0.95), fused=fused)

    def _rates(self) -> list[dict[str, Any]]:
        if self.arm.mlp_rate == 1.0:
            return densities.rates(self.net, self.run.rate, self.arm.power)
        mlp = rf"{LAYERS['mlp']}\..*"
        groups: dict[float, dict[str, Any]] = {}
        for name, parameter in self.net.named_parameters():
            rate = self.run.rate * (self.arm.mlp_rate if re.fullmatch(mlp, name) else 1.0)
            groups.setdefault(rate, {"params": [], "lr": rate})["params"].append(parameter)
        return list(groups.values())

    def _batch(self) -> tuple[Tensor, Tensor]:
        generator = torch.Generator(self.device).manual_seed(mixed(self.run.seed, self.step))
        last = len(self.texts.train) - self.shape.context
        where = {"generator": generator, "device": self.device}
        return torch.randint(last, (self.setting.batch,), **where), self._none  # type: ignore[call-overload]

    def _step(self) -> Tensor:
        watched = self.method is not None and any(held.watching for held in self.method.weights)
        if self.graph is None or not watched:
            return super()._step()
        # layers have hooks now, which a graph would not run and a program would break at
        graph, self.graph = self.graph, None
        programs = self.net.compiled
        self.net.compiled = []
        loss = super()._step()
        self.graph, self.net.compiled = graph, programs
        return loss

    def _gradients(self, rows: Tensor, _: Tensor) -> Tensor:
        """Adds the gradients of a batch, given by its first bytes, and returns its loss."""
        loss = self._loss(corpus.windows(self.texts.train, rows, self.shape.context))
        loss.backward()
        return loss.detach()

    def _loss(self, tokens: Tensor) -> Tensor:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            return bits(self.net(tokens), tokens)

    def _update(self) -> None:
        nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] *= group["peak"]
        self.optimizer.step()  # and the method's, which is attached
        if self.moves is not None:
            self.moves.after()

    def milliseconds(self) -> float:
        """Returns those of a step, the median of rounds, of a training that goes no further than this."""
        for _ in range(COLD):
            self._step()
        rounds: list[float] = []
        while len(rounds) < ROUNDS or sum(rounds) < LEAST:
            begin = self._clock()
            for _ in range(TIMED):
                self._step()
            rounds.append(self._clock() - begin)
        return 1e3 * statistics.median(rounds) / TIMED

    def _clock(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.monotonic()

    def state_dict(self) -> dict[str, Any]:
        """Returns all that the steps that are left depend on."""
        method = None if self.method is None else self.method.state_dict()
        moves = None if self.moves is None else self.moves.state_dict()
        return {**super().state_dict(), "method": method, "moves": moves}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from there. Raises Error for the state of another run or setting."""
        super().load_state_dict(state)
        if self.method is not None:
            self.method.load_state_dict(state["method"])
        if self.moves is not None:
            self.moves.load_state_dict(state["moves"])

    def outcome(self) -> dict[str, Any]:
        """Returns what the run reached: bits per byte, null where they are no number, and what it took."""
        found = {"validation": self._judged(self._validation)}
        if not self.run.searching:
            found["test"] = self._judged(self._test)
        more: dict[str, Any] = {"shape": list(self.shape), "parameters": self.active()}
        if self.moves is not None and not self.run.searching:
            more["moves"] = self.moves.record()
        return self._reached(found, **more)

    def active(self) -> int:
        """Returns the number of parameters that the last step multiplied with."""
        total = 0
        for module in self.net.modules():
            own = sum(each.numel() for each in module.parameters(recurse=False))
            if isinstance(module, MaskedLinear) or getattr(module, "capacity", None) is not None:
                sparse: Any = module
                own = round(sparse.density * sparse.in_features * sparse.out_features)
            total += own
        return total

    def kept(self) -> None:
        """Returns nothing: no other experiment reads the models."""

    @torch.no_grad()
    def _judged(self, windows: Tensor) -> float:
        """Returns the mean bits per byte of these windows."""
        self.net.eval()
        total = sum(float(self._loss(some)) * len(some) for some in windows.split(16))
        self.net.train()
        return total / len(windows) if len(windows) else math.nan
