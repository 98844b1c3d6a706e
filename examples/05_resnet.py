"""A small ResNet on the digits of scikit-learn (random ones without it): its 3 x 3 and 1 x 1 convolutions
become sparse, train on, and take in their batch norms."""

import torch
import torch.nn.functional as F
from torch import nn

import sparseloom
from sparseloom import BlockSparse
from sparseloom.patch import fold_batchnorm_


class Block(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut, which a 1 x 1 convolution fits to another size."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.bn1, self.bn2, self.bn3 = nn.BatchNorm2d(after), nn.BatchNorm2d(after), nn.BatchNorm2d(after)
        self.shortcut = nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(inner + self.bn3(self.shortcut(x)))


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 32, 3, padding=1)
        self.body = nn.Sequential(Block(32, 32, 1), Block(32, 64, 2))
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.stem(x)).mean((2, 3)))


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Returns images [count, 1, 8, 8] and their classes."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        return torch.randn(256, 1, 8, 8), torch.randint(10, (256,))
    found = load_digits()
    images = torch.tensor(found.images, dtype=torch.float32)[:, None] / 8 - 1
    return images, torch.tensor(found.target)


def train(model: nn.Module, steps: int) -> float:
    """Trains with AdamW and returns the mean of the last losses."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(steps):
        batch = torch.randint(len(images), (64,))
        loss = F.cross_entropy(model(images[batch]), classes[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return sum(losses[-5:]) / 5


torch.manual_seed(0)
images, classes = digits()
images = images.contiguous(memory_format=torch.channels_last)
model = ResNet()
print(f"dense:              {train(model, 20):.3f}")
sparseloom.sparsify_(model, {r"body\..*": BlockSparse(block=16, density=0.5)})
with torch.no_grad():
    print(f"half of the blocks: {F.cross_entropy(model(images[:256]), classes[:256]).item():.3f}")
print(f"trained on:         {train(model, 20):.3f}")

print(sparseloom.report(model, images[:64], seconds=0.05))  # each layer, and the whole, beside dense twins

model.eval()
with torch.no_grad():
    expected = model(images[:16])
    fold_batchnorm_(model)
    torch.testing.assert_close(model(images[:16]), expected, rtol=1e-3, atol=1e-3)
    right = (model(images).argmax(1) == classes).float().mean().item()
print(f"right, of the images it trained on: {right:.0%}")
