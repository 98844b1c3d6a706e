"""The number of threads of calls on the CPU: torch's, and at most what set_num_threads allows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import sparseloom
from sparseloom import ops
from sparseloom.timing import busy


@pytest.fixture(autouse=True)
def torch_has_three() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    ops.set_num_threads(None)
    torch.set_num_threads(before)


@pytest.mark.parametrize(("most", "threads"), [(None, 3), (1, 1), (2, 2), (8, 3), (2**63, 3)])
def test_a_call_has_torchs_threads_up_to_the_cap(most: int | None, threads: int) -> None:
    layer = sparseloom.nn.BlockSparseLinear(256, 512, density=0.5)
    x = torch.randn(100, 256)
    uncapped, rate = layer(x), busy._register_rate()
    ops.set_num_threads(most)
    assert ops.get_num_threads() == threads
    assert f"threads={threads}\n" in layer.plan(100)["text"]
    torch.testing.assert_close(layer(x), uncapped)
    if rate is not None:  # each thread of a call adds as many flops
        flops = ops.call("spin_registers", rate, 100)
        ops.set_num_threads(1)
        assert flops == threads * ops.call("spin_registers", rate, 100)


@pytest.mark.parametrize("most", [0, -1, 1.5, True, "2"])
def test_a_cap_is_a_count(most: object) -> None:
    with pytest.raises(sparseloom.Error, match=r"set_num_threads.*most"):
        ops.set_num_threads(most)  # type: ignore[arg-type]
    assert ops.get_num_threads() == 3
