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
const std::string& machine_rates_origin() { return machine().origin; }

}  // namespace sparseloom::kernels
