"""Sparsifiers of single elements on the GPU: what the CPU takes, in a CUDA graph, and the reads and the
memory that the table of docs/programming_model.md states."""

from __future__ import annotations

import pytest
import torch
from on_gpu import capture
from torch import Tensor

from sparseloom import ops
from sparseloom.layouts import Nm
from sparseloom.sparsify import (
    BlockwiseFraction,
    Context,
    ElementSparsifier,
    KeepAll,
    Learned,
    PerBlockNM,
    RandomFraction,
    ScalarFraction,
    ScalarThreshold,
)

pytestmark = pytest.mark.gpu

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
SPARSIFIERS: list[ElementSparsifier] = [
    *(KeepAll(), RandomFraction(0.7), ScalarThreshold(0.1)),
    *(ScalarFraction(fraction) for fraction in (0, 0.2, 0.5, 0.9, 0.999, 1)),
    *(BlockwiseFraction(0.6, (8, 3)), BlockwiseFraction(0.9, 64), BlockwiseFraction(0.5, 1)),
    *(PerBlockNM(2, 4), PerBlockNM(1, 8), PerBlockNM(5, 16), PerBlockNM(3, 7), PerBlockNM(3, 40)),
    *(PerBlockNM(50, 300), PerBlockNM(900, 1 << 20)),
]


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Many equal magnitudes of both signs, zeros, NaN and Inf among others. On the CPU."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.randint(-3, 4, shape, generator=generator).float()
    fine = torch.randn(shape, generator=generator)
    dense = torch.where(torch.rand(shape, generator=generator) < 0.5, coarse, fine)
    dense[..., ::97] = float("nan")
    dense[..., 5::101] = -float("inf")
    return dense.to(dtype)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(3)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.int8])
@pytest.mark.parametrize("shape", [(300, 301), (512, 1024), (3, 40000), (1, 1)])
@pytest.mark.parametrize("sparsifier", SPARSIFIERS, ids=repr)
def test_takes_what_the_cpu_takes(
    sparsifier: ElementSparsifier, shape: tuple[int, int], dtype: torch.dtype
) -> None:
    if dtype == torch.int8:
        dense = torch.randint(-9, 9, shape, generator=seeded()).to(dtype)
    else:
        dense = drawn(*shape, dtype=dtype)
    on_gpu = dense.cuda()
    if isinstance(sparsifier, BlockwiseFraction):  # sums that are exact in any order
        dense = dense.nan_to_num(0, 0, 0) if dtype == torch.int8 else dense.float().mul(64).round().to(dtype)
        on_gpu = dense.cuda()
    wide = torch.zeros(shape[0], shape[1] + 3, dtype=dtype, device="cuda")[:, 1:-2].copy_(on_gpu)
    chosen = sparsifier.select_mask(dense, seeded())  # once: the CPU takes most of this test's time
    expected = sparsifier.sparsified(dense, seeded()).nan_to_num(9)
    for tensor in (on_gpu, wide, dense.t().cuda().t()):
        mask = sparsifier.select_mask(tensor, seeded())
        assert mask.device == tensor.device
        assert torch.equal(mask.cpu(), chosen)
        assert torch.equal(sparsifier.sparsified(tensor, seeded()).cpu().nan_to_num(9), expected)


@pytest.mark.parametrize("fraction", [0, 0.3, 0.9, 1])
def test_learned_scores_are_chosen_as_on_the_cpu(fraction: float) -> None:
    class Given(Learned):
        def scores(self, context: Context) -> Tensor:
            return -context.weight

    dense = drawn(300, 301)
    mask = Given(fraction).select_mask(dense.cuda())
    assert mask.is_cuda and torch.equal(mask.cpu(), Given(fraction).select_mask(dense))


@pytest.mark.parametrize("shape", [(0,), (0, 5), (5, 0), (), (1,), (3, 2, 5)])
def test_any_shape_has_a_mask(shape: tuple[int, ...]) -> None:
    dense = torch.randn(shape, device="cuda")
    for sparsifier in SPARSIFIERS:
        mask = sparsifier.select_mask(dense)
        assert mask.dtype is torch.bool and mask.shape == dense.shape and mask.is_cuda


@pytest.mark.parametrize("sparsifier", SPARSIFIERS, ids=repr)
def test_a_graph_repeats_the_choice_for_other_elements(sparsifier: ElementSparsifier) -> None:
    dense = torch.zeros(256, 520, device="cuda")
    graph, values = capture(lambda: sparsifier.sparsified(dense, seeded()))
    for seed in range(3):
        dense.copy_(torch.randn(256, 520, generator=torch.Generator().manual_seed(seed)).mul(64).round())
        graph.replay()
        assert torch.equal(values.cpu(), sparsifier.sparsified(dense.cpu(), seeded()))


def reads_of(sparsifier: ElementSparsifier, dense: Tensor) -> float:
    torch.cuda.synchronize()
    before = ops.call("sparsifier_reads")
    sparsifier.sparsified(dense)
    torch.cuda.synchronize()
    after = ops.call("sparsifier_reads")
    assert after[1] - before[1] == (after[0] - before[0]) * dense.element_size()
    return (after[0] - before[0]) / dense.numel()


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_kernels_count_the_reads_that_the_table_states(dtype: torch.dtype) -> None:
    dense = torch.randn(2048, 4096, device="cuda", dtype=dtype)
    for sparsifier in (KeepAll(), RandomFraction(0.5), ScalarThreshold(0.1), PerBlockNM(2, 4)):
        assert reads_of(sparsifier, dense) == 1
    for sparsifier in (ScalarFraction(0.9), BlockwiseFraction(0.9, 32)):
        assert reads_of(sparsifier, dense) == 2
    narrow = 1 + dense * 2.0**-20  # more elements with the same leading bits than the list has room for
    most = {torch.float32: 4, torch.float64: 6}.get(dtype, 2)
    assert 2 <= reads_of(ScalarFraction(0.5), narrow) <= most


@pytest.mark.parametrize("dtype", DTYPES)
def test_memory_is_what_the_table_states(dtype: torch.dtype) -> None:
    dense = torch.randn(4096, 4096, device="cuda", dtype=dtype)
    kept = dense.numel() // 10

    def peak(sparsifier: ElementSparsifier) -> int:
        sparsifier.sparsified(dense)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        sparsifier.sparsified(dense)
        result = dense.numel() * dense.element_size()
        return torch.cuda.max_memory_allocated() - before - result

    for sparsifier in (
        KeepAll(),
        RandomFraction(0.9),
        ScalarThreshold(1),
        PerBlockNM(2, 4),
        PerBlockNM(9, 512),
    ):
        assert peak(sparsifier) == 0
    assert peak(ScalarFraction(0.9)) <= min(kept, 1 << 19) * (dense.element_size() + 8) + (1 << 19)
    assert peak(BlockwiseFraction(0.9, 32)) <= 128 * 128 * (5 + 12) + (1 << 19)


def test_nm_is_chosen_on_the_gpu() -> None:
    weight = drawn(64, 96)
    found, expected = (Nm.from_dense(each, n=2, m=8).positions for each in (weight.cuda(), weight))
    assert found.is_cuda and torch.equal(found.cpu(), expected)
