"""The ``weight`` of a block-sparse layer: it answers questions about dtype, device and shape and takes
initialisers, but cannot be computed with."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import torch
from torch import Tensor, nn

from ...errors import Error
from . import state
from .dense_copy import own_writes

if TYPE_CHECKING:
    from ..in_layout.linear import SparseLinear
    from ..linear import BlockSparseLinear
    from ..quantized import QuantizedBlockSparseLinear
    from ..semi24.linear import Semi24Linear
    from ..semi24.quantized import QuantizedSemi24Linear

    Layer: TypeAlias = (
        BlockSparseLinear | QuantizedBlockSparseLinear | QuantizedSemi24Linear | Semi24Linear | SparseLinear
    )

#: Attributes and methods that an expanded tensor of the dense shape answers, without the memory of a dense
#: tensor.
_ASKED = {
    *(
        "shape",
        "dtype",
        "device",
        "ndim",
        "layout",
        "itemsize",
        "is_cuda",
        "is_cpu",
        "is_meta",
        "is_xpu",
        "is_mps",
        "is_leaf",
    ),
    *(
        "is_sparse",
        "is_quantized",
        "is_nested",
        "size",
        "dim",
        "ndimension",
        "numel",
        "nelement",
        "element_size",
        "get_device",
    ),
    *("is_floating_point", "is_complex", "is_signed", "is_inference", "__len__", "__hash__"),
}
#: Functions that act on each stored element by itself when their other arguments are numbers and a generator.
_ELEMENTWISE = {
    *(
        "normal_",
        "uniform_",
        "zero_",
        "fill_",
        "exponential_",
        "bernoulli_",
        "erfinv_",
        "constant_",
        "zeros_",
    ),
    *("ones_", "random_", "cauchy_", "geometric_", "log_normal_", "mul_", "multiply_", "div_", "divide_"),
    *("true_divide_", "floor_divide_", "add_", "sub_", "subtract_", "pow_", "fmod_", "remainder_", "neg_"),
    *("negative_", "clamp_", "clamp_min_", "clamp_max_", "clip_", "nan_to_num_", "abs_", "absolute_", "sgn_"),
    *("sign_", "ceil_", "floor_", "round_", "trunc_", "fix_", "frac_", "exp_", "exp2_", "expm1_", "log_"),
    *(
        "log2_",
        "log10_",
        "log1p_",
        "sqrt_",
        "rsqrt_",
        "square_",
        "reciprocal_",
        "sigmoid_",
        "logit_",
        "tanh_",
    ),
    *("relu_", "sin_", "cos_", "tan_", "asin_", "acos_", "atan_", "sinh_", "cosh_", "asinh_", "acosh_"),
    *("atanh_", "arcsin_", "arccos_", "arctan_", "arcsinh_", "arccosh_", "arctanh_", "sinc_", "deg2rad_"),
    *("rad2deg_", "erf_", "erfc_", "lgamma_", "digamma_", "i0_", "eq_", "ne_", "lt_", "le_", "gt_", "ge_"),
}


class BlockSparseWeight(Tensor):
    """The ``layer.weight`` of a block-sparse layer. It is made when it is asked for, and has the dense
    layer's shape without its memory.

    It answers dtype, device, shape, size and ``requires_grad`` (which may be set). It takes the initialisers
    of ``torch.nn.init`` and in-place methods with numbers, also through ``.data``: they write the layer's
    ``values``, using the fan-in of the dense shape, and skip values that transformers has marked as loaded.
    Other attributes are those of ``values``. Everything else, above all arithmetic, raises Error, because
    there is no dense tensor.
    """

    _layer: Layer
    _plain: Tensor  # the same tensor, but not of this class

    @staticmethod
    def of(layer: Layer, shape: Sequence[int]) -> BlockSparseWeight:
        """Returns the weight of ``layer`` for code that expects a tensor of that shape."""
        element = torch.empty((), dtype=layer.values.dtype, device=layer.values.device)
        expanded = element.expand(tuple(shape))
        weight = expanded.as_subclass(BlockSparseWeight)
        weight._layer, weight._plain = layer, expanded
        return weight

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        options = dict(kwargs or {})
        # Functions of torch.nn.init name their first argument.
        weight, *rest = args if "tensor" not in options else (options.pop("tensor"),)
        # An attribute's func is the __get__ or __set__ of torch's descriptor.
        name = func.__name__ if func.__name__ not in ("__get__", "__set__") else func.__self__.__name__  # type: ignore[attr-defined]
        tensors = [value for value in (*rest, *options.values()) if isinstance(value, Tensor)]
        if isinstance(weight, BlockSparseWeight) and not tensors:
            if name in _ASKED:
                # We call it on the plain tensor: Dynamo does not always see DisableTorchFunctionSubclass, and
                # recursed into this function.
                return func(weight._plain, *rest, **options)
            if name == "detach" or (name == "data" and not rest):
                return weight
            if name in ("requires_grad", "requires_grad_"):
                return _requires_grad(weight, func.__name__, *rest, **options)
            if name == "new_tensor":  # a number in this dtype: trunc_normal_ asks for its bounds
                return weight._layer.values.detach().new_tensor(*rest, **options)
            if name in _ELEMENTWISE:
                return _write(weight, func, *rest, **options)
            if name == "kaiming_uniform_":
                return _kaiming_uniform(weight, **options)
        elif (
            isinstance(weight, BlockSparseWeight)
            and name == "copy_"
            and tensors[0].shape == weight._layer.values.shape
        ):
            # trunc_normal_ writes back what normal_ gave it
            return _write(weight, func, *rest, **options)
        raise _refusal(_found([*args, *(kwargs or {}).values()]), name)

    def __getattr__(self, name: str) -> Any:
        if name in ("_layer", "_plain"):
            raise AttributeError(name)
        return getattr(self._layer.values, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("_layer", "_plain") or hasattr(Tensor, name):
            super().__setattr__(name, value)
        else:
            setattr(self._layer.values, name, value)

    def __repr__(self) -> str:  # type: ignore[override]
        return f"<weight {list(self.shape)} of {self._layer}>"


def assigned(layer: BlockSparseLinear | Semi24Linear | SparseLinear) -> Error:
    """Returns the Error that an assignment to ``layer.weight`` raises."""
    remedy = "load_state_dict({'weight': dense}, strict=False) packs a dense one by the layer's pattern"
    return Error(
        f"{type(layer).__name__}.weight", "to stay: the layer's Parameter is values", "an assignment", remedy
    )


def _requires_grad(weight: BlockSparseWeight, accessor: str, requires_grad: bool = True) -> Any:
    values = weight._layer.values
    if accessor == "__get__":
        return values.requires_grad
    values.requires_grad_(requires_grad)
    return weight


def _write(weight: BlockSparseWeight, func: Callable[..., Any], *rest: Any, **options: Any) -> Tensor:
    """Runs an in-place function on the layer's values; the padding of ragged edges stays zero."""
    layer, values = weight._layer, weight._layer.values
    sparse = layer.sparse_weights()["values"]
    if not isinstance(values, nn.Parameter) or "dw" not in sparse.directions:
        raise _refusal(weight, func.__name__)
    # transformers' own initialisers check this mark too; those that go through .data do not
    loaded = getattr(values, "_is_hf_initialized", False)
    if not loaded:
        if sparse.layout != "bsr":
            with torch.no_grad():
                func(values, *rest, **options)
                if (layout := cast("SparseLinear", layer).layout).padded:
                    values.copy_(layout.pack(layout.to_dense(values)))
        else:
            with torch.no_grad(), own_writes(cast("BlockSparseLinear", layer)):
                func(values, *rest, **options)
                state.zero_padding_(values, cast("BlockSparseLinear", layer).pattern)
    if isinstance(func, FunctionType):  # a function of torch.nn.init
        return weight
    # trunc_normal_ looks at a method's result, to draw again what is out of bounds.
    return values.detach().clone() if loaded else values.detach()


