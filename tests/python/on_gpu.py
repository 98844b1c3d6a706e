"""What the GPU tests share: layers there, memory full of NaN, a busy stream, and what the profiler saw."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from sparseloom import ops
from sparseloom.nn import BlockSparseLinear
from sparseloom.nn.held.state import build_index
from sparseloom.testing import Case, Inputs, sparse_product, tf32_switch

#: Clock ticks of a GPU: half a second at 2 GHz.
HALF_A_SECOND = 1_000_000_000


def make(*sizes: int, seed: int = 0, **options: object) -> BlockSparseLinear:
    """100 -> 70 features, half of the 16 x 16 blocks, on the GPU, unless said otherwise."""
    torch.manual_seed(seed)
    return BlockSparseLinear(
        *(sizes or (100, 70)), **({"density": 0.5, "block": 16, "device": "cuda"} | options)
    )


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32, device: str = "cuda") -> Tensor:
    """Normal, the same bits on every device."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def plan_of(case: Case, inputs: Inputs, kernel: str | None = None, aligned: bool = True) -> dict:
    """The case's plan, or the one of a forced kernel."""
    with tf32_switch(case.tf32):
        fused = (case.bias, case.activation)
        return ops.plan(
            build_index(inputs.pattern),
            case.direction,
            case.dtype,
            case.m,
            *fused,
            kernel=kernel,
            device=case.device,
            aligned=aligned,
        )


def poison(*sizes: int, device: str = "cuda") -> None:
    """Leaves blocks of so many bytes full of NaN with torch's allocator, which the next allocations of these
    sizes then get."""
    held = [torch.full((max(size, 1),), 255, dtype=torch.uint8, device=device) for size in sizes]
    del held


def poisoned_product(case: Case, inputs: Inputs, kernel: str | None = None) -> Tensor:
    """sparse_product into an output and a workspace of NaN: what a kernel leaves out, or reads before it
    wrote, shows."""
    elements = {"forward": case.m * case.n, "dx": case.m * case.k, "dw": inputs.values.numel()}[
        case.direction
    ]
    poison(
        elements * case.dtype.itemsize, plan_of(case, inputs, kernel)["workspace_bytes"], device=case.device
    )
    return sparse_product(case, inputs, kernel)


def capture(call: Callable[[], Tensor]) -> tuple[torch.cuda.CUDAGraph, Tensor]:
    """The call as a CUDA graph, and its result's place. Called once before, on another stream, as torch asks
    for."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()
    return graph, result


@contextmanager
def sleeping(stream: torch.cuda.Stream | None = None) -> Iterator[torch.cuda.Event]:
    """Half a second of nothing on a stream (the current one by default), and the event that comes after
    it."""
    stream = stream or torch.cuda.current_stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(HALF_A_SECOND)
        event = torch.cuda.Event()
        event.record()
    yield event
    torch.cuda.synchronize()


def device_work(call: Callable[[], object]) -> list[str]:
    """Names of what one call makes the GPU do: kernels, copies, fills; the call is warm."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    for _ in range(2):  # the first profile of a process may miss what it starts with
        call()
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=activities) as profile:
            call()
            torch.cuda.synchronize()
    on_device = (event for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA)
    return [event.name for event in on_device if not event.is_user_annotation]
