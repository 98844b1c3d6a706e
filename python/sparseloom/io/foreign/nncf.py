"""Masks that nncf keeps as hooks beside dense weights. nncf.prune adds them, and of nncf.strip's formats
IN_PLACE alone writes them into the weights: a state dict of all others means weights that no entry has."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor

from ...errors import Error

#: As post_hooks.layers:0:weight__0.0.binary_mask: the first hook on what port 0 of layers.0.weight gives.
_HOOK = re.compile(
    r"(?P<model>(?:.+\.)?)__nncf_hooks\.(?P<when>pre|post)_hooks\.(?P<source>[^.]+)__\d+\.\d+\.(?P<part>.+)"
)


def masked(tensors: dict[str, Any]) -> None:
    """Multiplies weights with nncf's masks (3.4.0): those by magnitude, and those that training chose, which
    keep where sigmoid(mask) > 0.5. Takes the hooks' entries away. Raises Error for hooks of other kinds, such
    as quantizers, and for masks that no weight fits."""
    for key in [key for key in tensors if "__nncf_hooks." in key]:
        hook = _HOOK.fullmatch(key)
        part = hook["part"] if hook is not None and hook["when"] == "post" else None
        if hook is None or part not in ("binary_mask", "mask"):
            remedy = (
                "call nncf.strip(model, strip_format=nncf.StripFormat.IN_PLACE) and save again; models whose "
            )
            remedy += "inputs nncf quantizes run in OpenVINO"
            raise Error("load", "hooks of nncf that mask weights", key, remedy)
        name = hook["model"] + hook["source"].replace(":", ".")
        weight, mask = tensors.get(name), tensors.pop(key)
        if weight is None or weight.shape != mask.shape:
            got = f"{list(mask.shape)} for " + (f"{list(weight.shape)}" if weight is not None else "none")
            raise Error("load", f"nncf's mask of {name} with its shape", got, "take an undamaged copy")
        kept = mask.bool() if part == "binary_mask" else torch.sigmoid(mask.float()) > 0.5
        pruned = weight.detach() * kept.to(weight.dtype)
        for other in [other for other, tensor in tensors.items() if _is_same(tensor, weight)]:
            tensors[other] = pruned  # a tied weight has several names, and hooks under one of them


def _is_same(tensor: Tensor, weight: Tensor) -> bool:
    return tensor is weight or (
        tensor.numel() > 0
        and tensor.layout is weight.layout is torch.strided
        and tensor.data_ptr() == weight.data_ptr()
        and tensor.shape == weight.shape
        and tensor.stride() == weight.stride()
    )
