"""NotForOnnx: modules that torch.onnx.export cannot take as they are."""

from __future__ import annotations

from typing import Any

from torch import nn

from ...ops import onnx


class NotForOnnx(nn.Module):
    """A module whose products ONNX does not have."""

    def _slow_forward(self, *operands: Any, **how: Any) -> Any:
        """Does what nn.Module's does, which torch.jit.trace calls in place of forward: the check costs other
        calls nothing. Where torch.export traces, the operators' fake kernels check."""
        onnx.refuse(type(self).__name__)
        return super()._slow_forward(*operands, **how)  # type: ignore[operator]
