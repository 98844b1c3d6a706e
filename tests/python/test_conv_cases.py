"""Every case of the list of convolutions, by every row that does not refuse it."""

from __future__ import annotations

import pytest

from sparseloom import Error
from sparseloom.testing.conv_cases import ConvCase, check_conv, conv_cases

ROWS = {"cpu": ("avx2_conv", "avx512_conv", "avx512bf16_conv"), "cuda": ("sm80_conv", "sm90_conv")}


def require(case: ConvCase) -> None:
    ran = 0
    for row in ROWS[case.device]:
        try:
            found = check_conv(case, row)
        except Error as refused:
            assert row in str(refused)
            continue
        assert found.ok, f"{case} by {row}: {found}"
        ran += 1
    assert ran > 0, f"no row runs {case}"


@pytest.mark.parametrize("direction", ["forward", "dx", "dw"])
def test_cases_on_the_cpu(direction: str) -> None:
    for case in conv_cases("cpu"):
        if case.direction == direction:
            require(case)


@pytest.mark.gpu
@pytest.mark.parametrize("direction", ["forward", "dx", "dw"])
def test_cases_on_a_gpu(direction: str) -> None:
    for case in conv_cases("cuda"):
        if case.direction == direction:
            require(case)
