// Operands of the recurrent cells in any dtype: matrices by name, drawn once, of which every dtype holds the
// same values. `Run` is what calls a cell on them, on the CPU or a device.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/rng.h"
#include "sparseloom/generic/scalar.h"
#include "sparseloom/recurrent.h"

namespace sparseloom::testing {

inline DType state_of(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

/// Matrices [n, times x hidden] by name.
struct Cells {
  DType dtype;
  std::int64_t n, hidden;
  std::map<std::string, std::vector<std::byte>> all;

  /// Draws from multiples of 1 / 32 in [-2, 2), which every dtype holds.
  void draw(const std::string& name, std::int64_t times, std::uint64_t seed, bool state = false) {
    core::Rng rng(seed);
    auto& made = add(name, times, state);
    for (std::int64_t i = 0; i < n * times * hidden; ++i)
      kernels::store(type(state), made.data(), i, (static_cast<double>(rng.below(128)) - 64) / 32);
  }
  std::vector<std::byte>& add(const std::string& name, std::int64_t times, bool state = false) {
    all[name].assign(static_cast<std::size_t>(n * times * hidden) * size_of(type(state)), std::byte{0xff});
    return all[name];
  }
  DType type(bool state) const { return state ? state_of(dtype) : dtype; }
  std::vector<double> read(const std::string& name, bool state = false) const {
    const std::vector<std::byte>& bytes = all.at(name);
    std::vector<double> found(bytes.size() / size_of(type(state)));
    for (std::size_t i = 0; i < found.size(); ++i)
      found[i] = kernels::load(type(state), bytes.data(), static_cast<std::int64_t>(i));
    return found;
  }
};

inline Cells lstm_cells(DType dtype, std::int64_t n, std::int64_t hidden) {
  Cells cells{dtype, n, hidden, {}};
  cells.draw("z", 4, 1), cells.draw("c_before", 1, 2, true), cells.draw("dy", 1, 3), cells.draw("dh", 1, 4);
  cells.draw("dc", 1, 5, true), cells.add("gates", 4), cells.add("c", 1, true), cells.add("h", 1);
  cells.add("dz", 4);
  return cells;
}

inline Cells gru_cells(DType dtype, std::int64_t n, std::int64_t hidden) {
  Cells cells{dtype, n, hidden, {}};
  cells.draw("x", 3, 1), cells.draw("g", 3, 2), cells.draw("h_before", 1, 3), cells.draw("dy", 1, 4);
  cells.draw("dh", 1, 5), cells.draw("more", 1, 6), cells.add("gates", 4), cells.add("h", 1);
  cells.add("dx", 3), cells.add("dg", 3), cells.add("dh_before", 1);
  return cells;
}

/// A matrix of gates with `side` units of each gate side by side.
inline std::vector<std::byte> beside(const Cells& cells, const std::string& name, std::int64_t side) {
  const std::vector<std::byte>& from = cells.all.at(name);
  std::vector<std::byte> to(from.size());
  const auto size = static_cast<std::int64_t>(size_of(cells.dtype));
  for (std::int64_t row = 0; row < cells.n; ++row)
    for (std::int64_t gate = 0; gate < 4; ++gate)
      for (std::int64_t unit = 0; unit < cells.hidden; ++unit) {
        const std::int64_t at = row * 4 * cells.hidden;
        std::copy_n(from.begin() + (at + gate * cells.hidden + unit) * size, size,
                    to.begin() + (at + (unit / side * 4 + gate) * side + unit % side) * size);
      }
  return to;
}

/// Both cells forward and backward; at(name) is the memory of a matrix.
template <class At>
void run_lstm(const Cells& cells, const Executor& executor, At at, std::int64_t side = 0) {
  lstm_cell(
      {cells.dtype, cells.n, cells.hidden, at("z"), at("c_before"), at("gates"), at("c"), at("h"), side},
      executor);
  lstm_cell_gradient({cells.dtype, cells.n, cells.hidden, at("gates"), at("c_before"), at("c"), at("dy"),
                      at("dh"), at("dc"), at("dz"), side},
                     executor);
}

template <class At>
void run_gru(const Cells& cells, const Executor& executor, At at) {
  gru_cell({cells.dtype, cells.n, cells.hidden, at("x"), at("g"), at("h_before"), at("gates"), at("h")},
           executor);
  gru_cell_gradient({cells.dtype, cells.n, cells.hidden, at("gates"), at("h_before"), at("dy"), at("dh"),
                     at("more"), at("dx"), at("dg"), at("dh_before")},
                    executor);
}

/// How far a result may lie from that of fp64 on the same operands: some roundings of the dtype, of gates
/// that are stored rounded and of numbers below 8.
inline double cell_tolerance(DType dtype) {
  return dtype == DType::f64 ? 1e-14 : dtype == DType::f32 ? 4e-6 : dtype == DType::f16 ? 2e-2 : 1.6e-1;
}

}  // namespace sparseloom::testing
