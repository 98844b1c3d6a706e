"""recover on a GPU: blocks train themselves, single elements and 2:4 under a mask; all are sparse again."""

import copy

import pytest
import torch
from torch import nn

from sparseloom import BlockSparse, Distillation, InLayout, Semi24, recover, sparsify_

pytestmark = pytest.mark.gpu

RECIPES = {
    "blocks": BlockSparse(32, density=0.5),
    "csr": InLayout("csr", density=0.5),
    "semi24": Semi24(prune="magnitude"),
}


@pytest.mark.parametrize("rank", [None, 8])
@pytest.mark.parametrize("kind", RECIPES)
def test_a_model_recovers_under_autocast_and_keeps_its_places(kind, rank):
    torch.manual_seed(0)
    teacher = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 64)).cuda()
    model = copy.deepcopy(teacher)
    sparsify_(model, {"[02]": RECIPES[kind]})
    kinds = [type(each) for each in model]
    dense = [model[at].to_dense() for at in (0, 2)]
    zeros = [(each[0] if isinstance(each, nn.Sequential) else each).weight == 0 for each in dense]
    data = [torch.randn(64, 128) for _ in range(8)]
    x = torch.cat(data).cuda()
    done = recover(
        model, Distillation(teacher, logits=1.0), data, steps=60, lr=1e-2, rank=rank, dtype=torch.bfloat16,
        evaluate=lambda net: float((net(x) - teacher(x)).square().mean()),
    )  # fmt: skip
    assert done.after < 0.8 * done.before
    assert bool(done.masked) == (kind != "blocks" or rank is not None)
    assert [type(each) for each in model] == kinds
    for at, where in zip((0, 2), zeros, strict=True):
        weight = model[at].to_dense()
        weight = (weight[0] if isinstance(weight, nn.Sequential) else weight).weight
        assert not weight[where].any()
