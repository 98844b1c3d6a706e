"""A PixelCNN++-like model of the digits of scikit-learn (random ones without it). Its convolutions see only
the pixels above, and those to the left in the same row: x is shifted and padded, so that no tap has to be
masked, and the layers can be sparse in blocks of channels."""

import torch
import torch.nn.functional as F
from torch import nn

import sparseloom
from sparseloom import BlockSparse

LEVELS = 17  # of grey, in these digits


class Shifted(nn.Module):
    """A convolution of the rows above and this one (down), or of this row's left part as well (right)."""

    def __init__(self, before: int, after: int, right: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(before, after, (2, 2) if right else (2, 3))
        self.pad = (1, 0, 1, 0) if right else (1, 1, 1, 0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(F.pad(x, self.pad))


class Gated(nn.Module):
    """PixelCNN++'s residual layer: concatenated ELU, a convolution, another one that also gates. ``beside``
    comes from the other stream, through a 1 x 1 convolution."""

    def __init__(self, channels: int, right: bool) -> None:
        super().__init__()
        self.first = Shifted(2 * channels, channels, right)
        self.second = Shifted(2 * channels, 2 * channels, right)
        self.beside = nn.Conv2d(2 * channels, channels, 1) if right else None

    def forward(self, x: torch.Tensor, beside: torch.Tensor | None = None) -> torch.Tensor:
        y = self.first(elus(x))
        if self.beside is not None and beside is not None:
            y = y + self.beside(elus(beside))
        value, gate = self.second(elus(y)).chunk(2, 1)
        return x + value * gate.sigmoid()


def elus(x: torch.Tensor) -> torch.Tensor:
    return F.elu(torch.cat([x, -x], 1))


class PixelCNN(nn.Module):
    def __init__(self, channels: int = 32, depth: int = 2) -> None:
        super().__init__()
        self.above, self.left = Shifted(2, channels, False), Shifted(2, channels, True)
        self.down = nn.ModuleList(Gated(channels, False) for _ in range(depth))
        self.right = nn.ModuleList(Gated(channels, True) for _ in range(depth))
        self.out = nn.Conv2d(channels, LEVELS, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps levels [images, 1, height, width] to logits [images, LEVELS, height, width] of each pixel."""
        x = torch.cat([x / 8 - 1, torch.ones_like(x)], 1)  # the ones show where the image ends
        # a pixel sees the row above, and this row's pixel to the left: never itself
        u = self.above(F.pad(x, (0, 0, 1, 0))[:, :, :-1])
        v = u + self.left(F.pad(x, (1, 0))[..., :-1])
        for down, right in zip(self.down, self.right, strict=True):
            u = down(u)
            v = right(v, u)
        return self.out(F.elu(v))


def digits() -> torch.Tensor:
    """Returns levels of grey, [count, 1, 8, 8]."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        return torch.randint(LEVELS, (256, 1, 8, 8)).float()
    return torch.tensor(load_digits().images, dtype=torch.float32)[:, None]


def bits(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """Returns the bits for each pixel."""
    return F.cross_entropy(model(batch), batch[:, 0].long()) / torch.tensor(2.0).log()


def train(model: nn.Module, steps: int) -> float:
    """Trains with AdamW and returns the mean bits of the last steps."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    found = []
    for _ in range(steps):
        loss = bits(model, images[torch.randint(len(images), (32,))])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return sum(found[-5:]) / 5


torch.manual_seed(0)
images = digits()
model = PixelCNN()
print(f"dense:              {train(model, 15):.3f} bits for each pixel")
sparseloom.sparsify_(model, {r"(down|right)\..*": BlockSparse(block=16, density=0.5)})
with torch.no_grad():
    print(f"half of the blocks: {bits(model, images[:64]).item():.3f}")
print(f"trained on:         {train(model, 15):.3f}")
print(sparseloom.report(model, images[:32], seconds=0.05))  # each layer, and the whole, beside dense twins

# no pixel sees itself or a later one, sparse or not
changed = images[:1].clone()
changed[0, 0, 4, 4] = 16 - changed[0, 0, 4, 4]
with torch.no_grad():
    same = (model(images[:1]) == model(changed)).all(1)[0].flatten()
assert bool(same[: 4 * 8 + 5].all()) and not bool(same.all())

with torch.no_grad():  # a row of a new image, pixel by pixel
    drawn = images[:4].clone()
    for column in range(8):
        logits = model(drawn)[:, :, 7, column]
        drawn[:, 0, 7, column] = torch.multinomial(logits.softmax(1), 1)[:, 0].float()
print(f"the last row of an image, drawn anew: {drawn[0, 0, 7].int().tolist()}")
