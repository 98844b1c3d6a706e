"""One run of `sparseloom experiment pixelcnn`: a PixelCNN on crops of CIFAR-10, dense or block-diagonal.

The recipe is one for all arms: Adam with a warm-up of 2 % of the steps and a cosine to zero, batches of 128
crops of 16 x 16 at random places, half of them flipped, bf16 on a GPU. The search of runs.py takes the
learning rate with the fewest bits on a tenth of the training images, which no run learns from. Every random
number follows from the seed and the step, so that a run that goes on from a checkpoint is the run that never
stopped.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import mixture
from .cifar import SIDE, Images
from .pixelcnn_model import ARMS, SMALL, PixelCNN, Size
from .runs import Plan, Run
from .steps import Graph, mixed
from .training import PartedTraining

# A first search by 3e-4, 1e-3 and 3e-3 on an H100: all arms were best at 3e-3, the edge.
PLAN = Plan("experiment pixelcnn", tuple(ARMS), (2e-3, 4e-3, 8e-3))
STEPS, BATCH = 6000, 128
NUMBERS = 3  # uniform numbers that one crop takes
SAMPLES = 16


@dataclass(frozen=True)
class Setting:
    """What all arms of a table share. ``archive`` is the SHA-256 of the data."""

    archive: str
    steps: int = STEPS
    batch: int = BATCH
    size: Size = SMALL


class Parts(NamedTuple):
    """Images uint8 [images, 3, 32, 32]: to learn from, to choose by, and to judge by."""

    train: Tensor
    validation: Tensor
    test: Tensor


def split(images: Images) -> Parts:
    """Returns the parts: every tenth training image is for validation."""
    tenth = torch.arange(len(images.x), device=images.x.device) % 10 == 0
    return Parts(images.x[~tenth], images.x[tenth], images.test_x)


def invented() -> Images:
    """Returns 60 images of waves, for a look without an archive."""
    u = torch.rand(60, 3, 1, 1, generator=torch.Generator().manual_seed(0))
    place = torch.arange(SIDE) / SIDE
    waves = torch.sin(6 * (place[:, None] * u + place * (1 - u)) + 6 * u)
    x = ((waves + 1) * 127).to(torch.uint8)
    y = torch.arange(60) % 10
    return Images(x[:50], y[:50], x[50:], y[50:])


class Training(PartedTraining):
    """A network and its optimizer at one step of one run. Its losses are bits per colour."""

    op = PLAN.op

    def __init__(self, run: Run, setting: Setting, parts: Parts, graphed: bool) -> None:
        super().__init__(run, setting, parts.train.device)
        self.parts = parts
        torch.manual_seed(run.seed)
        self.net = PixelCNN(setting.size, ARMS[run.arm]).to(self.device)
        for module in self.net.modules():
            if isinstance(
                module, torch.nn.Conv2d
            ):  # values of blocks have four axes too, and stay as they are
                module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimizer = torch.optim.Adam(self.net.parameters(), run.rate, fused=True)
        self.uniform = torch.Generator(self.device)
        if graphed and self.device.type == "cuda":
            self.graph = Graph(self._gradients, list(self.net.parameters()), setting.batch, NUMBERS)

    def _batch(self) -> tuple[Tensor, Tensor]:
        self.uniform.manual_seed(mixed(self.run.seed, self.step))
        how: dict[str, Any] = {"generator": self.uniform, "device": self.device}
        rows = torch.randint(len(self.parts.train), (self.setting.batch,), **how)
        return rows, torch.rand(self.setting.batch, NUMBERS, **how)

    def _gradients(self, rows: Tensor, u: Tensor) -> Tensor:
        """Adds the gradients of a batch, and returns its loss."""
        x = mixture.scaled(crops(self.parts.train, rows, u, self.setting.size.side))
        loss = mixture.bits(self._parameters(x), x).mean()
        loss.backward()
        return loss.detach()

    def _parameters(self, x: Tensor) -> Tensor:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            parameters: Tensor = self.net(x)
        return parameters

    def outcome(self) -> dict[str, Any]:
        """Returns what the run reached: bits per colour, null where they are no number, and for the first
        final seed pictures that the network draws."""
        final = not self.run.searching
        found = {"validation": self._bits(self.parts.validation)}
        if final:
            found["test"] = self._bits(self.parts.test)
        pictures = self._samples() if final and self.run.seed == 0 else None
        parameters = sum(each.numel() for each in self.net.parameters())
        return self._reached(found, parameters=parameters, samples=pictures)

    def kept(self) -> None:
        """Returns nothing: no other experiment reads the networks."""

    @torch.no_grad()
    def _bits(self, images: Tensor) -> float:
        """Returns the mean over images cut into tiles, so that each pixel counts once."""
        side, total, count = self.setting.size.side, 0.0, 0
        for some in images.split(64):
            tiles = some.unfold(2, side, side).unfold(3, side, side).permute(0, 2, 3, 1, 4, 5).flatten(0, 2)
            x = mixture.scaled(tiles)
            total += float(mixture.bits(self._parameters(x), x).double().sum())
            count += len(tiles)
        return total / count

    @torch.no_grad()
    def _samples(self) -> str:
        """Returns SAMPLES pictures, bytes [SAMPLES, side, side, 3] in base 64; all arms have the same random
        numbers."""
        side = self.setting.size.side
        u = torch.rand(
            side, side, SAMPLES, mixture.MIXTURES + 3, generator=torch.Generator().manual_seed(0)
        ).to(self.device)
        x = torch.zeros(SAMPLES, 3, side, side, device=self.device)
        for i in range(side):
            for j in range(side):
                x[:, :, i, j] = mixture.sample(self._parameters(x)[:, :, i, j], u[i, j])
        pixels = ((x + 1) * 127.5).round().to(torch.uint8).permute(0, 2, 3, 1)
        return base64.b64encode(bytes(pixels.flatten().tolist())).decode()


def crops(x: Tensor, rows: Tensor, u: Tensor, side: int) -> Tensor:
    """Returns crops [crops, 3, side, side] of the images of these rows, at the places of ``u`` [crops,
    NUMBERS]; half of them are flipped."""
    begin = torch.floor(u[:, :2] * (SIDE - side + 1)).long()
    places = begin[..., None] + torch.arange(side, device=x.device)  # [crops, 2, side]
    columns = torch.where(u[:, 2:] < 0.5, places[:, 1].flip(1), places[:, 1])
    # indices around a slice put the channels last
    found = x[rows[:, None, None], :, places[:, 0, :, None], columns[:, None, :]]
    return found.permute(0, 3, 1, 2)
