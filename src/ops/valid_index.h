// Indices from outside, which are validated before a kernel follows them: once per content.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "sparseloom/executor.h"
#include "sparseloom/export.h"
#include "sparseloom/layout.h"

namespace sparseloom::plan {
class IndexOwner;  // plan/seen_places.h
}

namespace sparseloom::ops {

/// Validates an index in host memory, with its column index if that has a ccol, unless this thread has
/// validated this content there. Throws Error that names the first bad entry.
void require_valid(const char* op, const IndexView& index, const TransposedView& transposed = {});

/// Validates an index whose last slots may be free: crow may end before `blocks`.
void require_valid_slots(const char* op, const IndexView& index);

/// Throws Error that names the first of these places in host memory that is neither -1 nor below their
/// number.
void require_valid_places(const char* op, std::span<const std::int32_t> place);

/// Where the owner of an index comes from, once the index is valid.
class IndexSource {
 public:
  virtual std::shared_ptr<const plan::IndexOwner> owner() const = 0;

 protected:
  ~IndexSource() = default;
};

/// An index in device memory, which the host reads once per number of writes to it.
struct DeviceIndex {
  /// The count for tensors whose writes are not counted: such an index is read once.
  static constexpr std::uint64_t kUncounted = ~std::uint64_t{0};
  const char* op = "";
  IndexView index;
  TransposedView transposed = {};  // without a ccol: not read
  std::uint64_t writes = 0;        // number of in-place writes to the owner's tensors
  bool free_slots = false;         // crow may end before `blocks`
  bool single_elements = false;    // CSR: blocks of 1 x 1
  const IndexSource* source = nullptr;
};

/// Copies the index to the host, waits and validates it, unless that was done at this address for this shape
/// and number of writes. Does neither while the stream captures a graph, which permits no wait. The memory of
/// an index with a source is kept from being used for another one (plan/seen_places.h); without, an index at
/// the address of a freed one of the same shape counts as validated for a time. Throws Error that names the
/// first bad entry.
SPARSELOOM_API void require_valid_on_device(const DeviceIndex& index, const Executor& executor);

/// Marks an index as valid that was validated on the host, or that a kernel writes.
SPARSELOOM_API void take_as_valid(const DeviceIndex& index, int device);

}  // namespace sparseloom::ops
