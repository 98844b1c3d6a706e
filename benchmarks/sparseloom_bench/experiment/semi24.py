"""One run of `sparseloom experiment semi24`: a byte-level GPT, dense, with 2:4 weights or 2:4 activations.

The recipe is one for all arms: AdamW with a warm-up of 2 % of the steps and a cosine to zero, batches of
texts from anywhere, bf16 on a GPU. The search of runs.py takes the learning rate with the fewest bits on half
of the held-out windows; the other half judges. Every batch follows from the seed and the step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sparseloom
from sparseloom import InLayout
from sparseloom.nn import Semi24FeedForward
from sparseloom.sparsify import Run as MethodRun
from sparseloom.sparsify import methods

from .lm_model import Gpt, Size
from .lm_prune import LAYERS, Texts, bits
from .runs import Plan, Run
from .steps import mixed
from .training import PartedTraining


class SquaredRelu(nn.Module):
    """The activation of the arms whose hidden features are sparse."""

    def forward(self, x: Tensor) -> Tensor:
        """Maps x to the square of its positive part."""
        return F.relu(x).square()


def _with_dropout() -> nn.Module:
    return nn.Sequential(SquaredRelu(), nn.Dropout(0.5))


class Arm(NamedTuple):
    """What an arm changes: the rule of methods.semi24, the share of its steps until the dense tail, the
    activation, and what Semi24FeedForward chooses."""

    text: str
    rule: str | None = None
    until: float = 1.0
    activation: Callable[[], nn.Module] | None = None
    choose: str | None = None


ARMS = {
    "dense": Arm("dense"),
    "ste": Arm("2:4 weights, STE", "ste"),
    "sr-ste": Arm("2:4 weights, SR-STE", "sr_ste"),
    "tail": Arm("2:4 weights, SR-STE, for 70 % of the steps, then dense", "sr_ste", 0.7),
    "relu2": Arm("squared ReLU", activation=SquaredRelu),
    "relu2-24": Arm("squared ReLU, 2:4 activations", activation=SquaredRelu, choose="largest"),
    "dropout": Arm("squared ReLU, dropout of half of the hidden features", activation=_with_dropout),
    "dropout24": Arm("squared ReLU, 2:4 dropout", activation=SquaredRelu, choose="dropout"),
}
PLAN = Plan("experiment semi24", tuple(ARMS), (1e-3, 2e-3))
STEPS, BATCH = 4000, 64
#: The share of the steps in which 2:4 activations are whole.
WHOLE = 0.1


@dataclass(frozen=True)
class Setting:
    """What all arms of a table share. ``data`` is the SHA-256 of the texts."""

    data: str
    steps: int = STEPS
    batch: int = BATCH
    size: tuple[int, ...] = tuple(Size())  # plain, because checkpoints hold no classes
    every: int = 10  # steps between two masks
    tested: int = 512  # windows to choose and to judge by


class Training(PartedTraining):
    """A model and its optimizer at one step of one run. Its losses are bits per byte."""

    op = PLAN.op

    def __init__(self, run: Run, setting: Setting, texts: Texts, device: torch.device) -> None:
        super().__init__(run, setting, device)
        self.texts, self.arm = texts, ARMS[run.arm]
        self.size = Size(*setting.size)
        torch.manual_seed(run.seed)
        self.net = Gpt(self.size, activation=self.arm.activation).to(device)
        self.hidden: list[Semi24FeedForward] = []
        if self.arm.choose is not None:
            self.hidden = [_sparse_hidden(block, self.arm.choose) for block in self.net.blocks]
        self.optimizer = torch.optim.AdamW(
            self.net.parameters(), run.rate, betas=(0.9, 0.95), weight_decay=0.1, fused=device.type == "cuda"
        )
        self.method: MethodRun | None = None
        if self.arm.rule is not None:
            recipe = InLayout("semi24", method=methods.semi24(self.arm.rule, setting.every))
            done = sparseloom.sparsify_(self.net, {LAYERS: recipe}, optimizer=self.optimizer)
            self.method = done.method
        compiled = device.type == "cuda"
        self._call: Callable[[Tensor], Tensor] = torch.compile(self.net) if compiled else self.net
        windows = texts.judged(setting.tested, self.size.context)
        self._validation, self._test = windows[0::2], windows[1::2]

    def _batch(self) -> tuple[Tensor, Tensor]:
        progress = self.step / self.steps
        for each in self.hidden:
            each.sparse = progress >= WHOLE
        if self.method is not None and progress >= self.arm.until and not self.method.tail:
            self.method.dense_tail()
        seed = mixed(self.run.seed, self.step)
        torch.manual_seed(seed + 1)  # of dropout
        generator = torch.Generator().manual_seed(seed)
        tokens = self.texts.drawn(self.setting.batch, self.size.context, generator)
        return tokens, tokens

    def _gradients(self, tokens: Tensor, _: Tensor) -> Tensor:
        """Adds the gradients of a batch, and returns its loss."""
        loss = self._loss(tokens, self._call)
        loss.backward()
        return loss.detach()

    def _loss(self, tokens: Tensor, call: Callable[[Tensor], Tensor]) -> Tensor:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            return bits(call(tokens), tokens)

    def _update(self) -> None:
        nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.optimizer.step()
        if self.method is not None:
            self.method.step()

    def state_dict(self) -> dict[str, Any]:
        """Returns all that the steps that are left depend on."""
        method = None if self.method is None else self.method.state_dict()
        return {**super().state_dict(), "method": method}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from there. Raises Error for the state of another run or setting."""
        super().load_state_dict(state)
        if self.method is not None:
            self.method.load_state_dict(state["method"])

    def outcome(self) -> dict[str, Any]:
        """Returns what the run reached: bits per byte, null where they are no number; the share of masks that
        the last refresh changed, and of hidden magnitude that the last batch lost."""
        found = {"validation": self._judged(self._validation)}
        if not self.run.searching:
            found["test"] = self._judged(self._test)
        flips = [] if self.method is None or self.method.tail else list(self.method.flip_rates().values())
        lost = [float(each.lost) for each in self.hidden]
        more = {"flips": _mean(flips), "lost": _mean(lost)}
        return self._reached(found, parameters=sum(each.numel() for each in self.net.parameters()), **more)

    def kept(self) -> None:
        """Returns nothing: no other experiment reads the models."""

    @torch.no_grad()
    def _judged(self, windows: Tensor) -> float:
        """Returns the mean bits per byte of these windows."""
        self.net.eval()
        total = sum(float(self._loss(some, self.net)) * len(some) for some in windows.split(16))
        self.net.train()
        return total / len(windows) if len(windows) else math.nan


def _sparse_hidden(block: Any, choose: str) -> Semi24FeedForward:
    """Gives a block 2:4 hidden features, over its own layers."""
    layer: Any = Semi24FeedForward
    block.feed_forward = layer(block.up, block.down, "relu2", choose=choose)
    del block.up, block.down
    return block.feed_forward  # type: ignore[no-any-return]


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
