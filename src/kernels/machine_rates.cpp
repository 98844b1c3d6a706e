// Keeps this machine's measured rates.
#include "kernels/machine_rates.h"

#include "kernels/bsr_linear/cpu/rates.h"
#include "runtime/cache_file.h"

namespace sparseloom::kernels {
namespace {

const KnownRates& machine() {
  static const KnownRates known = known_rates(runtime::cache_folder(), runtime::active_isa());
  return known;
}

}  // namespace

const plan::MachineRates& machine_rates() { return machine().rates; }

const plan::MachineRates& nominal_rates() {
  // A core of a Xeon with AMX of 2023, rounded, but for bf16_avx512: twice fp32's rate, as on most CPUs.
  static const plan::MachineRates nominal = [] {
    using runtime::Isa;
    const Isa isa = runtime::active_isa();
    const auto of = [isa](Isa needed, double rate) { return isa.has(needed) ? rate : 0; };
    plan::MachineRates rates;
    rates.f32_avx2 = of(Isa::avx2, 120e9), rates.f32_avx512 = of(Isa::avx512, 240e9);
    rates.bf16_avx512 = of(Isa::avx512_bf16, 480e9), rates.bf16_amx = of(Isa::amx, 3.6e12);
    rates.i8_avx512 = of(Isa::avx512_vnni, 960e9), rates.i8_amx = of(Isa::amx, 7.2e12);
    rates.copy_bytes = 30e9;
    return rates;
  }();
  return nominal;
}

const std::string& machine_rates_origin() { return machine().origin; }

}  // namespace sparseloom::kernels
