"""8-bit layers that run on every CPU: the plan takes no kernel of int8 where none is fast."""

from __future__ import annotations

import pytest

from sparseloom import nn as snn
from sparseloom import ops


def fast_int8() -> bool:
    """Whether some kernel of this CPU multiplies int8 fast, so that a plan takes it."""
    return ops.info()["isa_active"] in ("avx512_vnni", "avx512_bf16", "amx")


needs_fast_int8 = pytest.mark.skipif(not fast_int8(), reason="no kernel of this CPU multiplies int8 fast")


def quantized(layer: snn.BlockSparseLinear) -> snn.QuantizedBlockSparseLinear:
    """Returns the layer in int8, multiplied by the reference kernel."""
    made = snn.QuantizedBlockSparseLinear.from_sparse(layer)
    made.kernel = "reference"
    return made
