"""One run of `sparseloom experiment digits`: an MLP 64-256-256-10 on scikit-learn's 8 x 8 digits, whose two
hidden layers are sparse in blocks of 8 x 8.

The recipe is one for all arms: 1200 steps of 64 images, AdamW, a learning rate of 2e-3 that falls along a
cosine, no augmentation. Two thirds of the 1797 images train, drawn anew by each seed; the rest are the test.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparseloom.errors import Error
from sparseloom.patch import BlockSparse, pack_, sparsify_
from sparseloom.sparsify import Method, methods
from sparseloom.sparsify.run import Run

BLOCK, WIDTH, BATCH, LR = 8, 256, 64, 2e-3
#: The layers that become sparse.
HIDDEN = "[02]"


@dataclass(frozen=True)
class Images:
    """Pixels [images, 64] of mean 0 and deviation 1 over the training part, and labels [images]."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor


def load(seed: int) -> Images:
    """Returns the digits, split by that seed. Raises Error without scikit-learn, which brings them."""
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError as error:
        remedy = "pip install scikit-learn"
        raise Error("experiment digits", "scikit-learn's digits", "no scikit-learn", remedy) from error
    pixels, labels = load_digits(return_X_y=True)
    x, y = torch.from_numpy(pixels).float(), torch.from_numpy(labels).long()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    train, test = order.split([len(x) * 2 // 3, len(x) - len(x) * 2 // 3])
    mean, deviation = x[train].mean(), x[train].std()
    x = (x - mean) / deviation
    return Images(x[train], y[train], x[test], y[test])


@dataclass(frozen=True)
class Arm:
    """What is compared: a method, or a fixed random pattern, or dense."""

    name: str
    method: Method | None = None
    select: str = "magnitude"
    redraw: bool = False  # whether the stored values are drawn anew for the fan-in that is left
    takes_density: bool = True
    dense: bool = False


def arms(steps: int) -> dict[str, Arm]:
    """Returns the arms of a training of that many steps, by name."""

    def at(share: float) -> int:
        return round(share * steps)

    every = max(1, at(1 / 48))
    found = [
        Arm("dense", dense=True),
        Arm("static", select="random"),
        Arm("static, scaled", select="random", redraw=True),
        Arm("SET", methods.set_(every, end=at(0.75)), "random", True),
        Arm("RigL", methods.rigl(at(0.75), every), "random", True),
        Arm("one-shot", methods.magnitude(at(0.5))),
        Arm("gradual", methods.gradual(at(0.1), at(0.7), every)),
        Arm("AC/DC", methods.ac_dc(at(1 / 6), at(1 / 12), at(2 / 3))),
        Arm("supermask", methods.supermask(lr=5 * LR)),
        Arm("movement", methods.movement(at(0.1), at(0.7), every, lr=5 * LR)),
        Arm("decreasing", methods.decreasing(at(0.1), at(0.7), every)),
        Arm("Spartan", methods.spartan(at(0.8), at(0.2))),
        Arm(
            "soft movement", methods.soft_movement(at(0.1), at(0.7), every, 1.0, 5 * LR), takes_density=False
        ),
        Arm("L0", methods.l0(2e-3, lr=10 * LR), takes_density=False),
        Arm(
            "group lasso",
            methods.group_lasso(0.5, 0.5, at(0.1), at(0.4), at(0.7), every),
            takes_density=False,
        ),
    ]
    return {arm.name: arm for arm in found}


def model() -> nn.Sequential:
    """Returns the dense network."""
    return nn.Sequential(
        nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10)
    )


def _hidden(net: nn.Sequential) -> list[Any]:
    return [net[0], net[2]]


def train(arm: Arm, density: float, seed: int, steps: int) -> dict[str, Any]:
    """Returns the test accuracy of one training, of the packed network, and the density that it has."""
    logging.getLogger("sparseloom").setLevel(logging.WARNING)  # each sparsify_ would print its table
    images = load(seed)
    torch.manual_seed(seed)
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), LR, weight_decay=1e-2)
    run: Run | None = None
    if not arm.dense:
        given = density if arm.takes_density else None
        chosen = BlockSparse(BLOCK, given, arm.select, seed=seed, method=arm.method)
        run = sparsify_(net, {HIDDEN: chosen}, optimizer=optimizer).run
        if arm.redraw:
            for layer in _hidden(net):
                layer.reset_parameters()
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: (1 + math.cos(math.pi * min(1.0, step / steps))) / 2
    )
    order = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        rows = torch.randint(len(images.x), (BATCH,), generator=order)
        optimizer.zero_grad()
        loss = F.cross_entropy(net(images.x[rows]), images.y[rows])
        if run is not None:
            loss = loss + run.penalty()
        loss.backward()
        optimizer.step()
        schedule.step()
        if run is not None:
            run.step()
    if run is not None:
        pack_(net)
    net.eval()
    with torch.no_grad():
        right = net(images.test_x).argmax(-1) == images.test_y
    blocks = total = 0
    for layer in _hidden(net):
        total += layer.out_features * layer.in_features // BLOCK**2
        blocks += layer.values.shape[0] if not arm.dense else 0
    return {"accuracy": float(right.float().mean()), "density": 1.0 if arm.dense else blocks / total}
