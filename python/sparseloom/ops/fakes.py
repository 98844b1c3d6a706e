"""Gives torch.compile and torch.export the shapes and dtypes of the operators' results (fake kernels).
Imported once the library is loaded.

torch runs them for tensors on meta, too, and takes a call for one of those where a single operand lies
there: the result would be memory that nobody wrote, on the device of the others. So each of them looks at
where all operands lie."""

import functools
import math
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from . import onnx
from .devices import on_one_device

Kernel = TypeVar("Kernel", bound=Callable[..., Any])


def _fake(name: str) -> Callable[[Kernel], Kernel]:
    """Registers the fake kernel of an operator, with the check of its operands' devices; while
    torch.onnx.export asks for it, it raises Error."""
    on_one = on_one_device(
        name.removeprefix("sparseloom::").removeprefix("bsr_"), torch._C._get_schema(name, "")
    )

    def registered(kernel: Kernel) -> Kernel:
        @functools.wraps(kernel)
        def checked(*operands: Any, **named: Any) -> Any:
            onnx.refuse(name)
            return one_device(*operands, **named)

        one_device = on_one(kernel)
        torch.library.register_fake(name)(checked)
        return kernel

    return registered


@_fake("sparseloom::bsr_linear")
def _linear_fake(
    x: Tensor, values: Tensor, index: Tensor, out_features: int, *rest: Any, **named: Any
) -> Tensor:
    return x.new_empty((*x.shape[:-1], out_features))


@_fake("sparseloom::bsr_linear_dx")
def _linear_dx_fake(
    dy: Tensor, values: Tensor, index: Tensor, in_features: int, *rest: Any, **named: Any
) -> Tensor:
    return dy.new_empty((*dy.shape[:-1], in_features))


@_fake("sparseloom::bsr_linear_dw")
def _linear_dw_fake(
    dy: Tensor, x: Tensor, index: Tensor, blocks: int, block_rows: int, block_cols: int, *rest: Any,
    **named: Any,
) -> Tensor:  # fmt: skip
    return dy.new_empty((blocks, block_rows, block_cols))


@_fake("sparseloom::bsr_linear_dw_add")
def _linear_dw_add_fake(dvalues: Tensor, *rest: Any, **named: Any) -> None:
    return None


@_fake("sparseloom::bsr_linear_train")
def _linear_train_fake(
    x: Tensor, values: Tensor, index: Tensor, out_features: int, *rest: Any, **named: Any
) -> tuple[Tensor, Tensor]:
    sizes = (*x.shape[:-1], out_features)
    return x.new_empty(sizes), x.new_empty(sizes)


