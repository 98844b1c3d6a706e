"""Every row of the case list on CUDA, by every kernel that does not refuse it, per output tile against fp64;
memory poisoned."""

from dataclasses import replace

import pytest
import torch
from on_gpu import plan_of, poisoned_product

from sparseloom import ops
from sparseloom.testing import Case, cases, check_product, exact_product, kernels_for, packed, sparse_product

pytestmark = pytest.mark.gpu
ALL = list(cases("cuda"))


@pytest.mark.parametrize("case", ALL, ids=str)
def test_every_kernel_is_within_tolerance_per_tile(case):
    inputs = case.inputs()
    kernels = kernels_for(case, inputs)
    assert ("dense" in kernels) == (0 not in (case.m, case.k, case.n)) and "reference" not in kernels
    for kernel in [*kernels, None]:
        found = check_product(case, inputs, poisoned_product(case, inputs, kernel))
        assert found.ok, f"{kernel or 'the plan'}: {found}"


@pytest.mark.parametrize(
    "case", [case for case in ALL if case.activation is None and case.name != "tokens"], ids=str
)
def test_small_integers_are_exact(case):
    inputs = case.inputs(integers=True)
    exact = exact_product(case, inputs)
    if case.direction == "dw":
        exact = packed(exact, inputs.pattern)
    for kernel in kernels_for(case, inputs):
        # one rounding at the end
        assert torch.equal(poisoned_product(case, inputs, kernel), exact.to(case.dtype)), kernel


def test_the_list_has_every_advertised_row():
    rows = {(case.direction, case.dtype, case.tf32, case.block) for case in ALL}
    assert len(rows) == 3 * 4 * 25
    tokens = {case.m for case in ALL if case.name == "tokens"}
    assert {0, 1, 16, 64, 65} <= tokens


def test_each_kernel_ran_where_it_should():
    """B28: a kernel that silently refuses everything would leave its tests green."""
    ran = {}
    for case in ALL:
        if case.name == "ragged" and case.block == (32, 32):
            for kernel in kernels_for(case):
                ran.setdefault(kernel, set()).add(
                    (case.direction, "tf32" if case.tf32 else ops.DTYPES[case.dtype])
                )
    rows = {(direction, dtype) for direction in ops.DIRECTIONS for dtype in ("f32", "tf32", "bf16", "f16")}
    assert (
        ran["sm80_mma"] >= {row for row in rows if row[1] != "f32"}
        and ("forward", "f32") not in ran["sm80_mma"]
    )
    assert ran["sm80_ffma"] >= {row for row in rows if row[1] == "f32"}
    assert ran["sm80_decode"] >= {row for row in rows if row[0] != "dw"}
    assert ran["dense"] == rows


@pytest.mark.parametrize("direction", ops.DIRECTIONS)
def test_the_tolerance_sees_one_lost_block(direction):
    case = Case("probe", direction, torch.bfloat16, (32, 32), 64, 1024, 480, "full", device="cuda")
    inputs = case.inputs()
    damaged = inputs.values.clone()
    damaged[137] = 0
    if direction == "dw":
        wrong = sparse_product(case, inputs)
        wrong[137] = 0
    else:
        wrong = sparse_product(case, replace(inputs, values=damaged))
    found = check_product(case, inputs, wrong)
    assert not found.ok and found.excess > 10


@pytest.mark.parametrize("block", [(32, 32), (64, 64), (128, 128)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("direction", ops.DIRECTIONS)
def test_sizes_that_fill_the_gpu(direction, dtype, block):
    """Many tiles, long sums and the plan's own choice at a size people use."""
    case = Case(
        "large",
        direction,
        dtype,
        block,
        1000,
        1536,
        2048,
        "random",
        0.2,
        direction == "forward",
        device="cuda",
    )
    inputs = case.inputs()
    for kernel in kernels_for(case, inputs):
        found = check_product(case, inputs, poisoned_product(case, inputs, kernel))
        assert found.ok, f"{kernel}: {found}"
    assert plan_of(case, inputs)["kernel"] in kernels_for(case, inputs)


@pytest.mark.parametrize("direction", ["forward", "dx"])
def test_four_million_tokens(direction):
    """More tiles of tokens than a grid's second dimension holds (65535)."""
    case = Case("many tokens", direction, torch.bfloat16, (16, 16), 4_200_001, 16, 16, "full", device="cuda")
    inputs = case.inputs()
    for kernel in kernels_for(case, inputs):
        found = check_product(case, inputs, poisoned_product(case, inputs, kernel))
        assert found.ok, f"{kernel}: {found}"


@pytest.mark.parametrize(("k", "n"), [(8, 1_050_003), (1_050_003, 8)])
@pytest.mark.parametrize("direction", ops.DIRECTIONS)
def test_a_hundred_thousand_block_rows_or_columns(direction, k, n):
    case = Case("many blocks", direction, torch.bfloat16, (8, 8), 5, k, n, "full", device="cuda")
    inputs = case.inputs()
    for kernel in kernels_for(case, inputs):
        found = check_product(case, inputs, poisoned_product(case, inputs, kernel))
        assert found.ok, f"{kernel}: {found}"


def test_three_hundred_thousand_tokens_in_one_sum():
    case = Case("many tokens", "dw", torch.bfloat16, (32, 32), 300_007, 64, 96, "full", device="cuda")
    inputs = case.inputs()
    for kernel in kernels_for(case, inputs):
        found = check_product(case, inputs, poisoned_product(case, inputs, kernel))
        assert found.ok, f"{kernel}: {found}"


@pytest.mark.parametrize("rest", [8, 56, 64, 72])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("direction", ["forward", "dx"])
def test_every_line_of_128_is_stored_to_its_end_wherever_an_order_puts_the_ragged_one(direction, dtype, rest):
    """Tiles of half a line counted the matrix's outputs, not the order's: a whole line at the order's end
    lost its second half."""
    outputs, inner = 640 + rest, 1024
    k, n = (inner, outputs) if direction == "forward" else (outputs, inner)
    case = Case("ordered", direction, dtype, (128, 128), 200, k, n, "random", 0.4, device="cuda")
    for seed in range(4):
        inputs = case.inputs(seed)
        for kernel in kernels_for(case, inputs):
            found = check_product(case, inputs, poisoned_product(case, inputs, kernel))
            assert found.ok, f"seed {seed}, {kernel}: {found}"
