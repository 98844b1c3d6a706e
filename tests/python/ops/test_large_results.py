"""Results that the allocator maps anew in each call."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from sparseloom import nn


def flags_at(address: int) -> list[str]:
    """Returns the flags of the mapping of this process that holds the address (proc(5), smaps)."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if bounds := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(bounds[1], 16) <= address < int(bounds[2], 16)
        elif inside and line.startswith("VmFlags:"):
            return line.split()[1:]
    raise AssertionError(f"no mapping at {address:#x}")


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="the system has no huge pages"
)
def test_results_of_32_mib_ask_for_huge_pages() -> None:
    layer = nn.BlockSparseLinear(64, 1024, block=64, density=1.0, bias=False)
    for tokens, asked in ((8192, True), (8000, False)):  # 32 MiB, and less
        x = torch.randn(tokens, 64)
        with torch.no_grad():
            y = layer(x)
        torch.testing.assert_close(y, layer.to_dense()(x), atol=1e-4, rtol=1e-4)
        middle = y.data_ptr() + y.nbytes // 2
        assert ("hg" in flags_at(middle)) is asked
