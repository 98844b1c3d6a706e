"""Watch: gives a run the operands of a layer's weight gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from ...sparsify.held import Held


class Watch:
    """A forward hook that, in watched steps, keeps x and the gradient of the layer's output."""

    def __init__(self, held: Held | None = None) -> None:
        self.held = held

    def __call__(self, module: nn.Module, inputs: Any, named: Any, y: Any) -> None:
        held = self.held
        if held is not None and held.watching and torch.is_grad_enabled() and y.requires_grad:
            x = (inputs[0] if inputs else next(iter(named.values()))).detach()
            y.register_hook(lambda dy: held.saw(dy, x.to(dy.dtype)))

    @staticmethod
    def on(module: nn.Module, held: Held) -> None:
        """Lets ``held`` see the module's inputs and gradients: through the hook that a copied module has
        already, else through a new one."""
        for hook in module._forward_hooks.values():
            if isinstance(hook, Watch) and hook.held is None:
                hook.held = held
                return
        module.register_forward_hook(Watch(held), with_kwargs=True)

    def __reduce__(self) -> tuple[type[Watch], tuple[()]]:
        """The hook of a copied or pickled layer does nothing until a run copied with it takes it over."""
        return Watch, ()
