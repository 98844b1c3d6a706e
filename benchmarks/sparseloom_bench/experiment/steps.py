"""What the trainings on a GPU share: a step as a CUDA graph, the learning rate and seeds."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn


class Graph:
    """The gradients of a step as a CUDA graph, which a GPU runs without gaps. Masks and the index of moving
    blocks are written in place, so that it sees each change of them.

    Args:
        gradients: adds the gradients of a batch, given by the images' rows [batch] and uniform numbers
            [batch, numbers], to ``parameters`` and returns its loss.
    """

    WARM = 3  # steps before the capture: they compile, and choose kernels

    def __init__(
        self,
        gradients: Callable[[Tensor, Tensor], Tensor],
        parameters: list[nn.Parameter],
        batch: int,
        numbers: int,
    ) -> None:
        self.gradients, self.parameters = gradients, parameters
        device = parameters[0].device
        self.rows = torch.zeros(batch, dtype=torch.int64, device=device)
        self.u = torch.zeros(batch, numbers, device=device)
        self.calls, self.side = 0, torch.cuda.Stream(device)
        self.graph = torch.cuda.CUDAGraph()
        self.loss: Tensor | None = None
        self.grads: list[Tensor | None] = []

    def __call__(self, rows: Tensor, u: Tensor) -> Tensor:
        """Returns the loss of a batch; the parameters have its gradients then."""
        self.calls += 1
        self.rows.copy_(rows)
        self.u.copy_(u)
        if self.calls <= self.WARM:
            return self._warmed()
        if self.loss is None:
            self._clear()
            with torch.cuda.graph(self.graph, stream=self.side):
                self.loss = self.gradients(self.rows, self.u)
            self.grads = [parameter.grad for parameter in self.parameters]
        for parameter, grad in zip(self.parameters, self.grads, strict=True):
            parameter.grad = grad  # a watched step had others
        self.graph.replay()
        return self.loss

    def _warmed(self) -> Tensor:
        self._clear()
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            loss = self.gradients(self.rows, self.u)
        torch.cuda.current_stream().wait_stream(self.side)
        return loss

    def _clear(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None


def rate(progress: float, warm_up: float) -> float:
    """Returns the share of the learning rate: a line up, then a cosine down."""
    if progress < warm_up:
        return progress / warm_up
    return (1 + math.cos(math.pi * (progress - warm_up) / (1 - warm_up))) / 2


def mixed(seed: int, number: int) -> int:
    """Returns the seed of one step or epoch of a run; ``+ 1`` of it is free for another draw."""
    return (seed + 1) * 1_000_003 + 2 * number


def device_name(device: torch.device | str) -> str:
    """Returns what the outcomes call it: the name of a GPU."""
    kind = torch.device(device).type
    return torch.cuda.get_device_name(device) if kind == "cuda" else kind
