"""The likelihood of PixelCNN++ (Salimans et al. 2017): each pixel's colours follow a mixture of logistic
distributions, discretised to 256 values; green depends on red, and blue on both, by linear terms.

Parameters are [images, PARAMETERS, height, width]: the mixture's logits, then means, logarithms of scales and
linear terms, each [3, MIXTURES]. Pixels are floats from -1 to 1 in steps of 2 / 255.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

MIXTURES = 10
PARAMETERS = MIXTURES * 10
#: Half the distance of two values.
HALF = 1 / 255
#: Below exp(-7), 1 / 9 of a value, a scale only makes the mean's value surer.
LEAST_LOG_SCALE = -7.0


def scaled(pixels: Tensor) -> Tensor:
    """Returns bytes as floats from -1 to 1."""
    return pixels.float() / 127.5 - 1


def bits(parameters: Tensor, x: Tensor) -> Tensor:
    """Returns the bits per colour of each image [images] of pixels x [images, 3, height, width]."""
    logits, means, log_scales, linear = _parts(parameters.float())
    seen = x[:, :, None]
    means = torch.stack(_conditioned(means, linear, x), 1)
    per_scale = torch.exp(-log_scales)
    above, below = per_scale * (seen - means + HALF), per_scale * (seen - means - HALF)
    # sigmoid(a) - sigmoid(b) = sigmoid(a) sigmoid(-b) (1 - exp(b - a)): no difference of near numbers
    width = torch.log(-torch.expm1(-2 * HALF * per_scale))
    first, last = seen < -1 + HALF, seen > 1 - HALF  # they take the tails
    zero = torch.zeros_like(above)
    log_p = torch.where(last, zero, F.logsigmoid(above)) + torch.where(first, zero, F.logsigmoid(-below))
    log_p = log_p + torch.where(first | last, zero, width)
    per_pixel = torch.logsumexp(log_p.sum(1) + F.log_softmax(logits, 1), 1)
    return -per_pixel.mean((1, 2)) / (3 * math.log(2))


def sample(parameters: Tensor, u: Tensor) -> Tensor:
    """Draws pixels [images, 3] for parameters [images, PARAMETERS] of one pixel each; ``u`` [images, MIXTURES
    + 3] are uniform numbers."""
    logits, means, log_scales, linear = (
        each[..., 0, 0] for each in _parts(parameters.float()[..., None, None])
    )
    u = u.clamp(1e-5, 1 - 1e-5)
    chosen = (logits - torch.log(-torch.log(u[:, :MIXTURES]))).argmax(1)[:, None, None].expand(-1, 3, 1)
    mean, log_scale, term = (each.gather(2, chosen)[..., 0] for each in (means, log_scales, linear))
    noise = torch.exp(log_scale) * torch.logit(u[:, MIXTURES:])
    red = _rounded(mean[:, 0] + noise[:, 0])
    green = _rounded(mean[:, 1] + term[:, 0] * red + noise[:, 1])
    blue = _rounded(mean[:, 2] + term[:, 1] * red + term[:, 2] * green + noise[:, 2])
    return torch.stack([red, green, blue], 1)


def _parts(parameters: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns logits [images, mixtures, ...], and means, log scales and linear terms [images, 3, mixtures,
    ...]."""
    logits, rest = parameters.split([MIXTURES, PARAMETERS - MIXTURES], 1)
    means, log_scales, linear = rest.unflatten(1, (3, 3, MIXTURES)).unbind(1)
    return logits, means, log_scales.clamp(min=LEAST_LOG_SCALE), torch.tanh(linear)


def _conditioned(means: Tensor, linear: Tensor, x: Tensor) -> list[Tensor]:
    """Returns the means of the three colours, given the true values of those before."""
    red, green = x[:, :1], x[:, 1:2]
    return [
        means[:, 0],
        means[:, 1] + linear[:, 0] * red,
        means[:, 2] + linear[:, 1] * red + linear[:, 2] * green,
    ]


def _rounded(value: Tensor) -> Tensor:
    return torch.round((value.clamp(-1, 1) + 1) * 127.5) / 127.5 - 1
