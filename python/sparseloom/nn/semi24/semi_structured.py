"""2:4 weights to and from torch's SparseSemiStructuredTensor, bit by bit.

The CUTLASS backend keeps the kept elements as we do, and four or eight groups' positions in each element of
``meta``, with the same four bits for a group, in an order that torch computes. The cuSPARSELt backend keeps
elements and metadata in one tensor, of which only that library knows the order; its product with the identity
says where the elements go.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeGuard

import torch
from torch import Tensor
from torch.sparse import (
    SparseSemiStructuredTensor,
    SparseSemiStructuredTensorCUSPARSELT,
    SparseSemiStructuredTensorCUTLASS,
)

from ...errors import Error
from ...layouts.semi24 import Semi24Layout, packed

BACKENDS = {
    "cutlass": SparseSemiStructuredTensorCUTLASS,
    "cusparselt": SparseSemiStructuredTensorCUSPARSELT,
}
#: An element of CUTLASS's metadata for each dtype of the weight. float32 is not among them: there the
#: hardware stores one of two elements.
_META = {torch.float16: torch.int16, torch.bfloat16: torch.int16, torch.int8: torch.int32}


def is_torchs(weight: object) -> TypeGuard[Any]:
    """Returns whether a weight is a SparseSemiStructuredTensor, or a Parameter of one."""
    return isinstance(weight, SparseSemiStructuredTensor)


def from_torch(weight: Any) -> tuple[Semi24Layout, Tensor]:
    """Returns the layout and a copy of the values of a SparseSemiStructuredTensor [rows, cols]. Raises Error
    for anything else, and for one that holds W^T alone."""
    if not is_torchs(weight):
        got = f"{type(weight).__name__}, {weight.layout}" if isinstance(weight, Tensor) else repr(weight)
        raise Error("from_torch", "a SparseSemiStructuredTensor", got, "pack other weights with from_dense")
    if weight.packed is None:
        raise Error("from_torch", "a weight that is packed itself", "its transpose alone", "pass weight.t()")
    with torch.no_grad():
        rows, cols = weight.shape
        elements = weight.packed.flatten()[: rows * cols // 2].view(rows, -1)
        if weight.BACKEND == "cutlass" and weight.dtype in _META and weight.meta.dim() == 2:
            positions = _in_rows(weight.meta).view(torch.uint8)
            layout, values = Semi24Layout(rows, cols, positions=positions), elements.clone()
            layout.require_consistent("from_torch", values)
            return layout, values
        if weight.BACKEND == "cutlass" and weight.dtype is torch.float32 and weight.meta.dim() == 2:
            return packed(_one_of_two(elements, _in_rows(weight.meta)))
        places = _with_elements(weight, torch.ones_like(elements)).to_dense() != 0
        if not bool((places.unflatten(1, (-1, 4)).sum(-1) == 2).all()):
            return packed(weight.to_dense())
        layout, _ = packed(places.to(elements.dtype))
        _require_same(layout.to_dense(elements), weight.to_dense())
        return layout, elements.clone()


def to_torch(layout: Semi24Layout, values: Tensor, backend: str) -> Tensor:
    """Returns the weight as a SparseSemiStructuredTensor of that backend, on the device of the values. Raises
    Error for sizes and dtypes that the backend does not have, and for cuSPARSELt on the CPU."""
    if backend not in BACKENDS:
        raise Error("to_torch", f"a backend of {', '.join(BACKENDS)}", repr(backend), "choose one of them")
    cls: Any = BACKENDS[backend]
    shape, dtype = (layout.rows, layout.cols), values.dtype
    constraint = cls._DTYPE_SHAPE_CONSTRAINTS.get(dtype)
    if constraint is None or (backend == "cutlass" and dtype not in _META and dtype is not torch.float32):
        dtypes = ", ".join(str(supported) for supported in cls._DTYPE_SHAPE_CONSTRAINTS)
        raise Error("to_torch", f"{backend}'s dtypes {dtypes}", str(dtype), "convert the layer with .to()")
    minimum = constraint.sparse_min_rows, constraint.sparse_min_cols
    if any(not size or size % step for size, step in zip(shape, minimum, strict=True)):
        expected = f"out and in features that are multiples of {minimum[0]} and {minimum[1]}"
        got = f"{shape[0]} x {shape[1]}"
        raise Error("to_torch", expected, got, "torch pads no weight: pad the layer, or keep it here")
    if backend == "cutlass" and dtype in _META:
        meta = layout.positions.contiguous().view(_META[dtype])
        return cls(torch.Size(shape), values.clone(), _in_cutlass_order(meta), None, None, None)  # type: ignore[no-any-return]
    dense = layout.to_dense(values)
    if dtype is torch.float32 and bool((dense.unflatten(1, (-1, 2)) != 0).all(-1).any()):
        expected = "at most one nonzero of two neighbours, which is what float32 has on tensor cores"
        raise Error("to_torch", expected, "two of them", "convert the layer with .to(torch.bfloat16)")
    if backend == "cutlass":
        from torch.sparse._semi_structured_conversions import sparse_semi_structured_from_dense_cutlass

        elements, meta = sparse_semi_structured_from_dense_cutlass(dense)
        return cls(torch.Size(shape), elements, meta, None, None, None)  # type: ignore[no-any-return]
    if not values.is_cuda:
        raise Error("to_torch", "a layer on a CUDA device, where cuSPARSELt packs", str(values.device),
                    "move it with .cuda(), or pass backend='cutlass'")  # fmt: skip
    return cls.from_dense(dense)  # type: ignore[no-any-return]


def _require_same(weight: Tensor, from_identity: Tensor) -> None:
    """Raises Error unless W agrees with torch's product with the identity. That product rounds, and spreads
    NaN and Inf over their rows; such rows are not compared."""
    rows = from_identity.isfinite().all(1)
    weight, from_identity = weight[rows].float(), from_identity[rows].float()
    if bool(((weight - from_identity).abs() > 0.01 * weight.abs()).any()):
        remedy = "pass the dense weight to from_dense, and say which torch and GPU packed it"
        raise Error("from_torch", "elements in the order of rows", "another order", remedy)


def _one_of_two(elements: Tensor, meta: Tensor) -> Tensor:
    """Returns W from float32 elements [rows, cols / 2], each of which lies at place 0 or 1 of a pair. torch's
    own conversion moves 16-bit halves, and changes the bits of halves that are NaN."""
    pairs = meta.view(torch.uint8)
    bits = torch.stack([pairs & 15, pairs >> 4], -1).flatten(1)
    places = (bits & 2).long()[..., None] // 2  # 0100 names the first two halves of 16 bits, 1110 the others
    dense = elements.new_zeros(*elements.shape, 2)
    return dense.scatter_(-1, places, elements[..., None]).flatten(1)


def _with_elements(weight: Any, elements: Tensor) -> Any:
    """Returns a weight with the same metadata and other elements."""
    inner, context = weight.__tensor_flatten__()
    tensors = {name: getattr(weight, name) for name in inner if name in ("packed", "meta")}
    flat = tensors["packed"].clone().flatten()
    flat[: elements.numel()] = elements.flatten()
    tensors["packed"] = flat.view(tensors["packed"].shape)
    return type(weight).__tensor_unflatten__(tensors, context, weight.shape, weight.stride())


def _in_cutlass_order(meta: Tensor) -> Tensor:
    ordered = torch.empty_like(meta).flatten()
    return ordered.scatter_(0, _offsets(meta), meta.flatten()).view(meta.shape)


def _in_rows(meta: Tensor) -> Tensor:
    """Undoes _in_cutlass_order."""
    return meta.flatten().gather(0, _offsets(meta)).view(meta.shape).contiguous()


def _offsets(meta: Tensor) -> Tensor:
    from torch.sparse import _semi_structured_conversions as conversions

    order: Callable[..., Tensor] = conversions._calculate_meta_reordering_scatter_offsets
    return order(*meta.shape, meta.dtype, meta.device)
