"""Updates the description in transformers models when a part of them has changed, without importing
transformers."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable

from torch import nn


def describe_holders(model: nn.Module, changed: Iterable[nn.Module]) -> list[str]:
    """Updates the description in every transformers model that holds one of the changed modules: inside
    ``model``, and around it if ``model`` is a part of one. Returns notes on models that could not be
    described."""
    library = sys.modules.get("transformers.modeling_utils")
    base = getattr(library, "PreTrainedModel", None)  # a model exists only if its module was imported
    if base is None:
        return []
    ids = {id(module) for module in changed}
    # We search the two one after the other: a list of both would itself be among all objects, and would keep
    # its items alive until the next garbage collection.
    models = {
        id(obj): obj
        for objects in (model.modules(), gc.get_objects())
        for obj in objects
        if issubclass(type(obj), base)
    }
    holders = [holder for holder in models.values() if any(id(module) in ids for module in holder.modules())]
    if not holders:
        return []
    inside = {id(part) for holder in holders for part in holder.modules() if part is not holder}
    try:
        from ..hf import describe_
    except ImportError as error:
        return [f"this transformers cannot save block-sparse layers ({error}): use sparseloom.save"]
    for holder in holders:
        if id(holder) not in inside:
            describe_(holder)
    return []
