"""The names of torchao.sparsity.training, which torchao removed in 2026, over Semi24Training: code that swaps
layers by its config dict runs as it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import Error
from ..nn import Semi24Training
from .hooks import carry_hooks


class SemiSparseLinear(Semi24Training):
    """A Semi24Training that chooses its mask anew in each call in training, as torchao's layer of that name
    does; the weight gets its whole gradient (STE), and W^T is packed from the same transposable mask."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training and torch.is_grad_enabled():
            self.refresh_()
        return super().forward(x)

    @classmethod
    def from_dense(cls, linear: nn.Linear) -> Semi24Training:
        """Returns the layer over the Parameters of ``linear``."""
        layer = cls.over(linear, linear.get_parameter("weight"), None)
        layer.bias = linear.bias
        return layer.train(linear.training)  # type: ignore[return-value]


def swap_linear_with_semi_sparse_linear(
    model: nn.Module, config: Mapping[str, type[Any]], current: str = ""
) -> None:
    """Puts layers of the config's classes in the place of nn.Linear layers, in place; Parameters stay the
    same. ``config`` is {full name of the layer: SemiSparseLinear}; ``current`` is put before the names of
    ``model``. Raises Error for a name that is no nn.Linear, where torchao went on without a word."""
    prefix = f"{current}." if current else ""
    modules = dict(model.named_modules())
    chosen: list[tuple[str, nn.Linear, type[Any]]] = []
    for name, cls in config.items():
        module = modules.get(name.removeprefix(prefix))
        if not isinstance(module, nn.Linear) or not name.startswith(prefix):
            got = "no module" if module is None else type(module).__name__
            raise Error("swap_linear_with_semi_sparse_linear", f"an nn.Linear at {name}", got, "name layers")
        chosen.append((name.removeprefix(prefix), module, cls))
    for name, module, cls in chosen:
        _put(model, name, module, cls.from_dense(module))


def swap_semi_sparse_linear_with_linear(model: nn.Module, current: str = "") -> None:
    """Puts an nn.Linear in the place of each SemiSparseLinear, in place, with the same Parameters, pruned
    weights included: the dense end of a training that began sparse. To keep the zeros, call pack_ or
    densify_."""
    for name, module in list(model.named_modules()):
        if isinstance(module, SemiSparseLinear):
            sizes = module.in_features, module.out_features
            dense = nn.Linear(*sizes, False, device="meta", dtype=module.weight.dtype)
            dense.weight, dense.bias = module.weight, module.bias
            _put(model, name, module, dense.train(module.training))


def _put(model: nn.Module, name: str, old: nn.Module, new: nn.Module) -> None:
    carry_hooks(old, new)
    holder, _, attribute = name.rpartition(".")
    setattr(model.get_submodule(holder), attribute, new)
