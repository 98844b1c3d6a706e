"""Tells what the machine could do: the rates that one core reached in registers, and what all threads reach
at this moment."""

from __future__ import annotations

from sparseloom import ops

#: bf16 is compared with VDPBF16PS when that is at least this many times as fast as fp32; below, converting
#: and multiplying in fp32 is as good.
WORTH_IT = 1.8
#: Rounds of multiplying registers, which take some 5 ms on every thread. Half a millisecond read 10 % less,
#: because of the time to wake the threads.
SPIN_ROUNDS = 1_500_000


def rates() -> dict[str, float]:
    """Returns the measured rates of one core by instruction set, and copy_bytes.

    The rates are flops per second (f32_avx2, f32_avx512, bf16_avx512 ...), 0 where the CPU has no such
    instructions or SPARSELOOM_ISA forbids them.
    """
    return {name: float(rate) for name, rate in ops.info()["rates"].items()}


def peak_name(dtype: str) -> str:
    """Returns the name of the rate that a dtype is compared with.

    fp32 and fp16: the FMA of the widest vectors in force. bf16: AMX where there is one, VDPBF16PS where that
    is about twice as fast as fp32, else fp32's. int8: AMX or VPDPBUSD, in operations.
    """
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
    """Multiplies in registers alone, on torch's threads, with the instructions of peak_name.

    To get a share of the peak, a kernel is timed in turn with this call. The rate of one core times the
    threads would not do: it is from another hour, in which neighbours and the clock may have left more or
    less.
    """

    def __init__(self, dtype: str) -> None:
        self.rate = peak_name(dtype)
        self.flops = float(self())

    def __call__(self) -> int:
        """Runs once and returns the flops of all threads."""
        return int(ops.call("spin_registers", self.rate, SPIN_ROUNDS))
