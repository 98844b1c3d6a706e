// Cases of the kernels of sparsifiers, which must take what the CPU takes: on a GPU, and compiled for the
// CPU.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "core/rng.h"
#include "sparseloom/generic/half.h"
#include "sparseloom/sparsifiers.h"

namespace sparseloom::testing {

/// What a matrix holds. ties: small whole numbers of both signs. narrow: many have the same leading bits.
enum class Values { normal, ties, equal, narrow, zeros, specials };
inline constexpr Values kValues[] = {Values::normal, Values::ties,  Values::equal,
                                     Values::narrow, Values::zeros, Values::specials};

/// A matrix whose rows lie `gap` elements apart, `offset` elements behind an address that is aligned, as do
/// both results.
struct SparsifyCase {
  DType dtype = DType::f32;
  std::int64_t rows = 1, cols = 1, gap = 0, offset = 0;
  Values values = Values::normal;

  std::size_t size() const { return size_of(dtype); }
  std::int64_t count() const { return rows * cols; }
  std::size_t result_elements() const { return static_cast<std::size_t>(count() + offset); }
};

inline double value_of(Values values, core::Rng& rng) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  constexpr double kSpecial[] = {NAN, -kInf, kInf, 0.0, -0.0, 1e-40, -6e-8, 1e-310};
  const double x = 4 * (rng.uniform() + rng.uniform() + rng.uniform()) - 6;
  switch (values) {
    case Values::normal: return x;
    case Values::ties: return static_cast<double>(rng.below(7)) - 3;
    case Values::equal: return -1.5;
    case Values::narrow: return 1 + x / 65536;
    case Values::zeros: return rng.below(3) == 0 ? x : -0.0;
    case Values::specials: break;
  }
  return rng.below(4) == 0 ? kSpecial[rng.below(8)] : x;
}

/// The memory of the matrix, from the aligned address on.
inline std::vector<std::byte> memory_of(const SparsifyCase& c) {
  const std::int64_t count = c.offset + c.rows * (c.cols + c.gap);
  std::vector<std::byte> bytes(static_cast<std::size_t>(count) * c.size());
  core::Rng rng(static_cast<std::uint64_t>(c.rows * 31 + c.cols));
  for (std::int64_t i = 0; i < count; ++i) {
    const double x = value_of(c.values, rng);
    const auto store = [&](auto value) {
      std::memcpy(bytes.data() + static_cast<std::size_t>(i) * sizeof(value), &value, sizeof(value));
    };
    switch (c.dtype) {
      case DType::f64: store(x); break;
      case DType::f32: store(static_cast<float>(x)); break;
      case DType::f16: store(core::to_f16(x)); break;
      default: store(core::to_bf16(x)); break;
    }
  }
  return bytes;
}

inline std::vector<SparsifierSpec> sparsify_specs() {
  std::vector<SparsifierSpec> all;
  const auto add = [&](Selection selection, double amount, std::int64_t a = 1, std::int64_t b = 1) {
    SparsifierSpec& spec = all.emplace_back();
    spec.selection = selection, spec.amount = amount;
    if (selection == Selection::blockwise_fraction) spec.block_rows = a, spec.block_cols = b;
    if (selection == Selection::per_block_nm) spec.n = a, spec.m = b;
    if (selection == Selection::random_fraction) spec.seed = 0x9123456789abcdefu;
  };
  add(Selection::keep_all, 0);
  for (const double fraction : {0.0, 0.37, 0.9, 1.0}) add(Selection::random_fraction, fraction);
  for (const double threshold : {0.0, 1.5, 0.7, 1e300}) add(Selection::scalar_threshold, threshold);
  for (const double fraction : {0.0, 0.2, 0.5, 0.9, 0.999, 1.0}) add(Selection::scalar_fraction, fraction);
  for (const auto& [rows, cols] : {std::pair<std::int64_t, std::int64_t>{8, 3}, {1, 1}, {5, 4}, {70, 60}})
    for (const double fraction : {0.4, 0.93}) add(Selection::blockwise_fraction, fraction, rows, cols);
  add(Selection::blockwise_fraction, 1, 4, 4);
  add(Selection::blockwise_fraction, 0.5, 1 << 20, 1);
  for (const auto& [n, m] : {std::pair<std::int64_t, std::int64_t>{2, 4},
                             {1, 4},
                             {4, 4},
                             {4, 8},
                             {1, 8},
                             {1, 2},
                             {5, 16},
                             {3, 7},
                             {11, 13},
                             {9, 32},
                             {2, 64},
                             {33, 100},
                             {40, 256},
                             {7, 300},
                             {500, 1 << 20}})
    add(Selection::per_block_nm, 0, n, m);
  return all;
}

inline std::string text_of(const SparsifyCase& c, const SparsifierSpec& spec) {
  return std::string(name_of(c.dtype)) + " [" + std::to_string(c.rows) + ", " + std::to_string(c.cols) +
         "] gap " + std::to_string(c.gap) + " offset " + std::to_string(c.offset) + " values " +
         std::to_string(static_cast<int>(c.values)) + " selection " +
         std::to_string(static_cast<int>(spec.selection)) + " amount " + std::to_string(spec.amount) +
         " n:m " + std::to_string(spec.n) + ":" + std::to_string(spec.m) + " block " +
         std::to_string(spec.block_rows) + "x" + std::to_string(spec.block_cols);
}

/// A byte for each element and the elements, from the aligned address on; 0xa5 where nothing is written.
struct SparsifyOutput {
  std::vector<std::byte> mask, values;
  explicit SparsifyOutput(const SparsifyCase& c)
      : mask(c.result_elements(), std::byte{0xa5}), values(c.result_elements() * c.size(), std::byte{0xa5}) {}
};

/// The view and the result of a case whose memory begins at these addresses; null: not asked for.
inline ConstMatrixView view_of(const SparsifyCase& c, const std::byte* memory) {
  return {memory + static_cast<std::size_t>(c.offset) * c.size(), c.dtype, c.rows, c.cols, c.cols + c.gap};
}
inline SparsifierResult result_of(const SparsifyCase& c, std::byte* mask, std::byte* values) {
  return {mask == nullptr ? nullptr : reinterpret_cast<bool*>(mask + c.offset),
          values == nullptr ? nullptr : values + static_cast<std::size_t>(c.offset) * c.size()};
}

/// Compares a device with the CPU: run(case, memory, spec, with_mask, with_values) returns the output.
template <class Run>
void expect_as_on_the_cpu(const SparsifyCase& c, const std::vector<SparsifierSpec>& specs, const Run& run) {
  const std::vector<std::byte> memory = memory_of(c);
  for (const SparsifierSpec& spec : specs) {
    SparsifyOutput expected(c);
    sparsify(view_of(c, memory.data()), spec, result_of(c, expected.mask.data(), expected.values.data()),
             Executor::serial());
    const SparsifyOutput both = run(c, memory, spec, true, true);
    ASSERT_TRUE(both.mask == expected.mask) << text_of(c, spec);
    ASSERT_TRUE(both.values == expected.values) << text_of(c, spec);
    if (c.gap == 0) continue;
    const SparsifyOutput mask = run(c, memory, spec, true, false), values = run(c, memory, spec, false, true);
    ASSERT_TRUE(mask.mask == expected.mask) << text_of(c, spec);
    ASSERT_TRUE(values.values == expected.values) << text_of(c, spec);
  }
}

}  // namespace sparseloom::testing
