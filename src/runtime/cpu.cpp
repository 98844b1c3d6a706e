#include "runtime/cpu.h"

#include <cstdlib>
#include <cstring>

#include "core/check.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace sparseloom::runtime {
namespace {

constexpr Isa kAll[] = {Isa::generic, Isa::avx2, Isa::avx512, Isa::avx512_bf16};

Isa detect() noexcept {
#if defined(__x86_64__)
  // These builtins look at XCR0 too: an OS that does not save the wide registers counts as a CPU without them.
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("f16c")) return Isa::generic;
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (!avx512) return Isa::avx2;
  return __builtin_cpu_supports("avx512bf16") ? Isa::avx512_bf16 : Isa::avx512;
#else
  return Isa::generic;
#endif
}

}  // namespace

const char* name_of(Isa isa) noexcept {
  switch (isa) {
    case Isa::generic: return "generic";
    case Isa::avx2: return "avx2";
    case Isa::avx512: return "avx512";
    case Isa::avx512_bf16: return "avx512_bf16";
  }
  return "?";
}

Isa detected_isa() noexcept {
  static const Isa isa = detect();
  return isa;
}

Isa capped_isa(const char* forced) {
  if (forced == nullptr || *forced == '\0') return detected_isa();
  for (Isa isa : kAll) {
    if (std::strcmp(forced, name_of(isa)) != 0) continue;
    if (isa > detected_isa())
      core::fail("SPARSELOOM_ISA", std::string("an instruction set this CPU runs (up to ") + name_of(detected_isa()) + ")", forced,
                 "unset SPARSELOOM_ISA or name a smaller one");
    return isa;
  }
  core::fail("SPARSELOOM_ISA", "generic, avx2, avx512 or avx512_bf16", std::string("'") + forced + "'", "unset SPARSELOOM_ISA");
}

Isa active_isa() {
  static const Isa isa = capped_isa(std::getenv("SPARSELOOM_ISA"));
  return isa;
}

std::string cpu_name() {
#if defined(__x86_64__)
  unsigned brand[12];
  if (__get_cpuid_max(0x80000000u, nullptr) < 0x80000004u) return "unknown";
  for (unsigned leaf = 0; leaf < 3; ++leaf) {
    unsigned* r = brand + 4 * leaf;
    __get_cpuid(0x80000002u + leaf, r, r + 1, r + 2, r + 3);
  }
  std::string name(reinterpret_cast<const char*>(brand), sizeof brand);
  name.resize(std::strlen(name.c_str()));
  while (!name.empty() && name.back() == ' ') name.pop_back();
  return name;
#else
  return "unknown";
#endif
}

}  // namespace sparseloom::runtime
