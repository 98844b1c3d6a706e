"""BlockSparseModelPatcher: sparsify_ with the interface of pytorch_block_sparse, and with the same errors as
sparsify_."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from torch import nn
from torch.optim import Optimizer

from .._arguments import named_init
from ..errors import Error
from .config import BlockSparse
from .result import Patched
from .sparsify import sparsify_
from .survey import survey

_OPTIONS = ("block", "density", "select", "seed", "scope", "head")


@named_init
class BlockSparseModelPatcher:
    """Collects patterns, then patches a model with all of them.

    >>> patcher = BlockSparseModelPatcher()
    >>> patcher.add_pattern(r"encoder\\.layer\\.[0-9]+\\.output\\.dense", {"density": 0.5})
    >>> print(patcher.patch_model(model))

    Unlike in pytorch_block_sparse, names are matched whole, any number of features is taken, kept blocks keep
    their values and places, and a pattern that matches nothing raises Error.
    """

    def __init__(self) -> None:
        self._patterns: dict[str, BlockSparse] = {}

    def add_pattern(self, pattern: str, pattern_info: Mapping[str, Any]) -> None:
        """Adds a regex for layer names. ``pattern_info`` is {"density": 0.5} with any other arguments of
        BlockSparse. Raises Error for an option that BlockSparse does not have, and for a pattern that was
        added before."""
        unknown = sorted(set(pattern_info) - set(_OPTIONS))
        if unknown:
            remedy = "pytorch_block_sparse's pseudo_linear has no counterpart: compare with densify_"
            raise Error("add_pattern", f"options of {', '.join(_OPTIONS)}", ", ".join(unknown), remedy)
        if pattern in self._patterns:
            raise Error(
                "add_pattern",
                "each pattern once",
                f"{pattern!r} again",
                "leave it out: the first pattern that matches counts",
            )
        self._patterns[pattern] = BlockSparse(**pattern_info)

    def get_patchable_layers(self, model: nn.Module) -> list[dict[str, Any]]:
        """Returns [{"regexp", "layer"}] for every layer that a pattern could take; each expression matches
        one name."""
        return [
            {"regexp": re.escape(name), "layer": site.module}
            for site in survey(model).sites
            for name in site.names
            if name and not site.refusal()
        ]

    def patch_model(
        self,
        model: nn.Module,
        *,
        strict: bool = False,
        optimizer: Optimizer | Sequence[Optimizer] | None = None,
        dense_copy: bool | Literal["auto"] = False,
        fuse: bool = True,
    ) -> Patched:
        """Patches the model in place: see sparsify_ for the arguments, what is returned and what is raised.
        Raises Error without a pattern."""
        if not self._patterns:
            raise Error("patch_model", "a pattern", "none", "call add_pattern first")
        return sparsify_(
            model, self._patterns, strict=strict, optimizer=optimizer, dense_copy=dense_copy, fuse=fuse
        )
