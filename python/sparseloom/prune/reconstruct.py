"""Trains the kept values of one block until it returns what the dense block returned."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..patch.forms import Site
from ..recover.padding import counted
from .calibration import Stream
from .chains import first_tensor

#: The first step of a value, as a share of the root mean square of its weight's kept values.
_STEP = 0.02


def reconstruct_(
    block: nn.Module,
    sites: Sequence[Site],
    masks: Sequence[Tensor],
    stream: Stream,
    at: int,
    targets: Sequence[Tensor],
    steps: int,
) -> tuple[float, float]:
    """Takes ``steps`` of Adam, one batch each, on the kept values of the sites' weights, which lie inside of
    the block, number ``at`` of the stream; its other parameters stay. ``targets`` are its dense outputs.

    Returns the mean squared error before and after, and keeps the values before if they were better.
    """
    names = {id(parameter): name for name, parameter in block.named_parameters()}
    pairs = [
        (site, mask.reshape(site.value.shape))
        for site, mask in zip(sites, masks, strict=True)
        if id(site.parameter) in names
    ]
    masters = [site.value.float().clone().requires_grad_() for site, _ in pairs]

    def weights() -> dict[str, Tensor]:
        return {
            names[id(site.parameter)]: site.form.stored(
                (master * mask).to(site.parameter.dtype), site.parameter
            )
            for (site, mask), master in zip(pairs, masters, strict=True)
        }

    def loss(batch: int) -> Tensor:
        args, kwargs = stream.arguments(at, batch)
        with stream.autocasting(at, batch):
            output = first_tensor(torch.func.functional_call(block, weights(), args, kwargs))
        assert output is not None
        change = output.float() - targets[batch].to(output.device).float()
        return counted(change, stream.paddings[batch].of(block)).square().mean()

    def whole() -> float:
        with torch.no_grad():
            return sum(float(loss(batch)) for batch in range(len(targets))) / len(targets)

    before = whole()
    groups = [
        {"params": [master], "lr": _STEP * _root_mean_square(master, mask)}
        for master, (_, mask) in zip(masters, pairs, strict=True)
    ]
    optimizer = torch.optim.Adam(groups, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: 0.5 + 0.5 * math.cos(math.pi * step / steps)
    )
    for step in range(steps):
        with torch.enable_grad():
            gradients = torch.autograd.grad(loss(step % len(targets)), masters)
        for master, gradient in zip(masters, gradients, strict=True):
            master.grad = gradient
        optimizer.step()
        schedule.step()
    after = whole()
    if not after < before:
        return before, before
    for (site, mask), master in zip(pairs, masters, strict=True):
        site.value.copy_((master.detach() * mask).to(site.parameter.dtype))
    torch.clear_autocast_cache()
    return before, after


def _root_mean_square(master: Tensor, mask: Tensor) -> float:
    return float((master.detach().square() * mask).sum() / mask.sum().clamp(min=1)) ** 0.5
