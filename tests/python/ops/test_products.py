"""Every row of the case list, by every kernel that does not refuse it, per output tile against fp64."""

import pytest
import torch

from sparseloom import ops
from sparseloom.testing import (
    Case,
    cases,
    check_product,
    check_tiles,
    exact_product,
    kernels_for,
    require_product,
    sparse_product,
)

ALL = list(cases())


@pytest.mark.parametrize("case", ALL, ids=str)
def test_every_kernel_is_within_tolerance_per_tile(case):
    inputs = case.inputs()
    kernels = kernels_for(case, inputs)
    assert "reference" in kernels
    for kernel in kernels:
        require_product(case, inputs, kernel)
    require_product(case, inputs)


@pytest.mark.parametrize(
    "case", [case for case in ALL if case.activation is None and case.name != "tokens"], ids=str
)
def test_small_integers_are_exact(case):
    inputs = case.inputs(integers=True)
    exact = exact_product(case, inputs)
    if case.direction == "dw":
        index = inputs.index
        exact = ops.call("pack", exact, index.crow, index.col, *case.block)
    for kernel in kernels_for(case, inputs):
        # one rounding at the end
        assert torch.equal(sparse_product(case, inputs, kernel), exact.to(case.dtype)), kernel


def test_the_list_has_every_advertised_row():
    rows = {(case.direction, case.dtype, case.block) for case in ALL}
    assert len(rows) == 3 * 4 * 25
    names = {case.name for case in ALL}
    assert names >= {
        "ragged",
        "one_block",
        "corner",
        "full",
        "no_blocks",
        "no_inputs",
        "no_outputs",
        "tokens",
        "epilogue",
    }
    skewed = next(case for case in ALL if case.name == "ragged").make_pattern()
    assert not skewed.mask[1].any() and not skewed.mask[:, 1].any()  # an empty row and an empty column


def test_fast_kernels_are_checked_not_only_reference():
    """B28: a kernel that silently refuses everything would leave its tests green."""
    ran = {}
    for case in ALL:
        if case.name == "ragged":
            for kernel in kernels_for(case):
                ran.setdefault(kernel, set()).add((case.direction, case.dtype))
    built = [name for name in ops.info()["kernels"] if name != "dense"]
    runs_here = [name for name in built if name in ran]
    assert "reference" in runs_here
    assert len(runs_here) > 1, f"only the reference kernel ran, of {built}"
    for name in runs_here:
        assert {direction for direction, _ in ran[name]} == set(ops.DIRECTIONS) or len(ran[name]) > 1


@pytest.mark.parametrize("direction", ops.DIRECTIONS)
def test_the_tolerance_sees_one_lost_block(direction):
    """A norm over the whole result would not: here one block of 480 is missing."""
    case = Case("probe", direction, torch.bfloat16, (32, 32), 64, 1024, 480, "full")
    inputs = case.inputs()
    assert check_product(case, inputs, sparse_product(case, inputs)).ok
    damaged = inputs.values.clone()
    damaged[137] = 0
    if direction == "dw":
        wrong = sparse_product(case, inputs)
        wrong[137] = 0
    else:
        wrong = sparse_product(
            case, type(inputs)(inputs.x, inputs.dy, damaged, None, inputs.pattern, inputs.index)
        )
    found = check_product(case, inputs, wrong)
    assert not found.ok and found.excess > 10


def test_the_tolerance_sees_nan_and_wrong_shapes():
    exact = torch.ones(4, 4, dtype=torch.float64)
    nan = torch.full((4, 4), torch.nan)
    assert not check_tiles(nan, exact.float(), exact, exact, (2, 2)).ok
    assert not check_tiles(torch.ones(3, 0), torch.ones(4, 0), torch.ones(4, 0), torch.ones(4, 0), (2, 2)).ok
