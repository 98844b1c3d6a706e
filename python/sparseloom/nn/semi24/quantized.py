"""QuantizedSemi24Linear: a 2:4 layer in 8 bits, for inference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ... import ops
from ...errors import Error
from ...layouts.semi24 import Semi24Layout
from ...ops import semi24
from .. import arguments
from ..eight_bit import MOST, finite, require_options
from ..held.answers import tokens_of
from ..held.ordered import Ordered
from ..in_layout.quantized import EightBitInLayout
from .linear import Semi24Linear

_OP = "QuantizedSemi24Linear"


class QuantizedSemi24Linear(EightBitInLayout, Ordered):  # type: ignore[misc]  # values and bias are buffers
    """Computes y = activation(x W^T + bias) with x and a 2:4 W in int8 or float8_e4m3fn; made by
    ``from_sparse`` or ``sparseloom.quantize_``.

    Buffers, all saved except ``metadata``: ``values`` [out_features, 2 ceil(in_features / 4)] in 8 bits;
    ``w_scale``, ``x_scale`` and ``bias`` as QuantizedBlockSparseLinear has them; ``positions`` and
    ``metadata`` as Semi24Linear has them. ``.to(dtype)``, ``.half()`` and their like change the bias alone.

    Args:
        layout: where the elements lie. Their places are those of the layer's own buffer afterwards.
        dtype: torch.int8 or torch.float8_e4m3fn.
        bias, x_scale, activation, device, bias_dtype: as in QuantizedBlockSparseLinear.

    ``strict = True`` forbids the reference kernel; ``kernel`` (None: the plan's choice) forces one by name;
    ``use_fast_accum = True`` lets float8 sums on CUDA stay in the tensor cores (see ``ops.scaled_linear``).
    All errors are ``sparseloom.Error``.
    """

    eight_bit = True
    float8_on_cpu = True

    def __init__(
        self,
        layout: Semi24Layout,
        dtype: torch.dtype = torch.int8,
        *,
        bias: bool = True,
        x_scale: float | None = None,
        activation: str | None = None,
        device: torch.device | str | int | None = None,
        bias_dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(layout, Semi24Layout):
            remedy = "pass the layout of a Semi24Linear, or call from_sparse"
            raise Error(_OP, "layout to be a layouts.Semi24Layout", type(layout).__name__, remedy)
        arguments.require_activation(activation, _OP)
        require_options(_OP, dtype, x_scale)
        self.out_features, self.in_features = layout.rows, layout.cols
        self.activation = activation
        self._template, self._parts = layout.with_tensors({}), ("positions",)
        self._hold_eight(layout.values_shape, dtype, bias, x_scale, device, bias_dtype)
        self.register_buffer("positions", layout.positions.to(self.values.device, copy=True))
        self._order()

    @classmethod
    def from_sparse(
        cls, layer: Semi24Linear, dtype: torch.dtype = torch.int8, *, x_scale: float | None = None
    ) -> QuantizedSemi24Linear:
        """Returns an 8-bit layer with the layer's weights rounded, those of each output feature by its own
        factor: its largest |w| over 127 (int8) or 448 (float8).

        The given layer stays as it is. Raises Error for weights that hold NaN or Inf. An int8 layer with more
        stored inputs than int32 can sum (131071) raises Error when it is called.
        """
        if not isinstance(layer, Semi24Linear):
            remedy = "make one with Semi24Linear.from_dense, or sparsify_ the model first"
            raise Error("quantize", "a Semi24Linear", f"a {type(layer).__name__}", remedy)
        layout = layer.layout
        assert isinstance(layout, Semi24Layout)
        values = finite(layer.values)
        options: dict[str, Any] = {"device": values.device, "bias_dtype": layer.values.dtype}
        quantized_layer = cls(
            layout,
            dtype,
            bias=layer.bias is not None,
            x_scale=x_scale,
            activation=layer.activation,
            **options,
        )
        row_max = values.abs().amax(1) if values.shape[1] else values.new_zeros(values.shape[0])
        scale = row_max / MOST[quantized_layer.dtype]
        quantized_layer.values.copy_(ops.quantize_rows(values, dtype, scale[:, None])[0])
        quantized_layer.w_scale.copy_(scale)
        if quantized_layer.bias is not None and layer.bias is not None:
            quantized_layer.bias.copy_(layer.bias.detach())
        quantized_layer.strict, quantized_layer.fuse = layer.strict, layer.fuse
        return quantized_layer.train(layer.training)

    def _product(
        self, x: Tensor, x_scale: Tensor | None, bias: Tensor | None, out_dtype: torch.dtype
    ) -> Tensor:
        assert x_scale is not None  # product_rounds is False
        if self._emptied:
            self._require_written()
        shape, positions = x.shape, self.positions
        y = semi24.scaled_linear(
            x.flatten(0, -2) if len(shape) > 4 else x, self.values, positions, self.in_features, x_scale,
            self.w_scale, bias, out_dtype=out_dtype, activation=self.activation, strict=self.strict,
            kernel=self.kernel or "", use_fast_accum=self.use_fast_accum,
            metadata=self._metadata(positions) if x.is_cuda else None,
        )  # fmt: skip
        return y if len(shape) <= 4 else y.reshape(*shape[:-1], y.shape[-1])

    def plan(  # type: ignore[override]
        self,
        tokens: int | None = None,
        out_dtype: torch.dtype = torch.bfloat16,
        *,
        shape: Sequence[int] | None = None,
    ) -> dict[str, Any]:
        """Returns what would run for ``tokens`` rows of x, or x of that ``shape``, how long it should take,
        and why: see ``ops.plan``."""
        return semi24.scaled_plan(
            self.dtype, tokens_of(tokens, shape, self.in_features), (self.out_features, self.in_features),
            self.bias is not None, self.activation, out_dtype,
            "cpu" if self.values.is_meta else self.values.device,
            self.strict, self.kernel or "", self.use_fast_accum,
        )  # fmt: skip

    def dequantized(self, dtype: torch.dtype = torch.float32) -> Semi24Linear:
        """Returns a Semi24Linear with the rounded weights, in ``dtype``: it computes what this layer does,
        except for the rounding of x."""
        if self._emptied:
            self._require_written()
        layout = self.layout
        assert isinstance(layout, Semi24Layout)
        values = (self.values.float() * self.w_scale[:, None]).to(dtype)
        bias = None if self.bias is None else self.bias.to(dtype, copy=True)
        own_layout = layout.with_tensors({"positions": self.positions.clone()})
        layer = Semi24Linear.holding(own_layout, values, bias, self.activation)
        layer.strict, layer.fuse = self.strict, self.fuse
        return layer.train(self.training)
