"""The names of torchao.sparsity.training, which torchao removed in 2026, over Semi24Training: code that swaps
layers by its config dict runs as it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import Error
from ..nn import Semi24Training
from .exchange import Exchange
from .forms.computed import computed
from .forms.linear import LinearForm
from .hooks import carry_hooks

_OP = "swap_linear_with_semi_sparse_linear"


class SemiSparseLinear(Semi24Training):
    """A Semi24Training that chooses its mask anew in each call in training, as torchao's layer of that name
    does; the weight gets its whole gradient (STE), and W^T is packed from the same transposable mask."""

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        if self.training and torch.is_grad_enabled():
            self.refresh_()
        return super().forward(x, residual)

    def stored_as(self) -> dict[str, Any]:
        """Returns the metadata that ``save`` writes for the layer, so that ``load`` makes one of its kind."""
        return {**super().stored_as(), "refreshes": "each call"}

    @classmethod
    def from_dense(cls, linear: nn.Linear) -> Semi24Training:
        """Returns the layer over the Parameters of ``linear``. Raises Error for a forward of its own, and for
        a weight that is computed."""
        reason = computed(linear) or LinearForm().not_own_forward(linear)
        if not reason and not isinstance(linear._parameters.get("weight"), nn.Parameter):
            reason = "its weight is computed, as by torch.ao.pruning: make that permanent first"
        if reason:
            got = f"a {type(linear).__name__}: {reason}"
            raise Error(
                _OP, "an nn.Linear with a weight and forward of its own", got, "do that, or leave it out"
            )
        layer = cls.over(linear, linear.get_parameter("weight"), None)
        layer.bias = linear.bias
        return layer.train(linear.training)  # type: ignore[return-value]


def swap_linear_with_semi_sparse_linear(
    model: nn.Module, config: Mapping[str, type[Any]], current: str = ""
) -> None:
    """Puts layers of the config's classes in the place of nn.Linear layers, in place; Parameters stay the
    same. ``config`` is {full name of the layer: SemiSparseLinear}; ``current`` is put before the names of
    ``model``. A layer of several names is replaced under all of them. Raises Error, with nothing changed, for
    a name that is no nn.Linear, where torchao went on without a word, and for one that from_dense refuses."""
    prefix = f"{current}." if current else ""
    modules = dict(model.named_modules(remove_duplicate=False))
    new: dict[nn.Module, nn.Module] = {}
    for name, cls in config.items():
        module = modules.get(name.removeprefix(prefix))
        if not isinstance(module, nn.Linear) or not name.startswith(prefix) or module is model:
            got = "no module" if module is None else type(module).__name__
            got = "the model itself" if module is model else got
            raise Error(_OP, f"an nn.Linear at {name}", got, "name layers inside the model")
        if module not in new:
            new[module] = cls.from_dense(module)
        elif type(new[module]) is not cls:
            got = f"{cls.__name__} at {name}, {type(new[module]).__name__} at another of its names"
            raise Error(_OP, "one class for each layer", got, "give all names of a layer the same")
    _put(model, new)


def swap_semi_sparse_linear_with_linear(model: nn.Module, current: str = "") -> None:
    """Puts an nn.Linear in the place of each SemiSparseLinear, in place, with the same Parameters, pruned
    weights included: the dense end of a training that began sparse. To keep the zeros, call pack_ or
    densify_."""
    new: dict[nn.Module, nn.Module] = {}
    for module in model.modules():
        if isinstance(module, SemiSparseLinear):
            sizes = module.in_features, module.out_features
            dense = nn.Linear(*sizes, False, device="meta", dtype=module.weight.dtype)
            dense.weight, dense.bias = module.weight, module.bias
            new[module] = dense.train(module.training)
    _put(model, new)


def _put(model: nn.Module, new: Mapping[nn.Module, nn.Module]) -> None:
    exchange = Exchange(model, list(new.items()))
    with exchange.whole():
        for old, layer in new.items():
            carry_hooks(old, layer)
        exchange.put()
        exchange.settle()
