"""Checkpoints that other packages wrote (make_foreign.py), and the dense weights that they hold."""

from pathlib import Path

import safetensors.torch
import torch
from torch import nn

FOREIGN = Path(__file__).parent / "foreign"


def dense_of(name):
    return safetensors.torch.load_file(FOREIGN / f"{name}.dense.safetensors")


def net(dtype=torch.float16):
    return nn.Sequential(nn.Linear(20, 12), nn.ReLU(), nn.Linear(12, 8, bias=False)).to(dtype)
