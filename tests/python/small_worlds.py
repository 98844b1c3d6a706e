"""Small SmallWorldLSTMs for several test files."""

import torch

from sparseloom import pattern
from sparseloom.nn import SmallWorldLSTM

HIDDEN, OPTIONS = 96, {"steps": 4, "inputs": 24, "outputs": 48, "dropout": 0.0}


def small_world(step):
    return pattern.watts_strogatz(HIDDEN, HIDDEN, 16, 2, 0.3, seed=step)


def make(**options):
    torch.manual_seed(0)
    return SmallWorldLSTM(20, HIDDEN, **({"pattern": small_world} | OPTIONS | options))
