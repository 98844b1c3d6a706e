"""Makes layers that store the single elements kept by a mask."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ...errors import Error
from ...layouts import Layout
from ...layouts.semi24 import Semi24Layout
from ..in_layout.linear import SparseLinear
from ..semi24.linear import Semi24Linear


def layer_of(
    dense: Tensor, mask: Tensor, layout: type[Layout], options: Mapping[str, Any]
) -> SparseLinear | Semi24Linear:
    """Returns a layer without bias that stores the elements of ``dense`` [out, in] that ``mask`` names;
    elsewhere it is zero.

    ``options`` is what the layout's ``from_dense`` asks for. Raises Error where the layout cannot store all
    of them.
    """
    by_mask = not options
    stored = (
        layout.from_mask(dense, mask.to(dense.device)) if by_mask else layout.from_dense(dense, **options)
    )
    values = stored.pack(dense)
    if not torch.equal(stored.to_dense(values), dense):
        got = f"{int(mask.count_nonzero())} of {list(mask.shape)}"
        raise Error("pack", f"elements that {layout.name} can store", got, "select them as the layout does")
    return (
        Semi24Linear.holding(stored, values)
        if isinstance(stored, Semi24Layout)
        else SparseLinear.holding(stored, values)
    )
