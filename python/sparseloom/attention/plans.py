"""Which kernel an attention runs, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .._arguments import named_arguments
from ..ops.plans import asked, dtype_name
from .pattern import AttentionPattern


@named_arguments
def plan(
    q: Tensor, k: Tensor, pattern: AttentionPattern, *, causal: bool = False, backward: bool = False,
    strict: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Returns the plan of a call with these q and k [batch, heads, tokens, head size], of which only sizes,
    dtype and device are read. It is a dict: kernel, predicted_us, workspace_bytes, candidates (each with
    kernel, refusal and predicted_us) and text. Raises Error when no kernel can run it, with every refusal."""
    kept = pattern.indices.shape[-1], pattern.block, causal or pattern.causal, pattern.q_documents is not None
    return planned(q.shape, k.shape, q.dtype, q.device, *kept, backward=backward, strict=strict)


def planned(
    q_shape: Sequence[int], k_shape: Sequence[int], dtype: torch.dtype, device: torch.device, capacity: int,
    block: tuple[int, int], causal: bool, documents: bool, *, backward: bool = False, strict: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Returns the plan of a call with lists of at most ``capacity`` blocks; see plan."""
    sizes = (
        q_shape[0], q_shape[1], k_shape[1], q_shape[2], k_shape[2], q_shape[3], *block, capacity, int(causal),
        int(documents),
    )  # fmt: skip
    number = (device.index or 0) if device.type == "cuda" else -1
    direction, name = "dx" if backward else "forward", dtype_name("plan", dtype)
    answer = asked(
        "block_attention", sizes, direction, name, q_shape[2], number, (False, 0, False), -1, strict
    )
    answer.pop("dense_copy_us")
    return answer
