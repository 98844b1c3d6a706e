// Register peaks and copy bandwidth of one core.
#include "kernels/cpu/rates.h"

#include <chrono>
#include <cstring>
#include <memory>

#include "kernels/cpu/amx/tile.h"
#include "kernels/cpu/panel.h"

namespace sparseloom::kernels {
namespace {

using Clock = std::chrono::steady_clock;

// Best of `windows` timings of work(), which returns how much it did; per second.
template <class Work>
double best_rate(int windows, const Work& work) {
  double best = 0;
  for (int i = 0; i < windows; ++i) {
    const auto start = Clock::now();
    const double done = static_cast<double>(work());
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    if (seconds > 0 && done / seconds > best) best = done / seconds;
  }
  return best;
}

#if defined(__x86_64__)
// 5000 rounds are some 30 us: long against the clock's 20 ns, short against a time slice, so that one of them is undisturbed.
// Sixty of them: what is kept for weeks may take two milliseconds.
template <class Ops>  // PanelOps or TileOps
double register_peak(const Ops& ops) {
  return best_rate(60, [&] { return ops.spin(5000); });
}
#endif

// 4 MiB to 4 MiB: beyond the L2 of every machine so far; the first window maps the pages and loses.
double copy_rate() {
  constexpr std::size_t kBytes = 4 << 20;
  const std::unique_ptr<char[]> from(new char[kBytes]), to(new char[kBytes]);
  std::memset(from.get(), 1, kBytes);
  return best_rate(10, [&] {
    std::memcpy(to.get(), from.get(), kBytes);
    return 2 * kBytes;
  });
}

}  // namespace

std::span<const RateField> rate_fields() {
  using plan::MachineRates;
  static constexpr RateField kFields[] = {{"f32_avx2", &MachineRates::f32_avx2},       {"f32_avx512", &MachineRates::f32_avx512},
                                          {"bf16_avx512", &MachineRates::bf16_avx512}, {"bf16_amx", &MachineRates::bf16_amx},
                                          {"i8_avx512", &MachineRates::i8_avx512},     {"i8_amx", &MachineRates::i8_amx},
                                          {"copy_bytes", &MachineRates::copy_bytes}};
  return kFields;
}

plan::MachineRates measure_rates(runtime::Isa isa) {
  plan::MachineRates rates;
#if defined(__x86_64__)
  using runtime::Isa;
  if (isa >= Isa::avx2) rates.f32_avx2 = register_peak(cpu::kAvx2Panel);
  if (isa >= Isa::avx512) rates.f32_avx512 = register_peak(cpu::kAvx512Panel);
  if (isa >= Isa::avx512_vnni) rates.i8_avx512 = register_peak(cpu::kAvx512VnniPanel);
  if (isa >= Isa::avx512_bf16) rates.bf16_avx512 = register_peak(cpu::kAvx512Bf16Panel);
  if (isa >= Isa::amx) rates.bf16_amx = register_peak(cpu::kAmxTile), rates.i8_amx = register_peak(cpu::kAmxInt8Tile);
#else
  static_cast<void>(isa);
#endif
  rates.copy_bytes = copy_rate();
  return rates;
}

}  // namespace sparseloom::kernels
