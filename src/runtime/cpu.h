// The machine: which instruction sets this CPU and this operating system run, and which one is in force.
#pragma once

#include <string>

namespace sparseloom::runtime {

/// In ascending order: a machine with one has those before it. generic: plain C++.
enum class Isa : unsigned char { generic, avx2, avx512, avx512_bf16 };

const char* name_of(Isa isa) noexcept;

/// What CPUID and XCR0 allow. avx2 includes FMA and F16C; avx512 is F, BW, DQ and VL.
Isa detected_isa() noexcept;

/// detected_isa(), capped at the one called `forced`: generic, avx2, avx512 or avx512_bf16; null or empty: not capped. Throws Error
/// on an unknown name or on one this CPU does not run.
Isa capped_isa(const char* forced);

/// capped_isa of the environment's SPARSELOOM_ISA, read once.
Isa active_isa();

/// CPUID brand string, or "unknown".
std::string cpu_name();

}  // namespace sparseloom::runtime
