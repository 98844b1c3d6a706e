"""Tensors with a page behind them that nobody may touch: an access beyond an operand ends the process."""

from __future__ import annotations

import ctypes
import mmap

import torch
from torch import Tensor

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
)
_LIBC.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def guarded(tensor: Tensor) -> Tensor:
    """Returns a contiguous copy that ends where its page does, with a forbidden page behind. Its memory lives
    as long as the process: for children that end soon."""
    tensor = tensor.detach().contiguous()
    size = tensor.numel() * tensor.element_size()
    if size == 0 or tensor.device.type != "cpu" or tensor.layout != torch.strided:
        return tensor
    page = mmap.PAGESIZE
    room = -(-size // page) * page
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    begin = _LIBC.mmap(None, room + page, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    if begin in (None, ctypes.c_void_p(-1).value):
        raise MemoryError
    _LIBC.mprotect(begin + room, page, 0)
    memory = (ctypes.c_uint8 * size).from_address(begin + room - size)
    copy = torch.frombuffer(memory, dtype=torch.uint8).view(tensor.dtype).view(tensor.shape)
    copy.copy_(tensor)
    return copy
