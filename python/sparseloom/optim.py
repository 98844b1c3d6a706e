"""AdamW for models with block-sparse layers: each block has a step count of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.adamw import adamw

from ._arguments import named_init
from ._checks import not_negative, whole
from .errors import Error


@named_init
class AdamW(Optimizer):
    """torch.optim.AdamW, but each block of a block-sparse layer counts its own steps.

    The first steps of a new block are then corrected for the bias of its own moments, which are young. With
    the count of the whole Parameter, as torch's optimizers keep it, they would be up to 6.6 times as large
    (at the usual betas, in the twelfth step of a steady gradient; 3.2 times in the first and the hundredth):
    the correction is long over, while the second moment starts at zero. A 3-dimensional
    Parameter [blocks, bm, bn] has ``step`` [blocks] in its state, which ``set_topology_`` moves with the
    blocks; any other has one count and gets torch's update. ``warm_up`` lets blocks begin slowly.

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
        for name, value in (("lr", lr), ("eps", eps), ("weight_decay", weight_decay)):
            if not isinstance(value, Tensor):
                not_negative("optim.AdamW", name, value, "1e-3")
        if not all(0 <= beta < 1 for beta in betas):
            got = f"betas={betas}"
            raise Error("optim.AdamW", "betas in [0, 1)", got, "see torch.optim.AdamW")
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Makes one step; returns the loss of ``closure``, or None without a closure."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            parts: dict[tuple[Any, ...], list[Tensor]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_block = self._state_of(parameter)["step"].dim() == 1
                    parts.setdefault((by_block, parameter.device, parameter.dtype), []).append(parameter)
            for (by_block, *_), parameters in parts.items():
                states = (
                    [self.state[p][name] for p in parameters] for name in ("step", "exp_avg", "exp_avg_sq")
                )
                tensors = _Tensors(parameters, [p.grad for p in parameters], *states)
                if by_block:
                    _update_by_block(tensors, group, [self.state[p].get("warm_up", 0) for p in parameters])
                else:
                    _update_whole(tensors, group)
        return loss

    def warm_up(self, parameter: Tensor, steps: int) -> None:
        """Lets the rate of each block of a Parameter [blocks, bm, bn] rise on a line over the first ``steps``
        steps of that block, as with SMET (Xiao et al. 2026, arXiv 2606.00888); 0 ends that. Methods that
        regrow blocks call it for their ``warm_up``; the state dict has it."""
        if parameter.dim() != 3:
            got = f"a Parameter {list(parameter.shape)}"
            raise Error("optim.AdamW.warm_up", "values [blocks, bm, bn]", got, "pass layer.values")
        self.state[parameter]["warm_up"] = whole("optim.AdamW.warm_up", "steps", steps)

    def _state_of(self, parameter: Tensor) -> dict[str, Any]:
        if parameter.grad is not None and parameter.grad.is_sparse:
            raise Error("optim.AdamW", "dense gradients", "a sparse one", "use torch.optim.SparseAdam")
        state: dict[str, Any] = self.state[parameter]
        if "step" not in state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        state["step"] = state["step"].to(parameter.device)  # torch's own keep it on the host
        if (
            parameter.dim() == 3 and state["step"].dim() == 0
        ):  # the first step, or a layer that was dense before
            state["step"] = state["step"].expand(parameter.shape[0]).clone()
        return state


class _Tensors(NamedTuple):
    """Parameters of one device and dtype, with the gradient, the step count and the moments of each."""

    parameters: list[Tensor]
    grads: list[Any]
    steps: list[Tensor]
    means: list[Tensor]
    squares: list[Tensor]


def _update_whole(tensors: _Tensors, group: dict[str, Any]) -> None:
    """Runs torch's own update for Parameters that have one step count each."""
    parameters, grads, steps, means, squares = tensors
    are_plain = all(type(parameter) in (Tensor, torch.nn.Parameter) for parameter in parameters)
    device, (beta1, beta2) = parameters[0].device.type, group["betas"]
    fused = are_plain and device in ("cpu", "cuda")
    adamw(
        parameters, grads, means, squares, [], steps,
        foreach=False, fused=fused, capturable=device == "cuda" and not fused, amsgrad=False, maximize=False,
        beta1=beta1, beta2=beta2, lr=group["lr"], weight_decay=group["weight_decay"], eps=group["eps"],
    )  # fmt: skip


def _update_by_block(tensors: _Tensors, group: dict[str, Any], warm_ups: list[int]) -> None:
    """Updates Parameters [blocks, bm, bn], all at once where torch can: on a GPU the launches of one
    Parameter after the other take longer than a small network's whole step."""
    parameters, grads, steps, means, squares = tensors
    (beta1, beta2), lr = group["betas"], group["lr"]
    torch._foreach_add_(steps, 1)
    torch._foreach_mul_(parameters, 1 - lr * group["weight_decay"])
    torch._foreach_lerp_(means, grads, 1 - beta1)
    torch._foreach_mul_(squares, beta2)
    torch._foreach_addcmul_(squares, grads, grads, value=1 - beta2)
    # float64, because 1 - beta^t cancels for the first steps
    counts = torch.cat(steps).double()
    first, root = 1 - beta1**counts, (1 - beta2**counts).sqrt()
    if any(warm_ups):  # both divisors over the share of the rate
        pairs = zip(steps, warm_ups, strict=True)
        shares = torch.cat([(step.double() / max(1, length)).clamp(max=1) for step, length in pairs])
        first = first / shares
    # (m / first) / (sqrt(v) / root + eps) is m / (sqrt(v) factor + term), with a factor and a term per block
    dtype, sizes = parameters[0].dtype, [len(step) for step in steps]
    factors = (first / root).to(dtype).split(sizes)
    terms = (group["eps"] * first).to(dtype).split(sizes)
    divisors = list(torch._foreach_sqrt(squares))
    for i, (factor, term) in enumerate(zip(factors, terms, strict=True)):
        divisors[i] = torch.addcmul(term.view(-1, 1, 1), divisors[i], factor.view(-1, 1, 1))
    if isinstance(lr, Tensor):
        torch._foreach_div_(divisors, lr)
    torch._foreach_addcdiv_(parameters, means, divisors, value=-1 if isinstance(lr, Tensor) else -lr)
