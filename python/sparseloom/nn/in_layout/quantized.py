"""QuantizedSparseLinear: a layer of bitmap weights in 8 bits, and what it shares with the one of 2:4."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ... import ops
from ...errors import Error
from ...layouts import Layout
from ...layouts.bitmap import Bitmap
from ...ops import bitmap
from .. import arguments
from ..eight_bit import MOST, EightBit, finite, require_options
from ..held.answers import tokens_of
from ..held.sparse_weight import SparseWeight
from .linear import SparseLinear
from .weight import LayoutWeight
from .with_layout import WithLayout

_OP = "QuantizedSparseLinear"


class EightBitInLayout(EightBit, WithLayout):  # type: ignore[misc]  # its values and bias are buffers
    """A layer in 8 bits whose weight lies in a layout of ``sparseloom.layouts``."""

    def dequantized(self, dtype: torch.dtype = torch.float32) -> Any:
        """Returns the layer with the rounded weights, in ``dtype``."""
        raise NotImplementedError

    def to_dense(self) -> nn.Module:
        """Returns what ``dequantized().to_dense()`` does, in the dtype of the bias (float32 without one)."""
        dtype = torch.float32 if self.bias is None else self.bias.dtype
        dense: nn.Module = self.dequantized(dtype).to_dense()
        return dense

    def sparse_weights(self) -> dict[str, SparseWeight]:
        """Returns the layer's one weight, under the name of its buffer."""
        return {"values": LayoutWeight(self, scaled=True, layout=self._template.name)}

    def describe(self) -> dict[str, dict[str, Any]]:
        """Returns the data that rebuild the layer without its values; see SparseModule. Beyond those of the
        layer that was quantized it has "dtype", and "x_scale": whether one is stored."""
        description = {**self._template.describe(), "dtype": ops.SCALED_DTYPES[self.dtype]}
        description |= {} if self.activation is None else {"activation": self.activation}
        return {"values": {**description, "x_scale": self.x_scale is not None}}

    def extra_repr(self) -> str:
        return ", ".join([super().extra_repr(), *self._settings_text()])

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Any], prefix: str, *arguments: Any, **named: Any
    ) -> None:
        """Checks index and values before anything changes. Takes values under the name ``weight`` too, as
        save_pretrained writes them."""
        tensors: Any = state_dict
        if prefix + self._parts[0] in tensors and prefix + "weight" in tensors:
            tensors.setdefault(prefix + "values", tensors.pop(prefix + "weight"))
        try:
            self._require_dtype(tensors.get(prefix + "values"))
            super()._load_from_state_dict(state_dict, prefix, *arguments, **named)
        except Error as error:
            errors: list[str] = arguments[4]
            errors.append(f"{prefix[:-1] or 'layer'}: {error}")
            return
        self.refresh_()


