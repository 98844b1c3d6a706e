"""Lets transformers models describe themselves when a part of them has changed, without importing
transformers."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable

from torch import nn


def describe_holders(model: nn.Module, changed: Iterable[nn.Module]) -> list[str]:
    """Updates the description in every transformers model that holds one of the changed modules: inside
    ``model``, and around it, where ``model`` is a part of one. Returns notes on models that could not be
    described."""
    library = sys.modules.get("transformers.modeling_utils")
    base = getattr(library, "PreTrainedModel", None)  # a model exists only if its module was imported
    if base is None:
        return []
    ids = {id(module) for module in changed}
    # The two are searched one after the other: a list of both would itself be among all objects, and would
    # keep what it lists alive until the next garbage collection.
    models = {
        id(thing): thing
        for things in (model.modules(), gc.get_objects())
        for thing in things
        if issubclass(type(thing), base)
    }
    holders = [each for each in models.values() if any(id(module) in ids for module in each.modules())]
    if not holders:
        return []
    inside = {id(part) for each in holders for part in each.modules() if part is not each}
    try:
        from ..hf import describe_
    except ImportError as error:
        return [f"this transformers cannot save block-sparse layers ({error}): use sparseloom.save"]
    for each in holders:
        if id(each) not in inside:
            describe_(each)
    return []
