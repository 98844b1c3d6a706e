"""8-bit layers that run on every CPU: the plan takes no kernel of int8 where none is fast."""

from __future__ import annotations

from sparseloom import nn as snn


def quantized(layer: snn.BlockSparseLinear) -> snn.QuantizedBlockSparseLinear:
    """Returns the layer in int8, multiplied by the reference kernel."""
    made = snn.QuantizedBlockSparseLinear.from_sparse(layer)
    made.kernel = "reference"
    return made
