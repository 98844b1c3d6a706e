"""Gives torch.compile and torch.export the shapes and dtypes of an operator's result (a fake kernel), and
FlopCounterMode its flops. This file has those of the BSR operators; the other families have them beside their
functions.

torch also runs fake kernels for tensors on meta, even if only one operand lies there: the result would be
uninitialised memory on the device of the others. So each fake kernel checks the devices of all operands."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

# takes 2 ms: torch itself has imported what it needs
from torch.utils.flop_counter import register_flop_formula

from .._home import NAMESPACE
from . import flops, inductor, library, onnx
from .devices import on_one_device

library.load()

Kernel = TypeVar("Kernel", bound=Callable[..., Any])


def fake(name: str, formula: Callable[..., int] | None = None) -> Callable[[Kernel], Kernel]:
    """Registers the fake kernel of an operator, with the check of its operands' devices, and the formula of
    its flops. The kernel raises Error during torch.onnx.export, and lets Inductor run our pass."""
    qualified = f"{NAMESPACE}::{name}"
    on_one = on_one_device(name.removeprefix("bsr_"), torch._C._get_schema(qualified, ""))
    if formula is not None:
        register_flop_formula(library.packet(name))(formula)

    def registered(kernel: Kernel) -> Kernel:
        @functools.wraps(kernel)
        def checked(*operands: Any, **named: Any) -> Any:
            onnx.refuse(qualified)
            inductor.join()
            return one_device(*operands, **named)

        one_device = on_one(kernel)
        torch.library.register_fake(qualified)(checked)
        return kernel

    return registered


@fake("bsr_linear", flops.of_values)
def _linear_fake(
    x: Tensor, values: Tensor, index: Tensor, out_features: int, *rest: Any, **named: Any
) -> Tensor:
    return x.new_empty((*x.shape[:-1], out_features))


@fake("bsr_linear_glu", flops.of_glu)
def _linear_glu_fake(
    x: Tensor, values: Tensor, index: Tensor, factor_values: Tensor, factor_index: Tensor, out_features: int,
    *rest: Any, **named: Any,
) -> Tensor:  # fmt: skip
    return x.new_empty((*x.shape[:-1], out_features))


@fake("bsr_linear_dx", flops.of_values)
def _linear_dx_fake(
    dy: Tensor, values: Tensor, index: Tensor, in_features: int, *rest: Any, **named: Any
) -> Tensor:
    return dy.new_empty((*dy.shape[:-1], in_features))


@fake("bsr_linear_dw", flops.of_dw)
def _linear_dw_fake(
    dy: Tensor, x: Tensor, index: Tensor, blocks: int, block_rows: int, block_cols: int, *rest: Any,
    **named: Any,
) -> Tensor:  # fmt: skip
    return dy.new_empty((blocks, block_rows, block_cols))


@fake("bsr_linear_dw_add", flops.of_dw_add)
def _linear_dw_add_fake(dvalues: Tensor, *rest: Any, **named: Any) -> None:
    return None


@fake("bsr_linear_train", flops.of_values)
def _linear_train_fake(
    x: Tensor, values: Tensor, index: Tensor, out_features: int, *rest: Any, **named: Any
) -> tuple[Tensor, Tensor]:
    sizes = (*x.shape[:-1], out_features)
    return x.new_empty(sizes), x.new_empty(sizes)


@fake("bsr_linear_backward", flops.of_backward)
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


@fake("sparsifier_mask")
def _sparsifier_mask_fake(dense: Tensor, *rest: Any) -> Tensor:
    return dense.new_empty(dense.shape, dtype=torch.bool)


@fake("sparsifier_values")
def _sparsifier_values_fake(dense: Tensor, *rest: Any) -> Tensor:
    return dense.new_empty(dense.shape)


@fake("pack")
def _pack_fake(dense: Tensor, crow: Tensor, col: Tensor, block_rows: int, block_cols: int) -> Tensor:
    return dense.new_empty((col.shape[0], block_rows, block_cols))


@fake("unpack")
def _unpack_fake(values: Tensor, crow: Tensor, col: Tensor, rows: int, cols: int) -> Tensor:
    return values.new_empty((rows, cols))


@fake("block_gradient_norms", flops.of_gradient_norms)
def _block_gradient_norms_fake(
    grad_output: Tensor, input: Tensor, block_rows: int, block_cols: int, norm: str
) -> Tensor:
    grid = (-(-grad_output.shape[-1] // block_rows), -(-input.shape[-1] // block_cols))
    return input.new_empty(grid, dtype=torch.float32)


@fake("gate_blocks")
def _gate_blocks_fake(
    values: Tensor, index: Tensor, gates: Tensor, rows: int, cols: int
) -> tuple[Tensor, Tensor, Tensor]:
    place = index.new_empty(values.shape[0])
    return index.new_empty(index.shape), values.new_empty(values.shape), place


@fake("gate_gradients")
def _gate_gradients_fake(
    gradient: Tensor, values: Tensor, gates: Tensor, place: Tensor, need_values: bool, need_gates: bool
) -> tuple[Tensor, Tensor]:
    dvalues = values.new_empty(values.shape if need_values else (0, 0, 0))
    return dvalues, gates.new_empty(gates.shape if need_gates else (0,))


@fake("bsr_scaled_linear", flops.of_values)
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


@fake("quantize_rows")
def _quantize_rows_fake(x: Tensor, scale: Tensor | None) -> tuple[Tensor, Tensor]:
    factors = (*x.shape[:-1], 1 if scale is None else 0)
    return x.new_empty(x.shape, dtype=torch.int8), x.new_empty(factors, dtype=torch.float32)
