"""QuantizedBlockSparseLinear: a trained block-sparse layer in 8 bits, for inference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import ops
from ..errors import Error
from ..pattern import Pattern
from . import arguments
from .eight_bit import MOST, EightBit, finite, require_options
from .held import state
from .held.answers import tokens_of
from .held.sparse_weight import SparseWeight, described
from .held.with_index import WithIndex
from .in_layout import dense_entries
from .linear import BlockSparseLinear

_OP = "QuantizedBlockSparseLinear"


class QuantizedBlockSparseLinear(EightBit, WithIndex):
    """Computes y = activation(x W^T + bias) with x and W in int8 or float8_e4m3fn; made by ``from_sparse`` or
    ``sparseloom.quantize_``.

    All buffers are saved, except the derived index by block columns. ``values`` is [blocks, bm, bn] in 8
    bits. ``w_scale`` float32 [out_features] is the factor of each output feature's weights. ``x_scale`` is
    float32 [1], or None when every token gets a factor of its own in each call. ``bias`` is [out_features] in
    the dtype of the layer it came from, or None. ``crow`` and ``col`` are BlockSparseLinear's.
    ``.to(dtype)``, ``.half()`` and their like change the bias alone.

    Args:
        pattern: which blocks exist.
        dtype: torch.int8 or torch.float8_e4m3fn.
        bias: whether there is one.
        x_scale: a factor for x that was found beforehand: the largest |x| that should not be clipped, over
            127 (int8) or 448 (float8).
        activation: None or a name in ``sparseloom.ops.ACTIVATIONS``, such as "relu" or "gelu" (erf); fused.
        device, bias_dtype: as device and dtype in BlockSparseLinear.

    ``strict = True`` forbids the dense and reference kernels; ``kernel`` (None: the plan's choice) forces one
    by name; ``use_fast_accum = True`` lets float8 sums on CUDA stay in the tensor cores (see
    ``ops.scaled_linear``). On CPUs float8_e4m3fn has no fast kernel: a call there raises Error unless
    ``kernel = "reference"``, which is slow. All errors are ``sparseloom.Error``.
    """

    product_rounds = True

    def __init__(
        self,
        pattern: Pattern,
        dtype: torch.dtype = torch.int8,
        *,
        bias: bool = True,
        x_scale: float | None = None,
        activation: str | None = None,
        device: torch.device | str | int | None = None,
        bias_dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(pattern, Pattern):
            raise Error(
                _OP, "pattern to be a sparseloom.Pattern", type(pattern).__name__, "see sparseloom.pattern"
            )
        arguments.require_activation(activation, _OP)
        require_options(_OP, dtype, x_scale)
        self.out_features, self.in_features, self.block = pattern.rows, pattern.cols, pattern.block
        self.activation = activation
        self._hold_eight((pattern.blocks, *pattern.block), dtype, bias, x_scale, device, bias_dtype)
        self._set_index(pattern, self.values.device)

    @classmethod
    def from_sparse(
        cls, layer: BlockSparseLinear, dtype: torch.dtype = torch.int8, *, x_scale: float | None = None
    ) -> QuantizedBlockSparseLinear:
        """Returns an 8-bit layer with the layer's weights rounded, those of each output feature by its own
        factor: its largest stored |w| over 127 (int8) or 448 (float8).

        The given layer stays as it is. Raises Error for weights that hold NaN or Inf and for a dynamic layer.
        An int8 layer with more inputs than int32 can sum (131071) raises Error when it is called.
        """
        if not isinstance(layer, BlockSparseLinear):
            remedy = "make one with BlockSparseLinear.from_dense, or sparsify_ the model first"
            raise Error("quantize", "a BlockSparseLinear", f"a {type(layer).__name__}", remedy)
        options: dict[str, Any] = {"device": layer.values.device, "bias_dtype": layer.values.dtype}
        if layer.dynamic:
            raise Error(
                "quantize", "a layer of fixed topology", "a dynamic one", "call layer.fix_topology_() first"
            )
        bias = layer.bias
        quantized_layer = cls(
            layer.pattern,
            dtype,
            bias=bias is not None,
            x_scale=x_scale,
            activation=layer.activation,
            **options,
        )
        quantized_layer.strict, quantized_layer.fuse = layer.strict, layer.fuse
        values = finite(layer.values)
        rows = quantized_layer._block_rows()
        row_max = torch.zeros(
            (quantized_layer._grid_rows(), layer.block[0]), dtype=torch.float32, device=values.device
        )
        row_max.scatter_reduce_(0, rows[:, None].expand(-1, layer.block[0]), values.abs().amax(-1), "amax")
        scale = row_max / MOST[dtype]
        quantized, _ = ops.quantize_rows(values, dtype, scale[rows][:, :, None])
        quantized_layer.values.copy_(quantized)
        quantized_layer.w_scale.copy_(scale.flatten()[: layer.out_features])
        if bias is not None and quantized_layer.bias is not None:
            quantized_layer.bias.copy_(bias.detach())
        return quantized_layer.train(layer.training)

    def _product(
        self, x: Tensor, x_scale: Tensor | None, bias: Tensor | None, out_dtype: torch.dtype
    ) -> Tensor:
        return ops.scaled_linear(
            x, self.values, self.index, x_scale, self.w_scale, bias,
            out_dtype=out_dtype, activation=self.activation, strict=self.strict, kernel=self.kernel,
            use_fast_accum=self.use_fast_accum,
        )  # fmt: skip

    @property
    def pattern(self) -> Pattern:
        """Which blocks exist; immutable."""
        return self._pattern

    def plan(
        self,
        tokens: int | None = None,
        out_dtype: torch.dtype = torch.bfloat16,
        *,
        shape: Sequence[int] | None = None,
    ) -> dict[str, Any]:
        """Returns what would run for ``tokens`` rows of x, or x of that ``shape``, how long it should take,
        and why: see ``ops.plan``."""
        tokens = tokens_of(tokens, shape, self.in_features)
        index, device = state.build_index(self.pattern), "cpu" if self.values.is_meta else self.values.device
        flags = self.bias is not None, self.activation, self.strict, self.kernel
        options: dict[str, Any] = {
            "device": device,
            "out_dtype": out_dtype,
            "use_fast_accum": self.use_fast_accum,
        }
        return ops.plan(index, "forward", self.dtype, tokens, *flags, **options)

    def dequantized(self, dtype: torch.dtype = torch.float32) -> BlockSparseLinear:
        """Returns a BlockSparseLinear with the rounded weights, in ``dtype``: it computes what this layer
        does, except for the rounding of x."""
        options: dict[str, Any] = {"device": self.values.device, "dtype": dtype}
        layer = BlockSparseLinear(
            self.in_features,
            self.out_features,
            self.bias is not None,
            pattern=self.pattern,
            activation=self.activation,
            **options,
        )
        padded = F.pad(self.w_scale, (0, self._grid_rows() * self.block[0] - self.out_features)).unflatten(
            0, (-1, self.block[0])
        )
        with torch.no_grad():
            layer.values.copy_(self.values.float() * padded[self._block_rows()][:, :, None])
            if layer.bias is not None and self.bias is not None:
                layer.bias.copy_(self.bias)
        layer.strict, layer.fuse = self.strict, self.fuse
        return layer.train(self.training)

    def to_dense(self) -> nn.Module:
        """Returns what ``dequantized().to_dense()`` does, in the dtype of the bias (float32 without one)."""
        return self.dequantized(torch.float32 if self.bias is None else self.bias.dtype).to_dense()

    def sparse_weights(self) -> dict[str, SparseWeight]:
        """Returns the layer's one weight, under the name of its buffer."""
        return {"values": SparseWeight(self, scaled=True)}

    def describe(self) -> dict[str, dict[str, Any]]:
        """Returns the data that rebuild the layer without its values; see SparseModule. It also has "dtype",
        and "x_scale": whether one is stored."""
        eight = {"dtype": ops.SCALED_DTYPES[self.dtype], "x_scale": self.x_scale is not None}
        return {"values": described(self.pattern, self.activation, **eight)}

    def extra_repr(self) -> str:
        parts = [
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
        ]
        parts.append(
            f"block={self.block[0]}x{self.block[1]}, "
            f"blocks={self._pattern.blocks}, density={self.density:.4g}"
        )
        return ", ".join([*parts, *self._settings_text()])

    def _grid_rows(self) -> int:
        return self.pattern.mask.shape[0]

    def _block_rows(self) -> Tensor:
        """Returns the block row of each block, int64 [blocks]."""
        counts = self.crow.diff().long()
        return torch.repeat_interleave(
            torch.arange(len(counts), device=counts.device), counts, output_size=self.pattern.blocks
        )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> QuantizedBlockSparseLinear:
        """Applies .to(), .half(), .to_empty() and their like: they move everything, and convert the bias
        alone."""
        was_meta = self.packed_index.is_meta
        super()._apply(fn, recurse)
        if was_meta and not self.packed_index.is_meta:  # memory that came from meta holds nothing
            self._set_index(self._pattern, self.packed_index.device)
        else:
            state.remember(self)
        return self

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: Any, strict: bool,
        missing_keys: list[str], unexpected_keys: list[str], error_msgs: list[str],
    ) -> None:  # fmt: skip
        """Checks indices and values before anything changes. Another number of blocks gives ``values`` new
        memory."""
        dense_entries.accept_blocks(state_dict, prefix)
        try:
            state.require_strided(state_dict, prefix, ("values", "bias", "w_scale", "x_scale"))
            pattern = self._read_pattern(state_dict, prefix)
        except Error as error:
            error_msgs.append(f"{prefix[:-1] or 'layer'}: {error}")
            return
        if pattern is not None and pattern != self._pattern:
            self.values = self.values.new_empty((pattern.blocks, *self.block))
            self._set_index(pattern, self.packed_index.device)
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        state.load_pair(state_dict, prefix, missing_keys, unexpected_keys)
        if pattern is not None:
            # load_state_dict(assign=True) may have moved the values
            self._set_index(pattern, self.values.device)

    def _read_pattern(self, tensors: dict[str, Any], prefix: str) -> Pattern | None:
        values = self._require_dtype(tensors.get(prefix + "values"))
        if isinstance(values, Tensor):  # zero has the same bits in both, and float8 has few operators
            tensors = {**tensors, prefix + "values": values.view(torch.int8)}
        return state.read_pattern(self, tensors, prefix)
