"""Fusions: what files and configs say of products that do more than their layer's own."""

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
        """Returns those of a model."""
        return cls(names_of_fused(model), names_of_merged(model))

    @classmethod
    def read(cls, op: str, told: Mapping[str, Any], remedy: str) -> Fusions:
        """Returns those that plain data describe. Raises Error where they are no lists of names."""
        for key in cls._fields:
            given = told.get(key, [])
            if not isinstance(given, list) or not all(isinstance(name, str) for name in given):
                raise Error(op, f"{key} as a list of names", repr(given)[:80], remedy)
        return cls(*(told.get(key, []) for key in cls._fields))

    def told(self) -> dict[str, list[str]]:
        """Returns plain data, without what is empty: programs of old do not look for it."""
        return {key: list(names) for key, names in self._asdict().items() if names}

    def named(self, base: str) -> Fusions:
        """Returns the same with each name also with and without the prefix of a base model."""

        def variants(names: Collection[str]) -> set[str]:
            return {v for name in names for v in (name, name.removeprefix(f"{base}."), f"{base}.{name}")}

        return Fusions(*map(variants, self))


#: Of products that do nothing more.
NONE = Fusions()
