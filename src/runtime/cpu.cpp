// Detection of this CPU's instruction sets, its L2 size and its identity.
#include "runtime/cpu.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string_view>

#include "core/check.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <unistd.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#endif

namespace sparseloom::runtime {
namespace {

struct Named {
  const char* name;
  Isa isa;
};
constexpr Named kAll[] = {{"generic", Isa::generic},
                          {"avx2", Isa::avx2},
                          {"avx512", Isa::avx512},
                          {"avx512_vbmi2", Isa::avx512_vbmi2},
                          {"avx512_vnni", Isa::avx512_vnni},
                          {"avx512_bf16", Isa::avx512_bf16},
                          {"amx", Isa::amx}};

// Whether AMX may be used. That takes three things: the CPU has the tiles, the system saves them (XCR0), and
// this process has permission. Linux gives a process the 8 KiB of tile state only when asked, and a process
// without it dies at its first tile instruction. Linux refuses where a thread's alternate signal stack is too
// small for that state, and so do sandboxes that filter arch_prctl: then AMX counts as absent.
[[maybe_unused]] bool amx_allowed() noexcept {
#if defined(__x86_64__) && defined(__linux__)
  unsigned eax, ebx, ecx, edx;
  constexpr unsigned kOsSavesState = 1u << 27, kAmxBf16 = 1u << 22, kAmxTile = 1u << 24, kAmxInt8 = 1u << 25;
  if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || !(ecx & kOsSavesState)) return false;
  if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) || !(edx & kAmxBf16) || !(edx & kAmxTile) ||
      !(edx & kAmxInt8))
    return false;
  unsigned low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  constexpr unsigned kTileState = 3u << 17;
  if ((low & kTileState) != kTileState) return false;
  // The kernels assume palette 1: 8 tiles of 16 rows of 64 bytes.
  if (!__get_cpuid_count(0x1d, 1, &eax, &ebx, &ecx, &edx)) return false;
  if ((ebx & 0xffff) != 64 || (ebx >> 16) < 8 || (ecx & 0xffff) < 16) return false;
  // ARCH_REQ_XCOMP_PERM of <asm/prctl.h>, since Linux 5.16.
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

Isa detect() noexcept {
#if defined(__x86_64__)
  // These builtins check XCR0 too: if the OS does not save the wide registers, the CPU counts as one without
  // them.
  __builtin_cpu_init();
  Isa isa = Isa::generic;
  const auto add = [&isa](Isa extension, bool supported) {
    if (supported) isa = isa | extension;
  };
  add(Isa::avx2,
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"));
  if (!isa.has(Isa::avx2)) return isa;
  add(Isa::avx512, __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                       __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"));
  if (!isa.has(Isa::avx512)) return isa;
  add(Isa::avx512_vbmi2, __builtin_cpu_supports("avx512vbmi2"));
  add(Isa::avx512_vnni, __builtin_cpu_supports("avx512vnni"));
  add(Isa::avx512_bf16, __builtin_cpu_supports("avx512bf16"));
  // The process requests the tiles' state only if their kernels could run.
  add(Isa::amx, isa.has(Isa::avx512_vnni | Isa::avx512_bf16) && amx_allowed());
  return isa;
#else
  return Isa::generic;
#endif
}

}  // namespace

const char* name_of(Isa isa) noexcept {
  const char* name = "generic";
  for (const Named& set : kAll)
    if (isa.has(set.isa)) name = set.name;
  return name;
}

Isa detected_isa() noexcept {
  static const Isa isa = detect();
  return isa;
}

Isa capped_isa(const char* forced) {
  if (forced == nullptr || *forced == '\0') return detected_isa();
  for (const Named& set : kAll) {
    if (std::strcmp(forced, set.name) != 0) continue;
    if (!detected_isa().has(set.isa))
      core::fail("SPARSELOOM_ISA",
                 std::string("an instruction set this CPU runs (up to ") + name_of(detected_isa()) + ")",
                 forced, "unset SPARSELOOM_ISA or name a smaller one");
    return detected_isa() & set.isa;
  }
  std::string names;
  for (std::size_t i = 0; i < std::size(kAll); ++i)
    names += (i == 0 ? "" : i + 1 < std::size(kAll) ? ", " : " or ") + std::string(kAll[i].name);
  core::fail("SPARSELOOM_ISA", names, std::string("'") + forced + "'", "unset SPARSELOOM_ISA");
}

const std::string& forced_isa() {
  static const std::string* forced = [] {
    const char* value = std::getenv("SPARSELOOM_ISA");
    return new std::string(value ? value : "");
  }();
  return *forced;
}

Isa active_isa() {
  static const Isa isa = capped_isa(forced_isa().c_str());
  return isa;
}

std::int64_t l2_cache_bytes() noexcept {
  static const std::int64_t bytes = [] {
    std::int64_t size = 0;
#ifdef _SC_LEVEL2_CACHE_SIZE  // glibc only; some virtual machines answer 0 or -1
    size = sysconf(_SC_LEVEL2_CACHE_SIZE);
#endif
    return size > 0 ? size : std::int64_t{1} << 20;
  }();
  return bytes;
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

std::string cpuinfo_identity(const std::string& cpuinfo) {
  // Only the first processor is read: a machine whose cores differ is measured on whichever core came first.
  constexpr std::string_view kKeys[] = {"microcode", "CPU implementer", "CPU variant",
                                        "CPU part",  "CPU revision",    "uarch"};
  const std::string first = cpuinfo.substr(0, cpuinfo.find("\n\n"));
  std::string identity;
  for (std::size_t begin = 0; begin < first.size();) {
    const std::size_t end = std::min(first.find('\n', begin), first.size());
    const std::string line = first.substr(begin, end - begin);
    begin = end + 1;
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::string key = line.substr(0, line.find_last_not_of(" \t", colon - 1) + 1);
    const std::size_t value = line.find_first_not_of(" \t", colon + 1);
    for (const std::string_view wanted : kKeys)
      if (key == wanted && value != std::string::npos) identity += ", " + key + " " + line.substr(value);
  }
  return identity;
}

std::string cpu_identity() {
#if defined(__x86_64__)
  unsigned eax = 0, ebx, ecx, edx;
  __get_cpuid(1, &eax, &ebx, &ecx, &edx);
  char signature[16];
  std::snprintf(signature, sizeof signature, "%08x", eax);
  const std::string model = "x86_64, " + cpu_name() + ", signature " + signature;
#elif defined(__aarch64__)
  const std::string model = "aarch64";
#else
  const std::string model = "another architecture";
#endif
  std::ifstream file("/proc/cpuinfo");
  return model + cpuinfo_identity({std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()});
}

}  // namespace sparseloom::runtime
