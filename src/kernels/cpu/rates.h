// The machine's rates: measured once, kept in a file of the cache folder, read by every later process on the
// same kind of CPU.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "plan/candidate.h"
#include "runtime/rate_table.h"

namespace sparseloom::kernels {

/// One field of MachineRates as files and info name it. gemm_flops is none of them: it belongs to a problem.
using RateField = runtime::RateField<plan::MachineRates>;
std::span<const RateField> rate_fields();

/// One core's register peaks and copy bandwidth, of the instruction sets that `isa` includes; the others stay
/// 0. Takes some ten milliseconds and allocates: called once per process, never inside a product. Best of
/// many short windows, since a neighbour on the same core can only make a window slower.
plan::MachineRates measure_rates(runtime::Isa isa = runtime::active_isa());

/// Multiplies on nothing but registers for so many rounds, on the calling thread; returns the flops done.
using Spin = std::int64_t (*)(std::int64_t rounds);
/// What reaches the rate that rate_fields() calls so; null for one that is no peak, or of a set that `isa`
/// does not include.
Spin register_spin(std::string_view rate, runtime::Isa isa = runtime::active_isa());

struct KnownRates {
  plan::MachineRates rates;
  std::string origin;  // "read from <file>", "measured and kept in <file>" or "measured, not kept: <reason>"
};

/// Rates for `isa` from `folder` (runtime::cache_folder), else measured and kept there. A file that is
/// missing, damaged, of another CPU, build or instruction set is measured anew and replaced; a folder that
/// cannot be written costs the measurement in each process. Never an error.
KnownRates known_rates(const std::string& folder, runtime::Isa isa);

/// Everything that the rates depend on: CPU, instruction set, this library's version and build. One line.
std::string rates_key(runtime::Isa isa);

/// The name of the file for a key: several kinds of CPU may share one home folder.
std::string rates_file(const std::string& key);

std::string rates_text(const plan::MachineRates& rates, const std::string& key);
/// Nothing unless the text is whole and for this key, and each rate is a possible one.
std::optional<plan::MachineRates> parse_rates(const std::string& text, const std::string& key);

}  // namespace sparseloom::kernels
