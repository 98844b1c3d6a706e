// The machine's rates. They are measured once, kept in a file of the cache folder, and read by every later
// process on the same kind of CPU.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "plan/machine.h"
#include "runtime/rate_table.h"

namespace sparseloom::kernels {

/// One field of MachineRates with its name in files and in info. gemm_flops is not included, because it
/// belongs to a problem.
using RateField = runtime::RateField<plan::MachineRates>;
std::span<const RateField> rate_fields();

/// Measures one core's register peaks, for the instruction sets that `isa` includes (the others stay 0), and
/// its copy bandwidth. Takes some ten milliseconds and allocates, so it is called once per process and never
/// inside a product. The result is the best of many short windows, since a neighbour on the same core can
/// only make a window slower.
plan::MachineRates measure_rates(runtime::Isa isa = runtime::active_isa());

/// Whether every rate that measure_rates(isa) measures is above 0: a file may tell another one.
bool has_all(const plan::MachineRates& rates, runtime::Isa isa);

/// Multiplies on registers only for `rounds` rounds, on the calling thread; returns the flops done.
using Spin = std::int64_t (*)(std::int64_t rounds);
/// The loop that reaches the rate of this name in rate_fields(). Null if the rate is no peak, or if `isa`
/// does not include its instruction set.
Spin register_spin(std::string_view rate, runtime::Isa isa = runtime::active_isa());

struct KnownRates {
  plan::MachineRates rates;
  std::string origin;  // "read from <file>", "measured and kept in <file>" or "measured, not kept: <reason>"
};

/// Reads the rates for `isa` from `folder` (runtime::cache_folder), or measures them and keeps them there. A
/// file that is missing, damaged, or of another CPU, build or instruction set is replaced by a new
/// measurement. If the folder cannot be written, every process measures. Never an error.
KnownRates known_rates(const std::string& folder, runtime::Isa isa);

/// Everything that the rates depend on, as one line of text: the CPU, the instruction set, this library's
/// version and build.
std::string rates_key(runtime::Isa isa);

/// The file name for a key. It depends on the key because several kinds of CPU may share one home folder.
std::string rates_file(const std::string& key);

std::string rates_text(const plan::MachineRates& rates, const std::string& key);
/// Returns nothing unless the text is complete and for this key, and each rate is a plausible number.
std::optional<plan::MachineRates> parse_rates(const std::string& text, const std::string& key);

}  // namespace sparseloom::kernels
