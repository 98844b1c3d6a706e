"""Detects transforms of torch around a call: torch.func, forward mode, batched gradients."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import forward_ad

#: Tells whether torch.func, or a backward pass with batched gradients, is active.
functorch_active = torch._C._are_functorch_transforms_active
_BATCHED = torch._C._dispatch_key_parse("Batched")  # parsed by name because the enum leaves it out


def transformed() -> bool:
    """Returns whether torch.func, batched gradients or forward mode is active; the fast routes support none
    of them."""
    return functorch_active() or forward_ad._current_level >= 0


def exporting() -> bool:
    """Returns whether torch.export records the call. torch.compiler.is_exporting() says so in torch.compile
    too, to Dynamo of torch 2.11 (findings/dynamo-takes-compiling-for-exporting.sh)."""
    flag: bool = torch.compiler._is_exporting_flag
    return flag


def gradient_batched(gradient: Tensor) -> bool:
    """Returns whether a backward pass was asked for with is_grads_batched. Its vmap is not torch.func's: it
    knows only operators, and calls each of them once per gradient of the batch."""
    return torch._C._dispatch_keys(gradient).has(_BATCHED)


def differentiated(tensor: Tensor) -> bool:
    """Returns whether a gradient or a tangent is followed through the tensor, at any level of the active
    transforms."""
    if tensor.requires_grad and torch.is_grad_enabled():
        return True
    if forward_ad._current_level >= 0 and forward_ad.unpack_dual(tensor).tangent is not None:
        return True
    wrapped = functorch_active() and torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    return wrapped and differentiated(torch._C._functorch.get_unwrapped(tensor))
