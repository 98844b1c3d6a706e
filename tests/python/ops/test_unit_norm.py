"""The norms between a cell's steps beside torch's operators, and rows of steps that need no copy."""

import pytest
import torch
from unit_norm_twin import CASES, by_torch, operands

from sparseloom.ops.recurrent import norms
from sparseloom.ops.recurrent.norms import Norm, Reach
from sparseloom.ops.recurrent.steps import Rows, _joined


def made_of(case, weight, bias, steps=1):
    return Norm(weight, bias, 1e-5, weight.dtype, steps, case[-1])


def reach_of(case):
    return Reach(max(1, case[3]), *case[4:7])


@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients_are_torchs(case):
    z, weight, bias, extra = leaves = operands(case, torch.float64, "cpu")
    y = made_of(case, weight, bias)(z, extra, reach_of(case))
    wanted = by_torch(case, *leaves)
    torch.testing.assert_close(y, wanted)
    dy = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view(y.shape)
    needed = [each for each in leaves if each is not None]
    for mine, theirs in zip(
        torch.autograd.grad(y, needed, dy), torch.autograd.grad(wanted, needed, dy), strict=True
    ):
        torch.testing.assert_close(mine, theirs)


def test_groups_may_lie_side_by_side_in_pieces():
    case = CASES[4]
    z, weight, bias, extra = leaves = operands(case, torch.float64, "cpu")
    beside = z.view(11, 4, 17, 8).transpose(1, 2).flatten(1)
    y = Norm(weight, bias, 1e-5, z.dtype, 1, case[-1], side=8)(beside, extra, reach_of(case))
    wanted = by_torch(case, *leaves)
    torch.testing.assert_close(y, wanted)
    for mine, theirs in zip(
        torch.autograd.grad(y.square().sum(), leaves),
        torch.autograd.grad(wanted.square().sum(), leaves),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_other_dtypes_are_near_float64(dtype):
    case, tolerance = CASES[1], 1e-5 if dtype is torch.float32 else 2e-2
    leaves = operands(case, dtype, "cpu")
    exact = [each.detach().double().requires_grad_() for each in leaves]
    wanted = by_torch(case, *exact)
    y = made_of(case, *leaves[1:3])(leaves[0], leaves[3], reach_of(case))
    with torch.no_grad():
        again = made_of(case, *leaves[1:3])(leaves[0], leaves[3], reach_of(case))
    assert torch.equal(y, again)
    y.float().square().sum().backward()
    wanted.square().sum().backward()
    torch.testing.assert_close(y.double(), wanted, atol=4 * tolerance, rtol=tolerance)
    for mine, theirs in zip(leaves, exact, strict=True):
        scale = theirs.grad.abs().max()
        torch.testing.assert_close(
            mine.grad / scale, theirs.grad / scale, atol=tolerance, rtol=0, check_dtype=False
        )


def test_gradients_of_parameters_are_those_of_all_steps_and_of_one_backward_pass():
    case = CASES[2]
    z, weight, bias, extra = leaves = operands(case, torch.float64, "cpu")
    norm = made_of(case, weight, bias, steps=2)
    y = norm(norm(z, extra, reach_of(case)), extra, reach_of(case))
    wanted = by_torch(case, by_torch(case, *leaves), *leaves[1:])
    (dz,) = torch.autograd.grad(y.sum(), z, retain_graph=True)  # leaves nothing behind for the next
    for _ in range(2):
        found = torch.autograd.grad(y.square().sum(), leaves, retain_graph=True)
    theirs = torch.autograd.grad(wanted.square().sum(), leaves, retain_graph=True)
    for mine, their in zip(found, theirs, strict=True):
        torch.testing.assert_close(mine, their)
    torch.testing.assert_close(dz, torch.autograd.grad(wanted.sum(), z)[0])


def test_a_mean_far_from_zero_costs_no_digits():
    z = torch.randn(2, 512, generator=torch.Generator().manual_seed(0)) + 1000.0
    norm = Norm(torch.ones(1, 512), torch.zeros(1, 512), 1e-5, torch.float32, 1, False)
    exact = torch.nn.functional.layer_norm(z.double(), (512,))
    torch.testing.assert_close(norm(z).double(), exact, atol=2e-4, rtol=0)
    constant = torch.full((1, 512), 7.0)
    assert torch.equal(norm(constant), torch.zeros(1, 512))


def test_rows_of_all_steps_are_joined_without_a_copy():
    rows, like = Rows(3), torch.zeros(2, 4)
    steps = [rows.at(step, like).fill_(step) for step in range(3)]
    joined = _joined(tuple(reversed(steps)))
    assert joined.data_ptr() == steps[0].data_ptr()
    torch.testing.assert_close(joined, torch.cat(steps))
    other = steps[1].clone()
    torch.testing.assert_close(_joined((steps[2], other, steps[0])), torch.cat([steps[0], other, steps[2]]))
    assert rows.at(3, like).shape == like.shape and not steps[0]._is_view()


def test_refusals():
    z, one = torch.zeros(2, 8), torch.ones(1, 8)
    with pytest.raises(RuntimeError, match="statistics"):
        norms._UNIT_NORM(z, one, one, None, 1, 0, False, 1.0, False, 0, 1e-5, z, torch.zeros(3))
    with pytest.raises(RuntimeError, match="weight"):
        norms._UNIT_NORM(z, torch.ones(1, 9), one, None, 1, 0, False, 1.0, False, 0, 1e-5, z, None)
    with pytest.raises(RuntimeError, match="group"):
        norms._UNIT_NORM(z, one, one, None, 1, 1, False, 1.0, False, 0, 1e-5, z, None)
