// The common part of choose_blocks (sparseloom/topology.h) on the host and on CUDA.
#pragma once

#include <cstdint>

#include "core/on_device.h"

namespace sparseloom::layout {

/// The number of blocks that a budget (BlockChoice) requests, and how many of the `live` ones stay.
struct Counts {
  std::int64_t all = 0, keep = 0;
};

/// Plain C++ that CUDA kernels call too. For any budget, 0 <= keep <= all <= cells.
SPARSELOOM_ON_DEVICE_TOO inline Counts counts_of(const double* budget, std::int64_t live, std::int64_t cells,
                                                 bool grows) {
  Counts counts;
  const auto most = static_cast<double>(cells);
  if (budget[0] > 0) counts.all = static_cast<std::int64_t>(budget[0] < most ? budget[0] : most);
  counts.keep = counts.all < live ? counts.all : live;
  if (!grows || !(budget[1] > 0)) return counts;
  const double share = budget[1] < 1 ? budget[1] : 1;
  counts.keep -= static_cast<std::int64_t>(share * static_cast<double>(counts.keep));
  return counts;
}

}  // namespace sparseloom::layout
