"""The loss of a student that learns from a dense teacher."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from .._arguments import named_arguments


@named_arguments
def distillation_loss(
    student: Tensor,
    teacher: Tensor,
    labels: Tensor | None = None,
    *,
    temperature: float = 2.0,
    alpha: float = 0.9,
) -> Tensor:
    """Returns alpha T^2 KL(softmax(teacher / T) || softmax(student / T)) + (1 - alpha) CE(student, labels).

    ``student`` and ``teacher`` are logits [..., classes], ``labels`` [...] of class numbers, or None for the
    first term alone (then times 1). Means are taken over all but the classes; no gradient reaches the
    teacher.
    """
    classes = student.shape[-1]
    s = F.log_softmax(student.reshape(-1, classes) / temperature, -1)
    t = F.log_softmax(teacher.detach().reshape(-1, classes) / temperature, -1)
    soft = temperature**2 * F.kl_div(s, t, reduction="batchmean", log_target=True)
    if labels is None:
        return soft
    hard = F.cross_entropy(student.reshape(-1, classes), labels.reshape(-1))
    return alpha * soft + (1 - alpha) * hard
