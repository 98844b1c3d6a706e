// The CPU: the instruction sets that it and the operating system support, the one in force, and the CPU's
// identity.
#pragma once

#include <cstdint>
#include <string>

namespace sparseloom::runtime {

/// A set of instruction set extensions. A kernel names the set it needs, and a machine has one; sets have no
/// order, so an extension of one vendor, or of Arm, is one more bit and implies nothing.
struct Isa {
  std::uint32_t bits = 0;

  constexpr bool has(Isa needed) const { return (bits & needed.bits) == needed.bits; }
  friend constexpr Isa operator|(Isa a, Isa b) { return {a.bits | b.bits}; }
  friend constexpr Isa operator&(Isa a, Isa b) { return {a.bits & b.bits}; }
  friend constexpr bool operator==(const Isa&, const Isa&) = default;

  // The sets that kernels need. generic is plain C++; avx2 includes FMA and F16C; avx512 is F, BW, DQ and VL;
  // avx512_vbmi2 expands 16-bit lanes; amx is TILE, BF16 and INT8, whose kernels also run code of
  // avx512_bf16.
  static const Isa generic, avx2, avx512, avx512_vbmi2, avx512_vnni, avx512_bf16, amx;
};
inline constexpr Isa Isa::generic{0}, Isa::avx2{1}, Isa::avx512{avx2.bits | 2},
    Isa::avx512_vnni{avx512.bits | 4}, Isa::avx512_bf16{avx512.bits | 8},
    Isa::amx{avx512_vnni.bits | avx512_bf16.bits | 16}, Isa::avx512_vbmi2{avx512.bits | 32};

/// The name of the last of generic, avx2, avx512, avx512_vbmi2, avx512_vnni, avx512_bf16 and amx in the set.
const char* name_of(Isa isa) noexcept;

/// Everything that CPUID and XCR0 allow. amx also needs the system's permission for this process, which the
/// first call requests.
Isa detected_isa() noexcept;

/// The part of detected_isa() within the set that name_of calls `forced`; null or empty means all of it.
/// Throws Error on an unknown name, or on a set that this CPU does not support.
Isa capped_isa(const char* forced);

/// capped_isa with SPARSELOOM_ISA of the environment, read once.
Isa active_isa();

/// The value of SPARSELOOM_ISA when it was first read; empty if unset.
const std::string& forced_isa();

/// Bytes of one core's L2 as the system reports it, or 1 MiB.
std::int64_t l2_cache_bytes() noexcept;

/// The CPUID brand string, or "unknown".
std::string cpu_name();

/// Everything that affects this CPU's speed: architecture, name, signature and, from /proc/cpuinfo, the
/// microcode (an update can halve the rate of gathers) and the ARM part. One line of text.
std::string cpu_identity();

/// The part of cpu_identity that comes from `cpuinfo`, the text of /proc/cpuinfo.
std::string cpuinfo_identity(const std::string& cpuinfo);

}  // namespace sparseloom::runtime
