// Sink: the destination of a sparsifier's elements. Run: the state that all selections of one call share.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory_resource>

#include "sparseloom/executor.h"
#include "sparseloom/generic/parallel.h"
#include "sparseloom/matrix_view.h"
#include "sparseloom/sparsifiers.h"

namespace sparseloom::sparsifiers {

template <class T>
struct Sink {
  bool* mask;
  T* values;

  void put(std::int64_t i, T x, bool stays) const noexcept {
    if (mask != nullptr) mask[i] = stays;
    if (values != nullptr) values[i] = stays ? x : T{};
  }
};

template <class T>
struct Run {
  const ConstMatrixView& dense;
  const SparsifierSpec& spec;
  Sink<T> sink;
  const Executor& executor;
  std::pmr::memory_resource* scratch;

  std::int64_t elements() const noexcept { return dense.rows * dense.cols; }

  /// The parts into which one pass is divided. A part must be worth a thread, and its counts must fit 32
  /// bits.
  std::int64_t parts(std::int64_t units, std::int64_t elements_each) const noexcept {
    const std::int64_t most = std::max<std::int64_t>(units * elements_each / (1 << 15), 1);
    const std::int64_t least = elements() / (std::int64_t{1} << 31) + 1;
    return std::min(std::max(std::min<std::int64_t>(executor.num_threads, most), least),
                    std::max<std::int64_t>(units, 1));
  }

  /// Calls body(part, begin, end) for the parts of [0, units), each on one thread.
  template <class Body>
  void for_parts(std::int64_t parts, std::int64_t units, const Body& body) const {
    const std::int64_t part_units = units / parts, more = units % parts;
    runtime::parallel_tasks(executor, parts, [&](std::int64_t part) {
      const std::int64_t begin = part * part_units + std::min(part, more);
      body(part, begin, begin + part_units + (part < more));
    });
  }
};

}  // namespace sparseloom::sparsifiers
