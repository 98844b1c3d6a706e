"""Pruning and packing 2:4 weights at once, on the CPU, beside pruning and packing one after the other."""

import pytest
import torch

from sparseloom import Error
from sparseloom.ops import semi24


@pytest.mark.parametrize("method", ["magnitude", "transposable_greedy", "transposable_exact"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_pruning_and_packing_at_once(method: str, dtype: torch.dtype):
    weight = torch.randn(30, 45).to(dtype)
    weight[3, 4] = float("nan")
    both = method != "magnitude"
    values, positions, bits, turned_values, turned_positions = semi24.compress(weight, method, both)
    kept = semi24.mask(weight, method)
    want = weight.masked_fill(~kept, 0)
    torch.testing.assert_close(semi24.unpack(values, positions, 45), want, rtol=0, atol=0, equal_nan=True)
    unpacked = (bits.unsqueeze(-1) >> torch.arange(8, dtype=torch.uint8) & 1).bool().flatten(1)
    assert torch.equal(unpacked[:, :45], kept) and not unpacked[:, 45:].any()
    if both:
        turned = semi24.unpack(turned_values, turned_positions, 30)
        torch.testing.assert_close(turned, want.T, rtol=0, atol=0, equal_nan=True)
    else:
        assert turned_values.numel() == turned_positions.numel() == 0
    torch.library.opcheck(torch.ops.sparseloom.semi24_compress.default, (weight.nan_to_num(), method, both))


def test_pruning_and_packing_refuses_the_transposed_of_magnitude():
    with pytest.raises(Error, match="transposable pruning"):
        semi24.compress(torch.randn(8, 8), "magnitude", transposed=True)
