"""One run of `sparseloom experiment char-lstm`: a SmallWorldLSTM on the bytes of reviews, dense or a small
world.

The recipe is one for all arms: Adam with betas of 0.9 and 0.999, a warm-up of 2 % of the steps and a cosine
to zero, gradients cut at a norm of 1, streams of text side by side whose state is carried from step to step,
and a moving mean of the parameters that is judged. The dense network gets the least width that has no fewer
parameters than any small world. Every random number follows from the seed and the step, so that a run that
goes on from a checkpoint is the run that never stopped.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from sparseloom import pattern
from sparseloom.errors import Error
from sparseloom.nn import SmallWorldLSTM
from sparseloom.pattern import Pattern

from .reviews import Reviews, shuffled
from .runs import Plan, Run
from .steps import Graph, mixed
from .training import PartedTraining

OP = "experiment char-lstm"
TOKENS, KEEP, NORM = 256, 0.999, 1.0
#: Bytes that validation and test read, at most.
JUDGED = 2 * 2**20


@dataclass(frozen=True)
class Size:
    """Of the small world: units, block, neighbours of a node, steps inside a step, units that are read and
    reached, and the width of the embedding."""

    units: int = 2560
    block: int = 16
    neighbours: int = 3
    steps: int = 5
    ends: int = 512
    embedding: int = 64


TINY = Size(64, 8, 2, 2, 16, 8)


@dataclass(frozen=True)
class Setting:
    """What all arms of a table share. ``data`` is the SHA-256 of the texts."""

    data: str
    steps: int = 6000
    batch: int = 128
    length: int = 64
    size: Size = Size()


class Streams(NamedTuple):
    """Bytes uint8 [bytes] to learn from, to choose by, and to judge by."""

    train: Tensor
    val: Tensor
    test: Tensor

    @staticmethod
    def of(reviews: Reviews) -> Streams:
        """Returns the texts of each part one after the other, in lines, and shuffled: what JUDGED cuts off is
        like the rest."""
        joined = (b"\n".join(text.content for text in shuffled(part)) + b"\n" for part in reviews)
        return Streams(*(torch.frombuffer(bytearray(each), dtype=torch.uint8) for each in joined))

    def to(self, device: torch.device) -> Streams:
        return Streams(*(each.to(device) for each in self))


def patterns(arm: str, size: Size, step: int) -> Pattern:
    """Returns the pattern of a matrix of an arm; each step has one of its own."""
    shape = size.units, size.units, size.block
    if arm == "barabasi-albert":
        return pattern.barabasi_albert(*shape, size.neighbours, 1 + step)
    return pattern.watts_strogatz(*shape, 2 * size.neighbours, 0.2, 1 + step)


#: The small worlds, after the dense network.
ARMS = ("dense", "barabasi-albert", "watts-strogatz")
# A first search by 1e-3, 2e-3 and 4e-3 on an H100: dense was best at 2e-3, both small worlds at 4e-3, an end.
PLAN = Plan(OP, ARMS, (2e-3, 4e-3, 8e-3))


def network(arm: str, size: Size, device: torch.device | str = "cpu", seed: int = 0) -> SmallWorldLSTM:
    """Returns the network of an arm."""
    width = dense_width(size) if arm == "dense" else size.units
    torch.manual_seed(seed)  # of the embedding and the head
    generator = torch.Generator().manual_seed(seed)
    how: dict[str, Any] = {"steps": size.steps, "tokens": TOKENS, "classes": TOKENS, "generator": generator}
    if arm != "dense":
        found = {step: patterns(arm, size, step) for step in range(size.steps + 1)}
        ends: dict[str, Any] = {"inputs": size.ends, "outputs": size.ends}
        made = SmallWorldLSTM(size.embedding, width, pattern=found.__getitem__, **ends, **how)
    else:
        made = SmallWorldLSTM(size.embedding, width, pattern=None, **how)
    return made.to(device)


def dense_width(size: Size) -> int:
    """Returns the least width, a multiple of 8, of a dense network with no fewer parameters than any small
    world."""
    wanted = max(stored(network(arm, size)) for arm in ARMS[1:])
    width = 8
    while _dense_parameters(width, size) < wanted:
        width += 8
    return width


def _dense_parameters(width: int, size: Size) -> int:
    with torch.device("meta"):
        how: dict[str, Any] = {"tokens": TOKENS, "classes": TOKENS, "device": "meta"}
        return stored(SmallWorldLSTM(size.embedding, width, pattern=None, steps=size.steps, **how))


def stored(net: torch.nn.Module) -> int:
    """Returns the number of parameters, biases and norms too; absent blocks have none."""
    return sum(each.numel() for each in net.parameters())


class Training(PartedTraining):
    """A network, its optimizer and its streams at one step of one run. Its losses are bits per character."""

    op, unit = OP, math.log(2)
    net: SmallWorldLSTM

    def __init__(self, run: Run, setting: Setting, streams: Streams) -> None:
        super().__init__(run, setting, streams.train.device)
        self.streams = streams
        least = setting.batch * (setting.length + 1)
        if min(len(each) for each in streams) < least:
            got = f"{min(len(each) for each in streams)} bytes"
            raise Error(OP, f"{least} bytes or more in each part", got, "pass the whole table of IMDB")
        self.net = network(run.arm, setting.size, self.device, run.seed)
        self.parameters = list(self.net.parameters())
        self.mean = [each.detach().clone() for each in self.parameters]
        self.optimizer = torch.optim.Adam(self.parameters, run.rate, (0.9, 0.999), fused=True)
        shape = setting.batch, self.net.hidden_size
        self.state = tuple(torch.zeros(shape, device=self.device) for _ in range(2))
        self.begins = torch.arange(setting.batch, device=self.device) * (len(streams.train) // setting.batch)
        self.nothing = torch.empty(setting.batch, 0, device=self.device)
        if self.device.type == "cuda":
            self.graph = Graph(self._gradients, self.parameters, setting.batch, 0)

    def _batch(self) -> tuple[Tensor, Tensor]:
        torch.manual_seed(mixed(self.run.seed, self.step))  # of the dropout
        last = len(self.streams.train) - self.setting.length
        return (self.begins + self.step * self.setting.length) % last, self.nothing

    def _update(self) -> None:
        torch.nn.utils.clip_grad_norm_(self.parameters, NORM)
        super()._update()
        # at first the mean of all steps so far, which forgets the start
        forget = max(1 - KEEP, 1 / (self.step + 1))
        torch._foreach_lerp_(self.mean, [each.detach() for each in self.parameters], forget)

    def _gradients(self, rows: Tensor, nothing: Tensor) -> Tensor:
        """Adds the gradients of the text that begins at ``rows`` of all streams, and returns its loss."""
        places = rows + torch.arange(self.setting.length + 1, device=self.device)[:, None]
        text = self.streams.train[places].long()
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            logits, state = self.net(text[:-1], self.state)
        loss = F.cross_entropy(logits.float().flatten(0, 1), text[1:].flatten())
        loss.backward()
        for each, now in zip(self.state, state, strict=True):
            each.copy_(now.detach())
        return loss.detach()

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "mean": self.mean, "state": list(self.state)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        for mine, theirs in zip([*self.mean, *self.state], [*state["mean"], *state["state"]], strict=True):
            mine.copy_(theirs)

    def outcome(self) -> dict[str, Any]:
        """Returns what the run reached: bits per character, None where they are no number. The network has
        the moving mean of its parameters from then on."""
        with torch.no_grad():
            for each, mean in zip(self.parameters, self.mean, strict=True):
                each.copy_(mean)
        found = {"validation": self.bits(self.streams.val)}
        if not self.run.searching:
            found["test"] = self.bits(self.streams.test)
        matrices = [*self.net.steps, self.net.gates]
        return self._reached(
            found, units=self.net.hidden_size, parameters=stored(self.net),
            recurrent_parameters=sum(stored(each) for each in matrices),
            characters=self.steps * self.setting.batch * self.setting.length,
        )  # fmt: skip

    def kept(self) -> dict[str, Any] | None:
        """Returns the network of a run that counts, after ``outcome``."""
        if self.run.searching:
            return None
        return {"arm": self.run.arm, "size": asdict(self.setting.size), "net": self.net.state_dict()}

    @torch.no_grad()
    def bits(self, text: Tensor) -> float:
        """Returns the bits per character of a text, in streams side by side, without the first character of
        each."""
        self.net.eval()
        batch, length = self.setting.batch, self.setting.length
        rows = min(len(text), JUDGED) // batch
        streams = text[: rows * batch].view(batch, rows).t().long()
        state, total, count = None, torch.zeros((), dtype=torch.float64, device=text.device), 0
        for begin in range(0, rows - 1, length):
            chunk = streams[begin : begin + length + 1]
            with torch.autocast(text.device.type, torch.bfloat16, enabled=text.device.type == "cuda"):
                logits, state = self.net(chunk[:-1], state)
            total += F.cross_entropy(logits.float().flatten(0, 1), chunk[1:].flatten(), reduction="sum")
            count += chunk[1:].numel()
        return float(total) / count / math.log(2)
