"""Which kernel an attention runs, and why."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..ops.plans import asked, dtype_name
from .pattern import AttentionPattern


def plan(
    q: Tensor, k: Tensor, pattern: AttentionPattern, *, causal: bool = False, backward: bool = False,
    strict: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Returns the plan of a call with these q and k [batch, heads, tokens, head size], of which only sizes,
    dtype and device are read, as a dict: kernel, predicted_us, workspace_bytes, candidates (each with kernel,
    refusal and predicted_us) and text. Raises Error when no kernel can run it, with every refusal."""
    sizes = (
        q.shape[0], q.shape[1], k.shape[1], q.shape[2], k.shape[2], q.shape[3], *pattern.block,
        pattern.indices.shape[-1], int(causal or pattern.causal), int(pattern.q_documents is not None),
    )  # fmt: skip
    device = (q.device.index or 0) if q.is_cuda else -1
    direction, dtype = "dx" if backward else "forward", dtype_name("plan", q.dtype)
    answer = asked(
        "block_attention", sizes, direction, dtype, q.shape[2], device, (False, 0, False), -1, strict
    )
    answer.pop("dense_copy_us")
    return answer