@_fake("sparseloom::bsr_linear_backward")
def _linear_backward_fake(
    dy: Tensor, saved: Tensor | None, x: Tensor | None, values: Tensor | None, index: Tensor,
    in_features: int, blocks: int, block_rows: int, block_cols: int, main_grad: Tensor | None,
    need_bias: bool, *rest: Any, **named: Any,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    dx = dy.new_empty((0,) if values is None else (*dy.shape[:-1], in_features))
    dvalues = dy.new_empty(
        (0, 0, 0) if x is None or main_grad is not None else (blocks, block_rows, block_cols)
    )
    return dx, dvalues, dy.new_empty((dy.shape[-1] if need_bias else 0,))


@_fake("sparseloom::sparsifier_mask")
def _sparsifier_mask_fake(dense: Tensor, *rest: Any) -> Tensor:
    return dense.new_empty(dense.shape, dtype=torch.bool)


@_fake("sparseloom::sparsifier_values")
def _sparsifier_values_fake(dense: Tensor, *rest: Any) -> Tensor:
    return dense.new_empty(dense.shape)


@_fake("sparseloom::nm_positions")
def _nm_positions_fake(mask: Tensor, n: int, m: int) -> Tensor:
    return mask.new_empty((mask.shape[0], -(-mask.shape[1] // m), n), dtype=torch.uint8)


@_fake("sparseloom::nm_pack")
def _nm_pack_fake(dense: Tensor, positions: Tensor, m: int) -> Tensor:
    return dense.new_empty(positions.shape)


@_fake("sparseloom::nm_unpack")
def _nm_unpack_fake(values: Tensor, positions: Tensor, cols: int, m: int) -> Tensor:
    return values.new_empty((values.shape[0], cols))


@_fake("sparseloom::nmg_pack")
def _nmg_pack_fake(dense: Tensor, order: Tensor, n: int, m: int, g: int) -> Tensor:
    return dense.new_empty((*order.shape, n))


@_fake("sparseloom::nmg_unpack")
def _nmg_unpack_fake(values: Tensor, order: Tensor, rows: int, cols: int, *rest: Any) -> Tensor:
    return values.new_empty((rows, cols))


@_fake("sparseloom::nmg_linear")
def _nmg_linear_fake(x: Tensor, values: Tensor, order: Tensor, rows: int, *rest: Any, **named: Any) -> Tensor:
    return x.new_empty((*x.shape[:-1], rows))


@_fake("sparseloom::pack")
def _pack_fake(dense: Tensor, crow: Tensor, col: Tensor, block_rows: int, block_cols: int) -> Tensor:
    return dense.new_empty((col.shape[0], block_rows, block_cols))


@_fake("sparseloom::unpack")
def _unpack_fake(values: Tensor, crow: Tensor, col: Tensor, rows: int, cols: int) -> Tensor:
    return values.new_empty((rows, cols))


@_fake("sparseloom::block_gradient_norms")
def _block_gradient_norms_fake(
    grad_output: Tensor, input: Tensor, block_rows: int, block_cols: int, norm: str
) -> Tensor:
    grid = (-(-grad_output.shape[-1] // block_rows), -(-input.shape[-1] // block_cols))
    return input.new_empty(grid, dtype=torch.float32)


@_fake("sparseloom::gate_blocks")
def _gate_blocks_fake(
    values: Tensor, index: Tensor, gates: Tensor, rows: int, cols: int
) -> tuple[Tensor, Tensor, Tensor]:
    place = index.new_empty(values.shape[0])
    return index.new_empty(index.shape), values.new_empty(values.shape), place


@_fake("sparseloom::gate_gradients")
def _gate_gradients_fake(
    gradient: Tensor, values: Tensor, gates: Tensor, place: Tensor, need_values: bool, need_gates: bool
) -> tuple[Tensor, Tensor]:
    dvalues = values.new_empty(values.shape if need_values else (0, 0, 0))
    return dvalues, gates.new_empty(gates.shape if need_gates else (0,))


@_fake("sparseloom::bsr_scaled_linear")
def _scaled_linear_fake(
    x: Tensor,
    values: Tensor,
    index: Tensor,
    x_scale: Tensor,
    w_scale: Tensor,
    out_features: int,
    out_dtype: torch.dtype,
    *rest: Any,
    **named: Any,
) -> Tensor:
    return x.new_empty((*x.shape[:-1], out_features), dtype=out_dtype)


@_fake("sparseloom::semi24_linear")
def _semi24_linear_fake(x: Tensor, values: Tensor, *rest: Any, **named: Any) -> Tensor:
    return x.new_empty((*x.shape[:-1], values.shape[0]))


@_fake("sparseloom::semi24_scaled_linear")
def _semi24_scaled_linear_fake(
    x: Tensor,
    values: Tensor,
    positions: Tensor,
    cols: int,
    metadata: Tensor | None,
    x_scale: Tensor,
    w_scale: Tensor,
    out_dtype: torch.dtype,
    *rest: Any,
    **named: Any,
) -> Tensor:
    return x.new_empty((*x.shape[:-1], values.shape[0]), dtype=out_dtype)


@_fake("sparseloom::semi24_order")
def _semi24_order_fake(positions: Tensor, cols: int, eight_bit: bool = False) -> Tensor:
    width = 2 if eight_bit else 1
    tiles = -(-positions.shape[0] // 64) * -(-cols // (128 * width))
    return positions.new_empty(tiles * 1024 * width)


@_fake("sparseloom::semi24_dx")
def _semi24_dx_fake(
    dy: Tensor, values: Tensor, positions: Tensor, cols: int, *rest: Any, **named: Any
) -> Tensor:
    return dy.new_empty((*dy.shape[:-1], cols))


@_fake("sparseloom::semi24_pack")
def _semi24_pack_fake(dense: Tensor) -> tuple[Tensor, Tensor]:
    rows, groups = dense.shape[0], -(-dense.shape[1] // 4)
    return dense.new_empty((rows, 2 * groups)), dense.new_empty((rows, -(-groups // 2)), dtype=torch.uint8)


@_fake("sparseloom::semi24_unpack")
def _semi24_unpack_fake(values: Tensor, positions: Tensor, cols: int) -> Tensor:
    return values.new_empty((values.shape[0], cols))


@_fake("sparseloom::semi24_prune")
def _semi24_prune_fake(w: Tensor, method: str) -> Tensor:
    return w.new_empty(w.shape, dtype=torch.bool)


@_fake("sparseloom::semi24_compress")
def _semi24_compress_fake(w: Tensor, method: str, transposed: bool = False) -> tuple[Tensor, ...]:
    packed = _semi24_pack_fake(w)
    mask = w.new_empty((w.shape[0], -(-w.shape[1] // 8)), dtype=torch.uint8)
    turned = w.new_empty((w.shape[1], w.shape[0]) if transposed else (0, 0))
    return *packed, mask, *_semi24_pack_fake(turned)


@_fake("sparseloom::csr_linear")
def _csr_linear_fake(x: Tensor, values: Tensor, crow: Tensor, *rest: Any, **named: Any) -> Tensor:
    return x.new_empty((*x.shape[:-1], crow.shape[0] - 1))


@_fake("sparseloom::csr_dx")
def _csr_dx_fake(
    dy: Tensor, values: Tensor, crow: Tensor, col: Tensor, by_column: Tensor | None, cols: int,
    *rest: Any, **named: Any,
) -> Tensor:  # fmt: skip
    return dy.new_empty((*dy.shape[:-1], cols))


@_fake("sparseloom::csr_dw")
def _csr_dw_fake(dy: Tensor, x: Tensor, crow: Tensor, col: Tensor, *rest: Any, **named: Any) -> Tensor:
    return dy.new_empty(col.shape)


@_fake("sparseloom::conv_pack")
def _conv_pack_fake(weight: Tensor, index: Tensor, blocks: int, bm: int, bn: int) -> Tensor:
    return weight.new_empty((blocks, weight.shape[1], bm, bn))


@_fake("sparseloom::conv_unpack")
def _conv_unpack_fake(values: Tensor, index: Tensor, rows: int, cols: int) -> Tensor:
    return values.new_empty((rows, values.shape[1], cols))


@_fake("sparseloom::bsr_conv")
def _conv_fake(
    x: Tensor, values: Tensor, index: Tensor, out_channels: int, *window: Any,
    **named: Any,
) -> Tensor:  # fmt: skip
    axes = zip(x.shape[1:-1], *window[:4], strict=True)
    space = [
        (extent + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
        for extent, kernel, stride, padding, dilation in axes
    ]
    return x.new_empty((x.shape[0], *space, out_channels))


@_fake("sparseloom::bsr_conv_dx")
def _conv_dx_fake(
    dy: Tensor, values: Tensor, index: Tensor, in_channels: int, depth: int, height: int, width: int,
    *window: Any, **named: Any,
) -> Tensor:  # fmt: skip
    space = (depth, height, width)[5 - dy.dim() :]
    return dy.new_empty((dy.shape[0], *space, in_channels))


@_fake("sparseloom::bsr_conv_dw")
def _conv_dw_fake(
    dy: Tensor, x: Tensor, index: Tensor, blocks: int, block_rows: int, block_cols: int, kernel: list[int],
    *window: Any, **named: Any,
) -> Tensor:  # fmt: skip
    return x.new_empty((blocks, math.prod(kernel), block_rows, block_cols))


@_fake("sparseloom::lstm_cell_pointwise")
@_fake("sparseloom::lstm_cell_pointwise_backward")
@_fake("sparseloom::gru_cell_pointwise")
@_fake("sparseloom::gru_cell_pointwise_backward")
@_fake("sparseloom::unit_norm")
@_fake("sparseloom::unit_norm_backward")
def _cell_fake(*operands: Any) -> None:
    return None
