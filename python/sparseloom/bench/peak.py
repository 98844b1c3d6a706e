"""What the machine could do at best: the rates that the core measured in registers, for so many threads."""

from __future__ import annotations

from .. import ops

#: From this much over fp32's rate on, VDPBF16PS is what bf16 is held against: below, converting and multiplying in fp32 is as good.
WORTH_IT = 1.8


def rates() -> dict[str, float]:
    """Flops per second of one core, by instruction set (f32_avx2, f32_avx512, bf16_avx512 ...; 0 where the CPU has none or
    SPARSELOOM_ISA forbids it), and copy_bytes."""
    return {name: float(rate) for name, rate in ops.info()["rates"].items()}


def peak_name(dtype: str) -> str:
    """The rate that a dtype is held against. fp32 and fp16: the FMA of the widest vectors in force. bf16: AMX where there is one,
    VDPBF16PS where that is about twice fp32, else fp32's. int8: AMX or VPDPBUSD, in operations."""
    found = rates()
    f32 = "f32_avx512" if found["f32_avx512"] > 0 else "f32_avx2"
    if dtype == "int8":
        return "i8_amx" if found.get("i8_amx", 0) > 0 else "i8_avx512"
    if dtype != "bf16":
        return f32
    if found.get("bf16_amx", 0) > 0:
        return "bf16_amx"
    return "bf16_avx512" if found["bf16_avx512"] > WORTH_IT * found[f32] else f32


def peak_flops(dtype: str, threads: int) -> float:
    """Flops per second of ``threads`` cores at the rate of peak_name. Threads beyond the CPUs add nothing."""
    return rates()[peak_name(dtype)] * threads
