"""What runs is what the plan said, on the CPU: the kernels' own counts of their runs beside the plan's name.

For the whole case list, forced kernels, misaligned operands and uneven rows. test_gpu_what_runs.py does it on
CUDA."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from on_gpu import plan_of

from sparseloom import attention, ops, pattern
from sparseloom.nn import BlockSparseLinear
from sparseloom.testing import Case, cases, kernels_for, sparse_product

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


def runs_of(call: Callable[[], object]) -> dict[str, int]:
    """The kernels that ran during the call, by their own counts."""
    before = json.loads(ops.call("kernel_runs"))
    call()
    after = json.loads(ops.call("kernel_runs"))
    return {name: count - before.get(name, 0) for name, count in after.items() if count > before.get(name, 0)}


def require_said(
    planned: Callable[[], dict[str, Any]], call: Callable[[], object], works: bool = True
) -> dict[str, Any]:
    """The plan's kernel ran once and no other did; without work it need not. A rate that other work disturbed
    is measured again later, so the plan may be another one by the time of the call, and behind it."""
    before, ran, after = planned(), runs_of(call), planned()
    said = [{plan["kernel"]: 1} for plan in (before, after)]
    assert ran in said or (not works and not ran), f"{ran}\n{before['text']}"
    return before


def shifted(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that begins one element behind an aligned address."""
    memory = torch.empty(tensor.numel() + 1, dtype=tensor.dtype)
    return memory[1:].view(tensor.shape).copy_(tensor)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_case_list_runs_what_its_plans_say(dtype: torch.dtype) -> None:
    seen = set()
    for case in (case for case in cases("cpu") if case.dtype == dtype):
        inputs = case.inputs()
        works = case.m > 0 and inputs.values.numel() > 0
        forced = [name for name in kernels_for(case, inputs) if name != "reference"]  # slow, and chosen below
        for kernel in (None, *forced):
            plan = require_said(
                lambda: plan_of(case, inputs, kernel),  # noqa: B023
                lambda: sparse_product(case, inputs, kernel),  # noqa: B023
                works,
            )
            seen.add(plan["kernel"])
    assert len(seen) >= 2, seen


@pytest.mark.parametrize("direction", ops.DIRECTIONS)
@pytest.mark.parametrize("dtype", DTYPES[:3], ids=str)
@pytest.mark.parametrize("m", [5, 300])
def test_misaligned_operands_run_what_their_plan_says(direction: str, dtype: torch.dtype, m: int) -> None:
    case = Case("alignment", direction, dtype, (64, 64), m, 512, 256, "random")
    inputs = case.inputs()
    moved = replace(inputs, x=shifted(inputs.x), dy=shifted(inputs.dy), values=shifted(inputs.values))
    require_said(lambda: plan_of(case, inputs, aligned=False), lambda: sparse_product(case, moved))


@pytest.mark.parametrize("tokens", [5, 300])
@pytest.mark.parametrize("block", [16, 64])
def test_uneven_block_rows_run_what_their_plan_says(tokens: int, block: int) -> None:
    mask = torch.zeros(1024 // block, 1024 // block, dtype=torch.bool)
    mask[0] = mask[:, 0] = True
    layer = BlockSparseLinear(1024, 1024, pattern=pattern.Pattern(1024, 1024, block, mask))
    x = torch.randn(tokens, 1024)
    assert layer.index.digest > 1 and layer.index.digest % 2 == 1  # uneven rows
    with torch.no_grad():
        require_said(lambda: layer.plan(tokens), lambda: layer(x))


def test_kernels_of_two_families_with_one_name_are_both_counted() -> None:
    case = next(case for case in cases("cpu") if case.dtype == torch.float64 and case.m > 0)
    inputs, q = case.inputs(), torch.randn(1, 1, 64, 64)

    def both() -> None:
        sparse_product(case, inputs, "reference")
        attention(q, q, q, torch.ones(1, 1, 1, 1, dtype=torch.bool), kernel="reference")
        sparse_product(case, inputs, "reference")

    assert runs_of(both) == {"reference": 3}


def test_a_training_step_runs_what_its_three_plans_say() -> None:
    layer, x = BlockSparseLinear(256, 256, density=0.2), torch.randn(64, 256, requires_grad=True)

    def said():
        names = [layer.plan(64, direction)["kernel"] for direction in ops.DIRECTIONS]
        return {name: names.count(name) for name in names}

    before, ran = said(), runs_of(lambda: layer(x).sum().backward())
    assert ran in (before, said())
