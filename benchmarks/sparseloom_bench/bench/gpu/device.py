"""Describes the GPU of a run: its name in results, its L2, and its clock, power and driver as NVML reports
them."""

from __future__ import annotations

import ctypes
import re
from typing import Any

import torch

from sparseloom import ops
from sparseloom.errors import Error

_SM_CLOCK = 1  # NVML_CLOCK_SM


def slug(name: str) -> str:
    """Returns a folder name for a GPU: "NVIDIA H200" -> "h200", "NVIDIA H100 80GB HBM3" -> "h100"."""
    words = re.sub(r"\b(nvidia|geforce|tesla|quadro|\d+gb|hbm\d*e?|sxm\d*|pcie|nvl)\b", " ", name.lower())
    return re.sub(r"[^a-z0-9]+", "-", words).strip("-") or "gpu"


def require_gpu(suite: str = "gpu") -> torch.device:
    """Returns the current CUDA device.

    Raises Error when torch sees none, or when this build has no kernels for it.
    """
    if not torch.cuda.is_available():
        why = "no CUDA in this torch" if torch.version.cuda is None else "no CUDA device that torch can see"
        raise Error(
            "bench",
            f"a GPU for the suite {suite}",
            why,
            "run it on a machine with one; `sparseloom bench cpu` needs none",
        )
    device = torch.device("cuda", torch.cuda.current_device())
    if not ops.has_kernels_for(device):
        raise Error(
            "bench", "a build with CUDA kernels", "a CPU-only build", "build with nvcc: cmake --preset cuda"
        )
    return device


class Monitor:
    """Reads clock, power and driver of one device; a method returns None when its value cannot be read.

    When NVML cannot be used at all, `reason` says why.
    """

    def __init__(self, device: torch.device) -> None:
        self.reason = ""
        self._handle = ctypes.c_void_p()
        try:
            self._nvml = ctypes.CDLL("libnvidia-ml.so.1")
            self._ask("nvmlInit_v2")
            uuid = str(getattr(torch.cuda.get_device_properties(device), "uuid", ""))
            handle = ctypes.byref(self._handle)
            try:  # by UUID first: CUDA_VISIBLE_DEVICES renumbers the devices
                self._ask("nvmlDeviceGetHandleByUUID", f"GPU-{uuid.removeprefix('GPU-')}".encode(), handle)
            except OSError:
                self._ask("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(device.index or 0), handle)
        except (OSError, AttributeError) as error:
            self.reason = str(error)

    def _ask(self, function: str, *arguments: Any) -> None:
        code = getattr(self._nvml, function)(*arguments)
        if code != 0:
            raise OSError(f"{function} returned {code}")

    def _number(self, function: str, *arguments: Any) -> int | None:
        if self.reason:
            return None
        found = ctypes.c_uint()
        try:
            self._ask(function, self._handle, *arguments, ctypes.byref(found))
        except (OSError, AttributeError):
            return None
        return found.value

    def clock_mhz(self) -> int | None:
        """Returns the present clock of the multiprocessors in MHz."""
        return self._number("nvmlDeviceGetClockInfo", ctypes.c_int(_SM_CLOCK))

    def power_watts(self) -> float | None:
        """Returns the power of the card in watts, as averaged by the driver."""
        milliwatts = self._number("nvmlDeviceGetPowerUsage")
        return None if milliwatts is None else milliwatts / 1000

    def driver(self) -> str | None:
        if self.reason:
            return None
        text = ctypes.create_string_buffer(96)
        try:
            self._ask("nvmlSystemGetDriverVersion", text, ctypes.c_uint(len(text)))
        except (OSError, AttributeError):
            return None
        return text.value.decode(errors="replace")


def describe(device: torch.device, monitor: Monitor) -> dict[str, Any]:
    """Returns what a results file says about the GPU."""
    found = torch.cuda.get_device_properties(device)
    return {
        "name": found.name,
        "compute_capability": f"{found.major}.{found.minor}",
        "multiprocessors": found.multi_processor_count,
        "memory_bytes": found.total_memory,
        "l2_bytes": found.L2_cache_size,
        "driver": monitor.driver(),
        "cuda_of_torch": torch.version.cuda,
        "clock_mhz_at_start": monitor.clock_mhz(),
        "monitor": monitor.reason or "nvml",
    }


def alive() -> bool:
    """Returns whether the CUDA context still works: after an illegal memory access every later call fails,
    whoever makes it."""
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True
