"""EightBit: the base class of layers with 8-bit weights and inputs, in any layout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from .. import ops
from ..errors import Error, unsupported_layout
from . import arguments
from .held.options import WithOptions
from .held.weight import BlockSparseWeight

if TYPE_CHECKING:
    from .held.siblings import Siblings

#: The largest magnitude of each dtype.
MOST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
#: The buffers that keep their dtype whatever the model is converted to.
_EXACT = ("values", "w_scale", "x_scale")


def require_options(op: str, dtype: object, x_scale: object) -> None:
    """Raises Error unless the dtype has 8 bits and the factor, if there is one, is_factor."""
    if dtype not in ops.SCALED_DTYPES:
        raise Error(op, "dtype int8 or float8_e4m3fn", str(dtype), "pass torch.int8")
    if x_scale is not None and not is_factor(x_scale):
        raise Error(
            op, "x_scale > 0 and finite", repr(x_scale), "leave it out: every token then gets its own"
        )


def is_factor(value: object) -> bool:
    """Returns whether a value is a number, no bool, that is positive and finite in float32."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    return 0 < float(torch.tensor(float(value), dtype=torch.float32, device="cpu")) < float("inf")


def finite(values: Tensor) -> Tensor:
    """Returns the values in float32. Raises Error where one is NaN or Inf."""
    values = values.detach().float()
    if not values.is_meta and not bool(values.isfinite().all()):
        raise Error("quantize", "finite weights", "NaN or Inf among them", "check the training run")
    return values


