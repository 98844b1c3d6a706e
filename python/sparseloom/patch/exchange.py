"""Exchange: replaces modules of a model, and updates all that depends on them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import nn
from torch.optim import Optimizer

from ..nn.held.as_before import or_as_before
from ..nn.held.fused import follow
from .fast_path import update_fast_paths
from .holders import describe_holders
from .optimizer import Swap, apply, forget


@dataclass
class Exchange:
    """The replacements of modules of a model, collected before the model changes. sparsify_, densify_,
    quantize_ and load change models only through it."""

    model: nn.Module
    modules: list[tuple[nn.Module, nn.Module]] = field(default_factory=list)  # (old, new)
    swaps: list[Swap] = field(default_factory=list)

    @contextmanager
    def whole(
        self, optimizers: Sequence[Optimizer] = (), written: Iterable[nn.Module] = ()
    ) -> Iterator[None]:
        """Lets the body fill, put and settle the exchange. If it raises anything, an out-of-memory error and
        Ctrl-C included, model and optimizers are restored. ``written``: see or_as_before."""
        try:
            with or_as_before(self.model, optimizers, written):
                yield
        except BaseException:
            forget(self.model.parameters())
            # transformers models around this one were not restored with it
            describe_holders(self.model, self.model.modules())
            raise

    def put(self) -> None:
        """Puts every new module wherever the old one is a child, under all its names. A fused activation of
        the model moves to the new layer, or goes back to its place; layers merged with an old one are
        separated."""
        new_of = follow(self.model, dict(self.modules))
        for old in new_of:
            for part in old.modules():
                if (group := getattr(part, "_siblings", None)) is not None:
                    group.dissolve()
        self.modules = list(new_of.items())
        for parent in list(self.model.modules()):
            for name, child in parent._modules.items():
                if child is not None and child in new_of:
                    setattr(parent, name, new_of[child])
        update_fast_paths(self.model)

    def settle(self, optimizers: Iterable[Optimizer] = ()) -> list[str]:
        """Gives optimizers the new Parameters with their state, and updates the descriptions of transformers
        models. Returns notes on state that could not be carried over."""
        notes = apply(self.swaps, optimizers)
        return notes + describe_holders(self.model, [new for _, new in self.modules])
