"""What the machine could do: the rates that one core reached in registers, and what all threads reach at this
moment."""

from __future__ import annotations

from .. import ops

#: From this much over fp32's rate on, VDPBF16PS is what bf16 is held against: below, converting and
#: multiplying in fp32 is as good.
WORTH_IT = 1.8
#: Of registers multiplied: some 5 ms on every thread. Half a millisecond read 10 % less, by what waking the
#: threads takes.
SPIN_ROUNDS = 1_500_000


def rates() -> dict[str, float]:
    """Flops per second of one core, by instruction set (f32_avx2, f32_avx512, bf16_avx512 ...; 0 where the
    CPU has none or SPARSELOOM_ISA forbids it), and copy_bytes."""
    return {name: float(rate) for name, rate in ops.info()["rates"].items()}


def peak_name(dtype: str) -> str:
    """The rate that a dtype is held against. fp32 and fp16: the FMA of the widest vectors in force. bf16: AMX
    where there is one, VDPBF16PS where that is about twice fp32, else fp32's. int8: AMX or VPDPBUSD, in
    operations."""
    found = rates()
    f32 = "f32_avx512" if found["f32_avx512"] > 0 else "f32_avx2"
    if dtype == "int8":
        return "i8_amx" if found.get("i8_amx", 0) > 0 else "i8_avx512"
    if dtype != "bf16":
        return f32
    if found.get("bf16_amx", 0) > 0:
        return "bf16_amx"
    return "bf16_avx512" if found["bf16_avx512"] > WORTH_IT * found[f32] else f32


class Spin:
    """A call that multiplies in registers alone, on torch's threads, by the products of peak_name: what a
    share of the peak is timed in turn with. What one core reaches alone, times the threads, is of another
    hour, in which neighbours and the clock may have left more or less."""

    def __init__(self, dtype: str) -> None:
        self.rate = peak_name(dtype)
        self.flops = float(self())

    def __call__(self) -> int:
        """The flops of all threads."""
        return int(ops.call("spin_registers", self.rate, SPIN_ROUNDS))