class QuantizedSparseLinear(EightBitInLayout):
    """Computes y = activation(x W^T + bias) with x and a W of layout "bitmap" in int8 or float8_e4m3fn; made
    by ``from_sparse`` or ``sparseloom.quantize_``. It runs on CPUs: int8 of 1 to 64 tokens by a fast kernel
    with AVX-512 VNNI and VBMI2.

    Buffers, all saved: ``values`` [stored] in 8 bits; ``w_scale``, ``x_scale`` and ``bias`` as
    QuantizedBlockSparseLinear has them; ``bits`` as layouts.Bitmap has them. ``.to(dtype)``, ``.half()`` and
    their like change the bias alone.

    Args:
        layout: where the elements lie, a layouts.Bitmap. The bits are those of the layer's own buffer
            afterwards.
        dtype: torch.int8 or torch.float8_e4m3fn.
        bias, x_scale, activation, device, bias_dtype: as in QuantizedBlockSparseLinear.

    ``strict = True`` forbids the reference kernel; ``kernel`` (None: the plan's choice) forces one by name.
    All errors are ``sparseloom.Error``; a call on a GPU raises one.
    """

    product_rounds = True
    float8_on_cpu = True

    def __init__(
        self,
        layout: Layout,
        dtype: torch.dtype = torch.int8,
        *,
        bias: bool = True,
        x_scale: float | None = None,
        activation: str | None = None,
        device: torch.device | str | int | None = None,
        bias_dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(layout, Bitmap):
            remedy = 'pass the layout of a SparseLinear of layout "bitmap", or call from_sparse'
            raise Error(_OP, "layout to be a layouts.Bitmap", type(layout).__name__, remedy)
        arguments.require_activation(activation, _OP)
        require_options(_OP, dtype, x_scale)
        self.out_features, self.in_features = layout.rows, layout.cols
        self.activation = activation
        self._template, self._parts = layout.with_tensors({}), tuple(layout.tensors())
        self._hold_eight((layout.stored,), dtype, bias, x_scale, device, bias_dtype)
        for name, part in layout.tensors().items():
            self.register_buffer(name, part.to(self.values.device, copy=True))
        self.derived = layout.derived_names
        for name in layout.derived_names:
            self.register_buffer(name, None, persistent=False)
        self._derive()

    @classmethod
    def from_sparse(
        cls, layer: SparseLinear, dtype: torch.dtype = torch.int8, *, x_scale: float | None = None
    ) -> QuantizedSparseLinear:
        """Returns an 8-bit layer with the layer's weights rounded, those of each output feature by its own
        factor: its largest |w| over 127 (int8) or 448 (float8).

        The given layer stays as it is. Raises Error for another layout than "bitmap" and for weights that
        hold NaN or Inf. An int8 layer of more inputs than int32 can sum (131071) raises Error when it is
        called.
        """
        if not isinstance(layer, SparseLinear) or not isinstance(layer.layout, Bitmap):
            got = f"a {type(layer).__name__}"
            if isinstance(layer, SparseLinear):
                got += f" of layout {layer.layout.name}"
            remedy = 'make one with SparseLinear.from_dense(dense, "bitmap"), or sparsify_ the model first'
            raise Error("quantize", 'a SparseLinear of layout "bitmap"', got, remedy)
        layout = layer.layout
        values = finite(layer.values)
        options: dict[str, Any] = {"device": values.device, "bias_dtype": layer.values.dtype}
        eight = cls(
            layout,
            dtype,
            bias=layer.bias is not None,
            x_scale=x_scale,
            activation=layer.activation,
            **options,
        )
        rows = layout.places()[0]
        row_max = values.new_zeros(layout.rows).scatter_reduce_(0, rows, values.abs(), "amax")
        scale = row_max / MOST[eight.dtype]
        eight.values.copy_(ops.quantize_rows(values[:, None], dtype, scale[rows, None])[0][:, 0])
        eight.w_scale.copy_(scale)
        if eight.bias is not None and layer.bias is not None:
            eight.bias.copy_(layer.bias.detach())
        eight.strict, eight.fuse = layer.strict, layer.fuse
        return eight.train(layer.training)

    def _product(
        self, x: Tensor, x_scale: Tensor | None, bias: Tensor | None, out_dtype: torch.dtype
    ) -> Tensor:
        if self._emptied:
            self._require_written()
        if x.is_cuda:
            remedy = "move the model to a CPU, or quantize a layer of blocks or 2:4"
            raise Error("linear", "8-bit bitmaps on a CPU, where their products are", str(x.device), remedy)
        layout: Any = self.layout
        y = bitmap.scaled_linear(
            x.flatten(0, -2) if x.dim() > 4 else x, self.values, layout.bits, layout.bounds(), x_scale,
            self.w_scale, bias, out_dtype=out_dtype, activation=self.activation, strict=self.strict,
            kernel=self.kernel or "",
        )  # fmt: skip
        return y if x.dim() <= 4 else y.reshape(*x.shape[:-1], y.shape[-1])

    def plan(  # type: ignore[override]
        self,
        tokens: int | None = None,
        out_dtype: torch.dtype = torch.bfloat16,
        *,
        shape: Sequence[int] | None = None,
    ) -> dict[str, Any]:
        """Returns what would run for ``tokens`` rows of x, or x of that ``shape``, how long it should take,
        and why: see ``ops.plan``. Raises Error for a layer on a GPU."""
        device = self.values.device
        if device.type not in ("cpu", "meta"):
            raise Error("plan", "8-bit bitmaps on a CPU, where their products are", str(device), "move them")
        return bitmap.scaled_plan(
            self.dtype, tokens_of(tokens, shape, self.in_features),
            (self.out_features, self.in_features, self.values.numel()), self.bias is not None,
            self.activation, out_dtype, self.strict, self.kernel or "",
        )  # fmt: skip

    def dequantized(self, dtype: torch.dtype = torch.float32) -> SparseLinear:
        """Returns a SparseLinear with the rounded weights, in ``dtype``: it computes what this layer does,
        except for the rounding of x."""
        if self._emptied:
            self._require_written()
        layout: Any = self.layout
        values = (self.values.float() * self.w_scale[layout.places()[0]]).to(dtype)
        bias = None if self.bias is None else self.bias.to(dtype, copy=True)
        own = layout.with_tensors({name: part.clone() for name, part in layout.tensors().items()})
        layer = SparseLinear.holding(own, values, bias)
        layer.activation = self.activation
        layer.strict, layer.fuse = self.strict, self.fuse
        return layer.train(self.training)
