"""What runs is what the plan said: the profiler's kernel names beside the plan's, for the whole case list,
misaligned operands and uneven block rows."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from on_gpu import device_work, plan_of

from sparseloom import ops, pattern
from sparseloom.nn import BlockSparseLinear
from sparseloom.testing import Case, cases, sparse_product

pytestmark = pytest.mark.gpu

_WGMMA = ("wgmma_forward_kernel", "wgmma_dw_kernel", "wgmma_dw_regions_kernel")
#: The device functions that do a row's product. What a row runs beside it (it merges, splits, transposes or
#: sums) is left out.
FUNCTIONS = {
    "sm90_wgmma": _WGMMA,
    "sm90_wgmma_narrow": _WGMMA,
    "sm90_wgmma_merged": _WGMMA[:1],
    "sm90_mma": ("sm90_mma_kernel",),
    "sm90_mma_merged": ("sm90_mma_kernel",),
    "sm80_mma": ("::mma_forward_kernel", "::mma_dw_kernel"),  # not wgmma_.._kernel
    "sm80_ffma": ("ffma_forward_kernel", "ffma_dw_kernel", "ffma_f8_kernel"),
    "sm90_split": _WGMMA[:2],
    "sm90_split_narrow": _WGMMA[:2],
    "sm80_decode": ("decode::decode_kernel",),
    "sm80_decode_staged": ("decode_staged_kernel",),
    "sm90_decode_lines": ("decode_lines_rows_kernel", "decode_lines_x_streamed_kernel"),
    "sm80_dw_small": ("dw_small_kernel",),
    "sm90_shares": ("shares_kernel",),
    "sm90_expanded": ("expanded_kernel",),
    "dense": (),
}
_ALL = {function for functions in FUNCTIONS.values() for function in functions}


def require_said(plan: dict, ran: list[str], works: bool = True) -> None:
    """Those of our product kernels that ran are the plan's, and one did if there was work."""
    products = {function for function in _ALL for name in ran if function in name}
    assert products <= set(FUNCTIONS[plan["kernel"]]), f"{sorted(products)} ran\n{plan['text']}"
    assert products or plan["kernel"] == "dense" or not works, f"{ran}\n{plan['text']}"


def sampled() -> Iterator[Case]:
    """Every fourth case: each takes two runs of the profiler."""
    yield from list(cases("cuda"))[::4]


def test_every_row_has_its_functions() -> None:
    rows = ops.info()["kernels"]
    assert {row for row in rows if row.startswith("sm")} == FUNCTIONS.keys() - {"dense"}


def test_the_case_list_runs_what_its_plans_say() -> None:
    seen = set()
    for case in sampled():
        inputs = case.inputs()
        plan = plan_of(case, inputs)
        works = case.m > 0 and inputs.values.numel() > 0
        ran = device_work(lambda: sparse_product(case, inputs))  # noqa: B023 - called at once
        require_said(plan, ran, works)
        seen.add(plan["kernel"])
    assert len(seen) >= 4, seen


@pytest.mark.parametrize("direction", ops.DIRECTIONS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("m", [8, 300])
def test_misaligned_operands_run_what_their_plan_says(direction: str, dtype: torch.dtype, m: int) -> None:
    case = Case("alignment", direction, dtype, (64, 64), m, 512, 256, "random", device="cuda")
    inputs = case.inputs()

    def shifted(tensor: torch.Tensor) -> torch.Tensor:
        memory = torch.empty(tensor.numel() + 1, dtype=tensor.dtype, device="cuda")
        return memory[1:].view(tensor.shape).copy_(tensor)

    moved = replace(inputs, x=shifted(inputs.x), dy=shifted(inputs.dy), values=shifted(inputs.values))
    require_said(plan_of(case, inputs), device_work(lambda: sparse_product(case, inputs)))
    require_said(plan_of(case, inputs, aligned=False), device_work(lambda: sparse_product(case, moved)))


@pytest.mark.parametrize("tokens", [8, 300])
@pytest.mark.parametrize("block", [16, 64])
def test_uneven_block_rows_run_what_their_plan_says(tokens: int, block: int) -> None:
    mask = torch.zeros(1024 // block, 1024 // block, dtype=torch.bool)
    mask[0] = mask[:, 0] = True
    of = pattern.Pattern(1024, 1024, block, mask)
    layer = BlockSparseLinear(1024, 1024, pattern=of, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(tokens, 1024, device="cuda", dtype=torch.bfloat16)
    plan = layer.plan(tokens)
    assert "uneven_rows" in plan["text"] and plan["kernel"] != "sm90_decode_lines"
    with torch.no_grad():
        require_said(plan, device_work(lambda: layer(x)))
