"""Fusions: the fused activations and merged products of a model, as files and configs list them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from torch import nn

from ...errors import Error
from .fused import names_of_fused
from .siblings import names_of_merged


class Fusions(NamedTuple):
    """Layers by the names that sparsify_ matches: those that apply an activation of the model (``fused``),
    and those whose products are merged with those of others that read the same x (``merged``)."""

    fused: Collection[str] = ()
    merged: Collection[str] = ()

    @classmethod
    def of(cls, model: nn.Module) -> Fusions:
        """Returns the fusions of a model."""
        return cls(names_of_fused(model), names_of_merged(model))

    @classmethod
    def read(cls, op: str, told: Mapping[str, Any], remedy: str) -> Fusions:
        """Returns the fusions that plain data describe. Raises Error unless they are lists of names."""
        for key in cls._fields:
            names = told.get(key, [])
            if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
                raise Error(op, f"{key} as a list of names", repr(names)[:80], remedy)
        return cls(*(told.get(key, []) for key in cls._fields))

    def told(self) -> dict[str, list[str]]:
        """Returns plain data without empty entries, which older versions do not know."""
        return {key: list(names) for key, names in self._asdict().items() if names}

    def named(self, base: str) -> Fusions:
        """Returns the same with each name also with and without the prefix of a base model."""

        def variants(names: Collection[str]) -> set[str]:
            return {v for name in names for v in (name, name.removeprefix(f"{base}."), f"{base}.{name}")}

        return Fusions(*map(variants, self))


#: A model without fusions.
NONE = Fusions()
