"""What can be wrong with a file: bytes of it, or what a signed file says."""

from __future__ import annotations

import json
import random
from typing import Any

import torch
from torch import Tensor

#: Numbers that overflow, or that a size or an entry of an index must not be.
NUMBERS = (
    0,
    1,
    -1,
    2,
    7,
    2**15,
    2**31 - 1,
    -(2**31),
    2**31,
    2**32,
    2**53,
    2**62,
    2**63 - 1,
    -(2**63),
    10**30,
)
#: What may stand in JSON where something else should.
VALUES: tuple[Any, ...] = (
    *NUMBERS, None, True, "", "x", "values", "weight", [], {}, [1], [[[]]], {"a": 1}, 0.5, -0.0, 1e308,
    "\ud800", float("nan"), float("inf"), "bsr", "csr", "coo", "nm", "semi24", "masked", "9" * 400,
)  # fmt: skip
_DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int16,
    torch.int32, torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn,
)  # fmt: skip


def of_bytes(data: bytes, rng: random.Random) -> bytes:
    """Returns the bytes with one to three damages; half of them lie in the first kilobyte, where headers
    are."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        size = len(changed)
        if size == 0:
            break
        at = rng.randrange(min(size, 1024) if rng.random() < 0.5 else size)
        end = min(size, at + rng.choice((1, 2, 8, 64, 700)))
        kind = rng.randrange(9)
        if kind == 0:
            changed[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            changed[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        elif kind == 2:
            del changed[rng.randrange(size) :]
        elif kind == 3:
            del changed[at:end]
        elif kind == 4:
            changed[at:at] = changed[at:end] * rng.choice((1, 2, 50))
        elif kind == 5:
            number = rng.choice(NUMBERS) % 2**64
            changed[at : at + 8] = number.to_bytes(8, rng.choice(("little", "big")))[: size - at]
        elif kind == 6:
            changed[at:end] = bytes(end - at)
        elif kind == 7:
            digits = [i for i in range(min(size, 4096)) if 48 <= changed[i] <= 57]
            if digits:
                i = rng.choice(digits)
                text = (
                    str(rng.choice(NUMBERS)).encode()
                    if rng.random() < 0.5
                    else bytes([rng.randrange(48, 58)])
                )
                changed[i : i + 1] = text
        else:
            changed += rng.randbytes(rng.choice((1, 8, 100)))
    return bytes(changed)


def of_tensor(tensor: Tensor, rng: random.Random) -> Tensor:
    """Returns a tensor with other entries, dtype or shape; one in a sparse layout of torch, with an index or
    values that need not fit."""
    if tensor.layout != torch.strided:
        return _of_sparse(tensor, rng)
    tensor = tensor.clone()
    kind = rng.randrange(8)
    if kind < 4 and tensor.numel():
        flat = tensor.view(-1)
        for _ in range(rng.choice((1, 1, 2, 5))):
            at = rng.randrange(len(flat))
            if tensor.dtype == torch.bool:
                flat[at] = not bool(flat[at])
            elif tensor.dtype.is_floating_point or tensor.dtype.is_complex:
                flat[at] = torch.tensor(rng.choice((float("nan"), float("inf"), 0.0, 1e30))).to(tensor.dtype)
            else:
                limits = torch.iinfo(tensor.dtype)
                other = int(flat[rng.randrange(len(flat))])
                number = rng.choice((*NUMBERS, other, int(flat[at]) + 1, int(flat[at]) - 1))
                flat[at] = max(limits.min, min(limits.max, number))
    elif kind == 4:
        tensor = tensor.to(rng.choice(_DTYPES))
    elif kind == 5:
        tensor = tensor.flatten()[: rng.randrange(tensor.numel() + 1)]
    elif kind == 6:
        tensor = torch.cat([tensor.flatten(), tensor.flatten()[:1]]) if rng.random() < 0.5 else tensor[None]
    else:
        bits = tensor.contiguous().flatten()
        bits = bits.view(torch.uint8) if bits.is_floating_point() and bits.element_size() == 1 else bits
        tensor = bits.flip(0).view(tensor.dtype).view(tensor.shape)  # torch flips no float of 8 bits
    return tensor.contiguous()


def _of_sparse(tensor: Tensor, rng: random.Random) -> Tensor:
    is_coo = tensor.layout == torch.sparse_coo
    by_row = tensor.layout in (torch.sparse_csr, torch.sparse_bsr)
    if is_coo:
        parts = [tensor._indices(), tensor._values()]
    else:
        names = ("crow_indices", "col_indices") if by_row else ("ccol_indices", "row_indices")
        parts = [getattr(tensor, name)() for name in (*names, "values")]
    shape = list(tensor.shape)
    at = rng.randrange(len(parts) + 1)
    if at < len(parts):
        parts[at] = of_tensor(parts[at], rng)
    else:
        shape[rng.randrange(2)] += rng.choice((-1, 1, 16, 2**40))
    try:
        if is_coo:
            return torch.sparse_coo_tensor(*parts, shape, check_invariants=False)
        return torch.sparse_compressed_tensor(*parts, shape, layout=tensor.layout, check_invariants=False)
    except (RuntimeError, ValueError, TypeError):  # torch itself makes no such tensor
        return tensor


def of_json(value: Any, rng: random.Random) -> Any:
    """Returns a JSON value with one place of it changed."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(sorted(value))
        kind = rng.randrange(8)
        changed = dict(value)
        if kind == 0:
            del changed[key]
        elif kind == 1:
            changed[rng.choice(("x", "values", "0", "layout", key + "."))] = changed[key]
        else:
            changed[key] = of_json(value[key], rng)
        return changed
    if isinstance(value, list) and value and rng.random() < 0.85:
        at = rng.randrange(len(value))
        return [*value[:at], of_json(value[at], rng), *value[at + 1 :]]
    return rng.choice(VALUES)


def of_text_of_json(text: str, rng: random.Random) -> str:
    try:
        return json.dumps(of_json(json.loads(text), rng))
    except ValueError:
        return str(rng.choice(VALUES))
