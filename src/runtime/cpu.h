// The machine: which instruction sets this CPU and this operating system run, and which one is in force.
#pragma once

#include <cstdint>
#include <string>

namespace sparseloom::runtime {

/// In ascending order: a machine with one has those before it. generic: plain C++.
enum class Isa : unsigned char { generic, avx2, avx512, avx512_vnni, avx512_bf16, amx };

const char* name_of(Isa isa) noexcept;

/// What CPUID and XCR0 allow. avx2 includes FMA and F16C; avx512 is F, BW, DQ and VL; amx is TILE, BF16 and
/// INT8, and the system's permission for this process to use them, which the first call asks for.
Isa detected_isa() noexcept;

/// detected_isa(), capped at the one called `forced` (a name_of); null or empty: not capped. Throws Error on
/// an unknown name or on one this CPU does not run.
Isa capped_isa(const char* forced);

/// capped_isa of the environment's SPARSELOOM_ISA, read once.
Isa active_isa();

/// What SPARSELOOM_ISA said when active_isa() read it; empty: nothing.
const std::string& forced_isa();

/// A core's own L2, as the system knows it; 1 MiB where it does not.
std::int64_t l2_cache_bytes() noexcept;

/// CPUID brand string, or "unknown".
std::string cpu_name();

/// What tells this CPU from others as far as its speed goes: architecture, name, signature, and from
/// /proc/cpuinfo microcode (it has halved gathers before) and ARM part. One line.
std::string cpu_identity();

/// cpu_identity's part from the text of a /proc/cpuinfo.
std::string cpuinfo_identity(const std::string& cpuinfo);

}  // namespace sparseloom::runtime