def _kaiming_uniform(
    weight: BlockSparseWeight,
    a: float = 0,
    mode: Any = "fan_in",
    nonlinearity: Any = "leaky_relu",
    generator: Any = None,
) -> Tensor:
    fan = nn.init._calculate_correct_fan(weight, mode)
    bound = math.sqrt(3.0 / fan) * nn.init.calculate_gain(nonlinearity, a) if fan else 0.0
    return _write(weight, Tensor.uniform_, -bound, bound, generator=generator)


def _found(arguments: Iterable[Any]) -> BlockSparseWeight:
    """Returns the BlockSparseWeight among the arguments, or in a list among them, for which torch called
    __torch_function__."""
    flat = (y for x in arguments for y in (x if isinstance(x, (list, tuple)) else [x]))
    return next(x for x in flat if isinstance(x, BlockSparseWeight))


def _refusal(weight: BlockSparseWeight, name: str) -> Error:
    layer = weight._layer
    hint = (
        "it stores blocks; call the layer instead of multiplying with its "
        "weight, read dtype and device of layer.values, "
    )
    hint += "copy with layer.to_dense().weight"
    sparse = layer.sparse_weights()["values"]
    if sparse.scaled:
        hint = "it stores 8-bit blocks; call the layer, or read dequantized()"
    if sparse.layout != "bsr":
        packed = "is packed, two of four elements"
        of_layout = packed if sparse.layout == "semi24" else f"stores elements in layout {sparse.layout}"
        hint = hint.replace("stores blocks", of_layout)
    return Error(
        f"{type(layer).__name__}.weight", "to be asked for dtype, device or shape, or initialised", name, hint
    )
