"""Makes a dense model sparse as a file describes, for load(sparsify=True)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from torch import nn

from ..errors import Error
from ..nn.held.fusions import NONE, Fusions
from ..nn.held.sparse_weight import joined
from .announce import announce
from .choose import choose
from .exchange import Exchange
from .recipe import Recipe
from .result import Patched
from .sparsify import fused, kinds_of, prepare
from .survey import parameter_count, require_patchable, survey


@contextmanager
def sparsified(
    model: nn.Module, patterns: Mapping[str, Recipe], fusions: Fusions = NONE
) -> Iterator[Callable[[], None]]:
    """Makes the dense linear layers of these names sparse, within the body and from then on. The body calls
    the function that it is given when the layers have their values. Announces the changes after the body.

    ``patterns`` has the names that sparse layers have in a file: a 1x1 convolution's is conv.linear,
    and an attention's projections are attn.in_proj and attn.out_proj. ``fusions`` lists their fused
    activations and merged products. Raises Error, with the model untouched, if the model has no such layer or
    one that sparsify_ would refuse. Restores the dense modules if the body raises.
    """
    require_patchable("load", model)
    if not patterns:
        yield lambda: None
        return
    count_before, result = parameter_count(model), Patched()
    choices, _ = choose(model, _by_site(model, patterns), strict=True)
    exchange = Exchange(model)

    def settle() -> None:
        result.notes = exchange.settle()

    with exchange.whole():
        result.changed, layers = prepare(exchange, choices, has_values=False)
        exchange.put()
        result.changed = fused(exchange, choices, layers, result.changed, fusions)
        result.became = kinds_of(result.changed)
        yield settle
        result.parameters = count_before, parameter_count(model)
        announce(result)


def shapes_of(model: nn.Module) -> dict[str, tuple[int, int]]:
    """Returns (out features, in features) of the weights that may become sparse, by the names that sparse
    layers have in a file."""
    return {joined(name, site.form.inside): site.shape for site in survey(model).sites for name in site.names}


def _by_site(model: nn.Module, patterns: Mapping[str, Recipe]) -> dict[str, Recipe]:
    """Returns the recipes keyed by regex, as sparsify_ takes them. A shared module has several names in the
    file, but one recipe."""
    remaining = dict(patterns)
    recipes: dict[str, Recipe] = {}
    for site in survey(model).sites:
        names = [joined(name, site.form.inside) for name in site.names]
        own_recipes = [remaining.pop(name) for name in names if name in remaining]
        if own_recipes:
            recipes[re.escape(site.name)] = own_recipes[0]
    if remaining:
        listed = ", ".join(sorted(remaining)[:5]) + (", ..." if len(remaining) > 5 else "")
        remedy = "load into a model of the class that was saved"
        raise Error(
            "load",
            "dense linear layers of the names that the file makes sparse",
            f"none for {listed}",
            remedy,
        )
    return recipes
