"""Layers, models and steps for the tests of layers that train under 2:4."""

import torch
from torch import nn

from sparseloom import InLayout, sparsify_
from sparseloom.nn import MaskedLinear, Semi24Training
from sparseloom.ops import semi24
from sparseloom.sparsify import methods

MASKS = ["magnitude", "transposable_greedy", "transposable_exact", "rows", "columns", "any"]
RECIPE = InLayout("semi24", method=methods.semi24())
RULES = ["ste", "masked", "sr_ste", "sr_ste_decoupled", "cast", "s_ste"]


def mask_of(kind, rows, cols):
    """A mask that is 2:4 in rows alone, in columns alone, or in neither."""
    if kind == "any":
        return torch.rand(rows, cols) < 0.7
    first_two = (torch.arange(cols if kind == "rows" else rows) % 4 < 2).expand(
        (rows, cols) if kind == "rows" else (cols, rows)
    )
    return first_two.clone() if kind == "rows" else first_two.t().clone()


def layer_of(rows, cols, kind="transposable_greedy", dtype=torch.float32, **rule):
    if kind in semi24.METHODS:
        return Semi24Training(cols, rows, prune=kind, dtype=dtype, **rule)
    return Semi24Training(cols, rows, mask=mask_of(kind, rows, cols), dtype=dtype, **rule)


def net_of(seed=0):
    torch.manual_seed(seed)
    conv = nn.Conv2d(5, 8, 3, padding=1)
    return nn.Sequential(conv, nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 24), nn.GELU(), nn.Linear(24, 6))


def trained(rule, steps=6, every=2, optimizer=torch.optim.AdamW, multiply="semi24", **options):
    net = net_of()
    opt = optimizer(net.parameters(), lr=1e-2)
    recipe = InLayout("semi24", method=methods.semi24(rule, every, **options))
    run = sparsify_(net, {"[035]": recipe}, optimizer=opt).method
    for module in net:
        if isinstance(module, MaskedLinear):
            module.multiply = multiply
    for step in range(steps):
        step_of(net, opt, step)
        run.step()
    return net, opt, run


def step_of(net, opt, step, call=None):
    x = torch.randn(4, 5, 4, 4, generator=torch.Generator().manual_seed(step))
    opt.zero_grad()
    (call or net)(x).square().mean().backward()
    opt.step()
