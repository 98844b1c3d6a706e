// Indices from outside, which are validated before a kernel follows them: once per content.
#pragma once

#include <cstdint>
#include <span>

#include "sparseloom/executor.h"
#include "sparseloom/export.h"
#include "sparseloom/layout.h"

namespace sparseloom::ops {

/// Validates an index of host memory, with its column index if that has a ccol, unless this thread has seen
/// this content there. Throws Error that names the first bad entry.
void require_valid(const char* op, const IndexView& index, const TransposedView& transposed = {});

/// The same of an index whose last slots may be free: crow may end before `blocks`.
void require_valid_slots(const char* op, const IndexView& index);

/// Throws Error that names the first of these places in host memory that is neither -1 nor below their
/// number.
void require_valid_places(const char* op, std::span<const std::int32_t> place);

/// An index in the memory of a device, which the host reads once for each number of writes to it.
struct DeviceIndex {
  /// Writes of tensors whose writes nobody counts: such an index is read once.
  static constexpr std::uint64_t kUncounted = ~std::uint64_t{0};
  const char* op = "";
  IndexView index;
  TransposedView transposed = {};  // without a ccol: not read
  std::uint64_t writes = 0;        // how often the owner's tensors were written to in place
  bool free_slots = false;         // crow may end before `blocks`
  bool single_elements = false;    // CSR: blocks of 1 x 1
};

/// Copies the index to the host, waits and validates it, unless that was done at this address for this shape
/// and number of writes. Does neither while the stream captures a graph, which permits no wait. What lies
/// where a seen index of the same shape was freed passes for that one. Throws Error that names the first bad
/// entry.
SPARSELOOM_API void require_valid_on_device(const DeviceIndex& index, const Executor& executor);

/// Takes an index that was validated on the host, or that a kernel writes, as seen.
SPARSELOOM_API void take_as_valid(const DeviceIndex& index, int device);

}  // namespace sparseloom::ops
