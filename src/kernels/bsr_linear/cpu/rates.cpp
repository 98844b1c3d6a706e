// Measures the register peaks and the copy bandwidth of one core.
#include "kernels/bsr_linear/cpu/rates.h"

#include <chrono>
#include <cstring>
#include <memory>

#include "kernels/bsr_linear/cpu/amx/tile.h"
#include "kernels/bsr_linear/cpu/ops.h"

namespace sparseloom::kernels {
namespace {

using Clock = std::chrono::steady_clock;

// The best rate per second in `windows` timings of work(), which returns the amount of its work.
template <class Work>
double best_rate(int windows, const Work& work) {
  double best = 0;
  for (int i = 0; i < windows; ++i) {
    const auto start = Clock::now();
    const double work_done = static_cast<double>(work());
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    if (seconds > 0 && work_done / seconds > best) best = work_done / seconds;
  }
  return best;
}

// 5000 rounds take some 30 us: long against the clock's 20 ns, and short against a time slice, so that at
// least one window is undisturbed. Sixty windows take two milliseconds, which is little for a result kept for
// weeks.
double best_spin(Spin spin) {
  return best_rate(60, [=] { return spin(5000); });
}

// The loop that reaches a peak: products on registers only.
struct Peak {
  double plan::MachineRates::*rate;
  runtime::Isa isa;
  Spin spin;
};

std::span<const Peak> peaks() {
#if defined(__x86_64__)
  using plan::MachineRates;
  using runtime::Isa;
  static const Peak kPeaks[] = {{&MachineRates::f32_avx2, Isa::avx2, cpu::kAvx2Panel.spin},
                                {&MachineRates::f32_avx512, Isa::avx512, cpu::kAvx512Panel.spin},
                                {&MachineRates::i8_avx512, Isa::avx512_vnni, cpu::kAvx512VnniPanel.spin},
                                {&MachineRates::bf16_avx512, Isa::avx512_bf16, cpu::kAvx512Bf16Panel.spin},
                                {&MachineRates::bf16_amx, Isa::amx, cpu::kAmxTile.spin},
                                {&MachineRates::i8_amx, Isa::amx, cpu::kAmxInt8Tile.spin}};
  return kPeaks;
#else
  return {};
#endif
}

// Copies 4 MiB to 4 MiB, which is beyond the L2 of every machine so far. The first window also maps the
// pages, and so is never the best.
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
  static constexpr RateField kFields[] = {
      {"f32_avx2", &MachineRates::f32_avx2},       {"f32_avx512", &MachineRates::f32_avx512},
      {"bf16_avx512", &MachineRates::bf16_avx512}, {"bf16_amx", &MachineRates::bf16_amx},
      {"i8_avx512", &MachineRates::i8_avx512},     {"i8_amx", &MachineRates::i8_amx},
      {"copy_bytes", &MachineRates::copy_bytes}};
  return kFields;
}

plan::MachineRates measure_rates(runtime::Isa isa) {
  plan::MachineRates rates;
  for (const Peak& peak : peaks())
    if (isa.has(peak.isa)) rates.*peak.rate = best_spin(peak.spin);
  rates.copy_bytes = copy_rate();
  return rates;
}

bool has_all(const plan::MachineRates& rates, runtime::Isa isa) {
  for (const Peak& peak : peaks())
    if (isa.has(peak.isa) && !(rates.*peak.rate > 0)) return false;
  return rates.copy_bytes > 0;
}

Spin register_spin(std::string_view rate, runtime::Isa isa) {
  for (const RateField& field : rate_fields())
    for (const Peak& peak : peaks())
      if (field.name == rate && field.rate == peak.rate && isa.has(peak.isa)) return peak.spin;
  return nullptr;
}

}  // namespace sparseloom::kernels
