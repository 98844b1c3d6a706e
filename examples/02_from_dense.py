"""Makes a dense model sparse: keeps the largest half of each layer's blocks, trains on, saves, and loads into
a new model."""

import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import sparseloom
from sparseloom.nn import BlockSparseLinear


def train(model: nn.Module, x: torch.Tensor, y: torch.Tensor, steps: int) -> float:
    """Trains with AdamW on the mean squared error and returns the last loss."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loss = torch.zeros(())
    for _ in range(steps):
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


torch.manual_seed(0)
x = torch.randn(256, 64)
y = torch.sin(x @ torch.randn(64, 64) / 8)
model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
print(f"dense:              {train(model, x, y, 200):.4f}")

for name in ("0", "2"):
    model[int(name)] = BlockSparseLinear.from_dense(model[int(name)], density=0.5, block=16)
with torch.no_grad():
    print(f"half of the blocks: {F.mse_loss(model(x), y).item():.4f}")
print(f"trained on:         {train(model, x, y, 200):.4f}")

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "model.safetensors"
    sparseloom.save(model, path)
    # The new layers have other patterns; load replaces them by the file's.
    first, last = (
        BlockSparseLinear(64, 256, density=0.5, block=16),
        BlockSparseLinear(256, 64, density=0.5, block=16),
    )
    again = nn.Sequential(first, nn.GELU(), last)
    sparseloom.load(path, again)
    assert torch.equal(again(x), model(x))
    print(f"saved and loaded:   {path.stat().st_size:,} bytes")