class EightBit(WithOptions):
    """The buffers ``values``, ``w_scale`` float32 [out_features], ``x_scale`` float32 [1] or None, and
    ``bias`` or None, with a forward that quantizes x and multiplies by ``_product``."""

    in_features: int
    out_features: int
    activation: str | None
    values: Tensor
    w_scale: Tensor
    x_scale: Tensor | None
    bias: Tensor | None
    strict: bool
    fuse: bool = True
    use_fast_accum: bool
    kernel: str | None
    _siblings: Siblings | None = None
    #: Whether CPU calls accept float8 without ``kernel = "reference"``.
    float8_on_cpu: ClassVar[bool] = False
    #: Whether ``_product`` rounds x to int8 itself on CPUs.
    product_rounds: ClassVar[bool] = False

    def __setattr__(self, name: str, value: Any) -> None:
        """Does what nn.Module's does; ``x_scale`` may be a number, as in the constructor."""
        if name == "x_scale" and value is not None:
            is_tensor = isinstance(value, Tensor)
            if not is_tensor or (type(value) is Tensor and not value.is_meta):  # what is traced is not read
                number = value.item() if is_tensor and value.numel() == 1 else value
                require_options(f"{type(self).__name__}.x_scale", self.dtype, number)
            value = value if is_tensor else self.w_scale.new_tensor([float(value)])
        super().__setattr__(name, value)

    def _hold_eight(
        self,
        shape: Sequence[int],
        dtype: torch.dtype,
        bias: bool,
        x_scale: float | None,
        device: torch.device | str | int | None,
        bias_dtype: torch.dtype | None,
    ) -> None:
        """Registers the buffers, filled with zeros and ones, and sets the attributes of calls."""
        self.strict, self.use_fast_accum, self.kernel = False, False, None
        values = torch.zeros(tuple(shape), device=device, dtype=torch.int8).to(dtype)
        self.register_buffer("values", values)
        ones = torch.ones(self.out_features, device=device, dtype=torch.float32)
        self.register_buffer("w_scale", ones)
        factor = None if x_scale is None else torch.tensor([x_scale], device=device, dtype=torch.float32)
        self.register_buffer("x_scale", factor)
        zeros = torch.zeros(self.out_features, device=device, dtype=bias_dtype) if bias else None
        self.register_buffer("bias", zeros)

    def _product(
        self, x: Tensor, x_scale: Tensor | None, bias: Tensor | None, out_dtype: torch.dtype
    ) -> Tensor:
        """Returns act(x_scale w_scale (x W^T) + bias) in out_dtype, of x in 8 bits; or, where
        ``product_rounds``, of x before its rounding."""
        raise NotImplementedError

    @property
    def dense_copy(self) -> bool:
        """False: 8-bit layers keep no dense copy. Assigning anything else raises Error."""
        return False

    @dense_copy.setter
    def dense_copy(self, setting: object) -> None:
        if setting is not False:
            expected, remedy = (
                "dense_copy=False in an 8-bit layer",
                "copies are of layers that are not quantized",
            )
            raise Error("dense_copy", expected, repr(setting), remedy)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Maps x [..., in_features] of float32, bfloat16 or float16 to [..., out_features] of x's dtype, or
        under autocast of autocast's dtype. ``residual``, of the result's shape and dtype, is added to it.

        A bias of another dtype is rounded to the output's. float16 outputs come from a float32 product. A NaN
        or Inf in x reaches all outputs of its token through the token's factor; with a given ``x_scale``, Inf
        is clipped like any large number, and in int8 NaN becomes an ordinary number. Raises Error when x does
        not fit or needs a gradient, and when ``residual`` does not fit.
        """
        if (
            x.__class__ is not Tensor
            and (node := arguments.recorded_by_fx(self, x, residual=residual)) is not None
        ):
            return node  # type: ignore[no-any-return]
        if x.is_nested or x.layout != torch.strided:
            raise unsupported_layout("linear", "x", "a nested tensor" if x.is_nested else str(x.layout))
        siblings = self._siblings
        if siblings is not None and residual is None and (y := siblings.product(self, x)) is not None:
            return y
        kind = "cuda" if x.is_cuda else x.device.type
        dtype = x.dtype
        if (
            kind != "meta"
            and torch.is_autocast_enabled(kind)
            and x.is_floating_point()
            and dtype != torch.float64
        ):
            dtype = torch.get_autocast_dtype(kind)
        if not x.shape or x.shape[-1] != self.in_features or dtype not in (*ops.OUT_DTYPES, torch.float16):
            self._refuse(x)
        if x.device != self.values.device:
            raise Error(
                "linear",
                f"x on {self.values.device}, the layer's device",
                str(x.device),
                "move one of them with .to()",
            )
        if ops.differentiated(x):
            remedy = "run it in torch.no_grad(); to train, keep the float layer"
            raise Error(
                "linear", "x without a gradient: a quantized layer has none", "x that requires one", remedy
            )
        out_dtype = dtype if dtype in ops.OUT_DTYPES else torch.float32
        values, x_scale, bias = self.values, self.x_scale, self.bias
        taken = x.detach()
        if kind != "cpu" or not self.product_rounds or values.dtype is not torch.int8:
            taken, x_scale = ops.quantize_rows(taken, values.dtype, x_scale)
        if bias is not None and bias.dtype is not out_dtype:
            bias = bias.to(out_dtype)
        y = self._product(taken, x_scale, bias, out_dtype)
        y = y if self.fuse else ops.apart(y)
        return arguments.added(y if dtype is out_dtype else y.to(dtype), residual)

    @property
    def weight(self) -> BlockSparseWeight:
        """A stand-in for code that asks a dense layer's weight for dtype (8 bits), device or shape
        [out_features, in_features]. It refuses everything else: call the layer, or read ``dequantized()``."""
        layer: Any = self  # an instance of a subclass
        return BlockSparseWeight.of(layer, (self.out_features, self.in_features))

    @property
    def dtype(self) -> torch.dtype:
        """int8 or float8_e4m3fn."""
        return self.values.dtype

    def _refuse(self, x: Tensor) -> None:
        if not x.shape or x.shape[-1] != self.in_features:
            raise Error(
                "linear",
                f"x [..., {self.in_features}]",
                f"{list(x.shape)}",
                "the last dimension is in_features",
            )
        got = str(x.dtype)
        remedy = "convert x; x that is in 8 bits already goes to ops.scaled_linear with its factors"
        raise Error("linear", "x of float32, bfloat16 or float16, which the layer quantizes", got, remedy)

    def _require_dtype(self, values: Any) -> Any:
        """Returns the values of a state_dict. Raises Error for those of another dtype, which a copy would
        round without a word."""
        if isinstance(values, Tensor) and values.dtype != self.dtype:
            expected = f"values of {self.dtype}, as the layer has"
            remedy = "load a float checkpoint before quantize_, or quantize to that dtype"
            raise Error("load", expected, str(values.dtype), remedy)
        return values

    def reset_parameters(self) -> None:
        """Raises Error: 8-bit values are rounded from those of a trained layer."""
        remedy = "draw before quantize_, and quantize again"
        raise Error("reset_parameters", "a layer that trains", "one of 8 bits", remedy)

    def _settings_text(self) -> list[str]:
        """Returns the parts of extra_repr about the 8 bits and the settings of calls."""
        parts = [
            f"dtype={ops.SCALED_DTYPES[self.dtype]}, "
            f"x_scale={'given' if self.x_scale is not None else 'per token'}"
        ]
        parts += [f"activation={self.activation}"] if self.activation else []
        parts += ["strict=True"] if self.strict else []
        return [*parts, *(["use_fast_accum=True"] if self.use_fast_accum else [])]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> EightBit:
        """Applies .to(), .half() and their like: they move everything, and convert the bias alone."""
        exact = {name: self._buffers[name] for name in _EXACT}
        super()._apply(arguments.exact(fn), recurse)
        for name, tensor in exact.items():
            moved = self._buffers[name]
            if tensor is not None and moved is not None and moved.dtype != tensor.dtype:
                self._buffers[name] = tensor.to(moved.device)
        return self
