"""The layers that train under a mask while a model recovers, and adapters that are merged into them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.optim import AdamW, Optimizer

from ..errors import Error
from ..nn import MaskedLinear
from ..nn.held.sparse_weight import sparse_layers
from ..patch.announce import unannounced
from ..patch.pack import pack_
from ..patch.unpack import unpack_

if TYPE_CHECKING:  # with it come the parts of all methods
    from ..sparsify.run import Run

_OP = "recover"


class LowRank(nn.Module):
    """Adds B A to a weight [out, in], which does not train: LoRA (Hu et al. 2021) with alpha = rank. B starts
    at zero."""

    def __init__(self, weight: Tensor, rank: int) -> None:
        super().__init__()
        out_features, in_features = weight.shape
        like: dict[str, Any] = {"device": weight.device, "dtype": weight.dtype}
        self.a = nn.Parameter(torch.randn(rank, in_features, **like) / in_features**0.5)
        self.b = nn.Parameter(torch.zeros(out_features, rank, **like))

    def forward(self, weight: Tensor) -> Tensor:
        """Returns weight + B A, [out, in]."""
        return torch.addmm(weight, self.b, self.a)


class Masks:
    """Puts masked layers in the place of sparse ones that do not train themselves, and back.

    Args:
        model: the model, changed in place.
        rank: the rank of adapters, for which every sparse linear layer is masked; None for none.
        method: a run that has masked layers of its own; nothing is exchanged then.
    """

    def __init__(self, model: nn.Module, rank: int | None, method: Run | None) -> None:
        self.model, self.names = model, list[str]()
        self._frozen: list[nn.Parameter] = []
        self._adapted: list[MaskedLinear] = []
        if method is not None:
            return
        wanted = [
            layer.name
            for layer in sparse_layers(model)
            if layer.name and _trains(layer.module) and (rank is not None or _needs_mask(layer.module))
        ]
        if wanted:
            with unannounced():
                done = unpack_(model, "|".join(re.escape(name) for name in wanted))
            self.names = [change.names[0] for change in done.changed]
        if rank is not None:
            if not self.names:
                raise Error(_OP, "sparse linear layers for adapters", "none", "leave rank out")
            self._adapt(rank)

    def _adapt(self, rank: int) -> None:
        self._frozen = [each for each in self.model.parameters() if each.requires_grad]
        trained = set(self._frozen)
        for parameter in self._frozen:
            parameter.requires_grad_(False)
        for name in self.names:
            layer = self.model.get_submodule(name)
            layer = layer if isinstance(layer, MaskedLinear) else layer.get_submodule("0")  # own activation
            assert isinstance(layer, MaskedLinear)
            if layer.weight not in trained:
                continue
            parametrize.register_parametrization(layer, "weight", LowRank(layer.weight.detach(), rank))
            self._adapted.append(layer)

    def optimizer(self, lr: float, weight_decay: float) -> Optimizer:
        """Returns AdamW over what trains. Raises Error where nothing does."""
        trained = [each for each in self.model.parameters() if each.requires_grad]
        if not trained:
            remedy = "call requires_grad_() on what should train"
            raise Error(_OP, "Parameters that require a gradient", "none", remedy)
        fused = all(each.is_cuda for each in trained)
        # 1e-8 is zero in fp16, and zero over zero NaN.
        eps = 1e-4 if any(each.dtype == torch.float16 for each in trained) else 1e-8
        return AdamW(trained, lr=lr, weight_decay=weight_decay, eps=eps, fused=fused)

    def end(self) -> None:
        """Merges adapters under the masks, and makes the layers sparse again."""
        for layer in self._adapted:
            parametrize.remove_parametrizations(layer, "weight", leave_parametrized=True)
        for parameter in self._frozen:
            parameter.requires_grad_(True)
        for layer in self._adapted:
            layer.weight.requires_grad_(True)
        if self.names:
            with unannounced():
                named = "|".join(re.escape(name) for name in self.names)
                pack_(self.model, names=rf"(?:{named})(?:\.0)?")  # behind one is its own activation


def _trains(module: Any) -> bool:
    """Returns whether the layer is to train: its values require a gradient, or are those of 2:4, which never
    do."""
    layout = getattr(module, "layout", None)
    values = getattr(module, "values", None)
    return values is not None and (values.requires_grad or getattr(layout, "name", "") == "semi24")


def _needs_mask(module: Any) -> bool:
    """Returns whether the layer's values cannot train, or train slower than a dense weight: single elements
    on a GPU."""
    layout = getattr(module, "layout", None)
    if layout is None or getattr(layout, "directions", None) is None:
        return False
    on_gpu = any(parameter.is_cuda for parameter in module.parameters())
    return "dw" not in layout.directions or on_gpu
