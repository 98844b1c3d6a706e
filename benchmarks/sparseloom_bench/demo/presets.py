"""Defines what a preset decides: where and how a run computes, and the sizes that suit the machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from sparseloom import ops
from sparseloom.errors import Error

from .data import DemoError


@dataclass(frozen=True)
class Preset:
    """A preset of the demo.

    `sizes`: the fields of train.Settings that differ from their defaults. `seconds`: for each measurement at
    the end.
    """

    device: str = "cpu"
    amp: bool = False  # bf16 autocast in training and scoring, bf16 weights in inference
    compiled: bool = False  # torch.compile for training and for scoring in batches
    seconds: float = 2.0
    sizes: dict[str, Any] = field(default_factory=dict)


# The dense layers have 101 M parameters. 16 Ki tokens a step fill the GPU; 1000 steps read the standard
# library's text about one and a half times.
H200 = {
    "width": 1024,
    "layers": 8,
    "context": 512,
    "batch": 32,
    "block": 64,
    "steps": 1000,
    "validation_bytes": 64 << 10,
    "held_out_bytes": 512 << 10,
}
PRESETS = {"cpu": Preset(), "h200": Preset("cuda", amp=True, compiled=True, seconds=1.0, sizes=H200)}


def require_device(name: str) -> None:
    """Raises DemoError when the preset is unknown, and Error when this machine or this build has no device
    for it."""
    if name not in PRESETS:
        raise DemoError(f"--preset must be one of {', '.join(PRESETS)}, got {name}", 2)
    if PRESETS[name].device == "cpu":
        return
    op, remedy = "demo", "leave --preset out to train on the CPU"
    if not torch.cuda.is_available():
        why = (
            f"torch {torch.__version__} without CUDA"
            if torch.version.cuda is None
            else "no CUDA device that torch can see"
        )
        raise Error(op, f"a CUDA GPU for --preset {name}", why, remedy)
    major, minor = torch.cuda.get_device_capability()
    if major < 8:
        raise Error(
            op,
            "a GPU of compute capability 8.0 or newer",
            f"{torch.cuda.get_device_name()}, {major}.{minor}",
            remedy,
        )
    if not ops.has_kernels_for(torch.device("cuda")):
        raise Error(
            op, "a build with CUDA kernels", "a CPU-only build", f"build with nvcc on PATH, or {remedy}"
        )


def device_name(device: str) -> str | None:
    """Returns the GPU's own name; None for the CPU."""
    return None if device == "cpu" else torch.cuda.get_device_name()


@contextmanager
def repeatable(device: str) -> Iterator[None]:
    """Makes torch's own kernels on a GPU give the same bits in every run, as ours always do.

    A resumed run is then bitwise the one that was not interrupted. All switches are restored afterwards.
    """
    if device == "cpu":
        yield
        return
    import torch._inductor.config as inductor

    # cuBLAS needs a fixed workspace; without it, torch's deterministic mode refuses cuBLAS.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    memory: Any = torch.utils.deterministic
    was, was_filled = torch.are_deterministic_algorithms_enabled(), memory.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    memory.fill_uninitialized_memory = False  # filling every new tensor with NaN costs a pass over memory
    # Inductor must not choose kernels by timing where that changes bits. A torch without this option has at
    # least its cache of choices.
    choices = {"deterministic": True} if hasattr(inductor, "deterministic") else {}
    try:
        with inductor.patch(choices):
            yield
    finally:
        torch.use_deterministic_algorithms(was)
        memory.fill_uninitialized_memory = was_filled


def finished(call: Callable[[], object], device: str) -> Callable[[], object]:
    """Returns the call; on a GPU it also waits until the call's work is done, which a clock must include."""
    if device == "cpu":
        return call

    def whole() -> None:
        call()
        torch.cuda.synchronize()

    return whole
