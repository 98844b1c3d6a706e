"""Every case of the lists of convolutions: by every row that does not refuse it, and through the layers."""

from __future__ import annotations

from typing import Any

import pytest
from conv_twins import choose_all

from sparseloom import Error
from sparseloom.ops import operators
from sparseloom.ops.conv import product
from sparseloom.testing.conv_cases import ConvCase, check_conv, conv_cases
from sparseloom.testing.conv_layer_cases import DTYPES, check_conv_layer, conv_layer_cases

ROWS = {
    "cpu": ("avx2_conv", "avx512_conv", "avx512bf16_conv"),
    "cuda": ("sm80_conv", "sm90_conv", "sm90_conv_narrow"),
}


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


def require_layers(device: str, direction: str, kernel: str) -> None:
    """By the rows in every dtype, and by torch in the first."""
    for case in conv_layer_cases(device):
        if case.direction == direction and (kernel == "rows" or case.dtype == DTYPES[device][0]):
            found = check_conv_layer(case)
            assert found.ok, f"{case}: {found}"


@pytest.mark.parametrize("kernel", ["rows", "dense"])
@pytest.mark.parametrize("direction", ["forward", "dx", "dw"])
def test_layers_on_the_cpu(direction: str, kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    choose_all(monkeypatch, kernel)
    require_layers("cpu", direction, kernel)


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", ["rows", "dense"])
@pytest.mark.parametrize("direction", ["forward", "dx", "dw"])
def test_layers_on_a_gpu(direction: str, kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    choose_all(monkeypatch, kernel)
    require_layers("cuda", direction, kernel)


def test_a_lost_tap_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one block, which no norm over the whole result would show."""
    called = operators.run

    def without(operator: Any, *arguments: Any) -> Any:
        if operator not in (product.CONV, product.CONV_DX):
            return called(operator, *arguments)
        x, values, *rest = arguments
        values = values.clone()
        values[0, 0] = 0
        return called(operator, x, values, *rest)

    cases = [
        each for each in conv_layer_cases("cpu") if each.name == "padding" and each.direction == "forward"
    ]
    assert all(check_conv_layer(case).ok for case in cases)
    monkeypatch.setattr(operators, "run", without)
    assert not any(check_conv_layer(case).ok for case in cases)
