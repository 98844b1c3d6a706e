"""Optimizers that know blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from .errors import Error


class AdamW(Optimizer):
    """torch.optim.AdamW, but each block of a block-sparse layer counts its own steps.

    The first steps of a new block are then corrected for the bias of its own moments, which are young. With
    the count of the whole Parameter, as torch's optimizers keep it, they would be up to 6.6 times as large
    (at the usual betas, in the twelfth step of a steady gradient; 3.2 times in the first and the hundredth):
    the correction is long over, while the second moment starts at zero. A 3-dimensional
    Parameter [blocks, bm, bn] has ``step`` [blocks] in its state, which ``set_topology_`` moves with the
    blocks; any other has one count and gets torch's update.

    Args:
        params: Parameters, or groups of them.
        lr, betas, eps, weight_decay: as in torch.optim.AdamW; the decay is decoupled, and reaches stored
            blocks alone.

    Raises Error for values outside their ranges.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        if lr < 0 or eps < 0 or weight_decay < 0 or not all(0 <= beta < 1 for beta in betas):
            got = f"lr={lr}, betas={betas}, eps={eps}, weight_decay={weight_decay}"
            expected = "lr, eps and weight_decay of at least 0, betas in [0, 1)"
            raise Error("optim.AdamW", expected, got, "see torch.optim.AdamW")
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Makes one step; returns the loss of ``closure``, None without one."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)
        return loss

    def _update(self, parameter: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        if grad.is_sparse:
            raise Error("optim.AdamW", "dense gradients", "a sparse one", "use torch.optim.SparseAdam")
        state, (beta1, beta2) = self.state[parameter], group["betas"]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        if parameter.dim() == 3 and state["step"].dim() == 0:  # at first, and where it was dense before
            state["step"] = state["step"].to(parameter.device).expand(parameter.shape[0]).clone()
        step, exp_avg, exp_avg_sq = state["step"], state["exp_avg"], state["exp_avg_sq"]
        step += 1
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        exp_avg.lerp_(grad, 1 - beta1)
        exp_avg_sq.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        # float64, because 1 - beta^t cancels for the first steps
        count = step.double().view(-1, *[1] * (parameter.dim() - 1)) if step.dim() else step.double()
        size = (group["lr"] / (1 - beta1**count)).to(parameter.dtype)
        root = (1 - beta2**count).sqrt().to(parameter.dtype)
        parameter.sub_(size * exp_avg / (exp_avg_sq.sqrt() / root + group["eps"]))
