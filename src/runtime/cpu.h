// The CPU: which instruction sets it and the operating system run, which one is in force, and what identifies
// it.
#pragma once

#include <cstdint>
#include <string>

namespace sparseloom::runtime {

/// Instruction sets in ascending order: a machine that has one also has those before it. generic is plain
/// C++.
enum class Isa : unsigned char { generic, avx2, avx512, avx512_vnni, avx512_bf16, amx };

const char* name_of(Isa isa) noexcept;

/// The highest that CPUID and XCR0 allow. avx2 includes FMA and F16C; avx512 is F, BW, DQ and VL; amx is
/// TILE, BF16 and INT8 together with the system's permission for this process, which the first call asks for.
Isa detected_isa() noexcept;

/// detected_isa(), capped at the set that name_of calls `forced`; null or empty means no cap. Throws Error on
/// an unknown name, or on a set that this CPU does not run.
Isa capped_isa(const char* forced);

/// capped_isa with SPARSELOOM_ISA of the environment, read once.
Isa active_isa();

/// The value of SPARSELOOM_ISA when it was first read; empty if unset.
const std::string& forced_isa();

/// Bytes of one core's L2 as the system reports it; 1 MiB where it reports nothing.
std::int64_t l2_cache_bytes() noexcept;

/// The CPUID brand string, or "unknown".
std::string cpu_name();

/// Everything that distinguishes this CPU from others as far as speed goes: architecture, name, signature
/// and, from /proc/cpuinfo, the microcode (an update can halve the rate of gathers) and the ARM part. One
/// line of text.
std::string cpu_identity();

/// The part of cpu_identity that comes from `cpuinfo`, the text of /proc/cpuinfo.
std::string cpuinfo_identity(const std::string& cpuinfo);

}  // namespace sparseloom::runtime
