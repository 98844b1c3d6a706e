"""Refuses torch.onnx.export, whose format has no sparse products."""

from __future__ import annotations

import sys
from typing import Any

from ..errors import Error


def refuse(name: str) -> None:
    """Raises Error while torch.onnx.export traces a model. Call it only where models are traced."""
    onnx: Any = sys.modules.get("torch.onnx")  # nobody exports before it was imported
    if onnx is not None and onnx.is_in_onnx_export():
        remedy = "call sparseloom.densify_(model) first, on a copy if it trains on"
        raise Error("onnx", "a dense model: ONNX has no sparse products", name, remedy)
