"""What the machine could do at best: the rates that the core measured in registers, for so many threads."""

from __future__ import annotations

from .. import ops


def rates() -> dict[str, float]:
    """Flops per second of one core, by instruction set (f32_avx2, f32_avx512, bf16_avx512; 0 where the CPU has none)."""
    return {name: float(rate) for name, rate in ops.info()["rates"].items()}


def peak_flops(dtype: str, threads: int) -> float:
    """The peak a dtype is held against. fp32: the fastest FMA. 16-bit: VDPBF16PS where that is about twice fp32 (bf16 only),
    else fp32's, since converting and multiplying in fp32 is then as good. threads beyond the CPUs add nothing."""
    found = rates()
    f32 = max(found["f32_avx2"], found["f32_avx512"])
    one = found["bf16_avx512"] if dtype == "bf16" and found["bf16_avx512"] > 1.8 * f32 else f32
    return one * threads
