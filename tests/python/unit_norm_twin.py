"""The norm between the steps of a cell, written out in torch's own operators."""

import torch
import torch.nn.functional as F

#: rows, groups, units, stride, group, multiply, scale, relu. Whole vectors, tails, one unit; rows beyond and
#: below the number of partial sums.
CASES = [
    (3, 1, 64, 0, 0, False, 1.0, True),
    (37, 1, 96, 4, 0, True, 1.0, False),
    (9, 1, 50, 7, 0, False, 1.0, True),
    (2, 4, 33, 1, 2, True, 1.25, False),
    (11, 4, 136, 1, 3, True, 0.5, True),
    (5, 2, 2100, 36, 1, False, 2.0, True),
    (1, 1, 5000, 3, 0, True, 1.0, True),
]


def operands(case, dtype, device, requires_grad=True):
    """Returns z, weight, bias and the extra numbers or None."""
    rows, groups, units, stride, *_ = case
    generator = torch.Generator().manual_seed(units)

    def drawn(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    z = 2 * drawn(rows, groups * units) + 3
    made = [z, 1 + 0.3 * drawn(groups, units), drawn(groups, units)]
    made += [drawn(rows, -(-units // stride))] if stride else []
    leaves = [each.to(device, dtype).requires_grad_(requires_grad) for each in made]
    return leaves if stride else [*leaves, None]


def by_torch(case, z, weight, bias, extra):
    rows, groups, units, stride, group, multiply, scale, relu = case
    y = F.layer_norm(z.view(rows, groups, units), (units,)) * weight + bias
    if extra is not None:
        at = torch.arange(0, units, stride, device=z.device)
        full = torch.full((rows, units), 1.0 if multiply else 0.0, dtype=z.dtype, device=z.device)
        full = full.index_copy(1, at, extra * scale)
        parts = list(y.unbind(1))
        parts[group] = parts[group] * full if multiply else parts[group] + full
        y = torch.stack(parts, 1)
    return (F.relu(y) if relu else y).flatten(1)
