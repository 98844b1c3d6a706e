"""Exchange: puts modules in the places of others in a model, with all that hangs on a module's place."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from torch import nn
from torch.optim import Optimizer

from .fast_path import update_fast_paths
from .holders import describe_holders
from .optimizer import Swap, apply


@dataclass
class Exchange:
    """What takes the places of modules of a model, while the model is still untouched. sparsify_, densify_,
    quantize_ and load change models through it alone."""

    model: nn.Module
    modules: list[tuple[nn.Module, nn.Module]] = field(default_factory=list)  # (old, new)
    swaps: list[Swap] = field(default_factory=list)

    def put(self) -> None:
        """Puts every new module wherever the old one is a child, under all its names."""
        self._replace(dict(self.modules))

    def take_back(self) -> None:
        """Undoes ``put``."""
        self._replace({new: old for old, new in self.modules})

    def settle(self, optimizers: Iterable[Optimizer] = ()) -> list[str]:
        """Gives optimizers the new Parameters with their state, and lets transformers models describe
        themselves anew. Returns notes on what could not be carried over."""
        notes = apply(self.swaps, optimizers)
        return notes + describe_holders(self.model, [new for _, new in self.modules])

    def _replace(self, new_of: dict[nn.Module, nn.Module]) -> None:
        for parent in list(self.model.modules()):
            for name, child in parent._modules.items():
                if child is not None and child in new_of:
                    setattr(parent, name, new_of[child])
        update_fast_paths(self.model)
