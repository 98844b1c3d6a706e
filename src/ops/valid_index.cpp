#include "ops/valid_index.h"

#include <algorithm>
#include <string>
#include <vector>

#include "core/check.h"
#include "core/shared_by_threads.h"
#include "layout/columns.h"
#include "ops/checks.h"
#include "plan/seen_indices.h"
#include "plan/seen_places.h"
#include "runtime/cuda.h"
#include "runtime/cuda_copy.h"
#include "sparseloom/csr.h"

namespace sparseloom {
namespace {

plan::SeenIndices& seen_here() {
  static thread_local plan::SeenIndices seen;
  return seen;
}

void require_memory(const char* op, const IndexView& index) {
  if (index.blocks < 0)
    core::fail(op, "0 or more blocks", std::to_string(index.blocks), "pass the index of the weight");
  core::require_memory(op, {{"crow", index.crow}, {"col", index.col, index.blocks > 0}});
}

void validate(const char* op, const IndexView& index) {
  validate_index(op, index.rows, index.cols, index.block,
                 {index.crow, static_cast<std::size_t>(index.block_rows() + 1)},
                 {index.col, static_cast<std::size_t>(index.blocks)});
}

/// The index without its free slots. Throws Error when crow ends outside of the list.
IndexView stored_of(const char* op, const IndexView& slots) {
  IndexView index = slots;
  index.blocks = slots.crow[slots.block_rows()];
  if (index.blocks < 0 || index.blocks > slots.blocks)
    core::fail(op, "crow to end within its " + std::to_string(slots.blocks) + " slots",
               std::to_string(index.blocks), "write the index by update_topology only");
  return index;
}

plan::SeenPlaces::Place place_of(const ops::DeviceIndex& at, int device) {
  return {device, at.index, at.transposed.ccol};
}

void remember(const ops::DeviceIndex& at, const plan::SeenPlaces::Place& place) {
  shared_by_threads<plan::SeenPlaces>().add(place, at.writes, at.free_slots,
                                            at.source ? at.source->owner() : nullptr);
}

}  // namespace

void ops::require_valid(const char* op, const IndexView& index, const TransposedView& transposed) {
  require_memory(op, index);
  const bool columns = transposed.ccol != nullptr;
  if (columns)
    core::require_memory(
        op, {{"row", transposed.row, index.blocks > 0}, {"slot", transposed.slot, index.blocks > 0}});
  if (seen_here().contains(index, transposed)) return;
  validate(op, index);
  if (columns) layout::validate_columns(op, index, transposed);
  seen_here().add(index, transposed);
}

void ops::require_valid_slots(const char* op, const IndexView& index) {
  require_memory(op, index);
  require_valid(op, stored_of(op, index));
}

void ops::require_valid_places(const char* op, std::span<const std::int32_t> place) {
  const auto count = static_cast<std::int64_t>(place.size());
  for (std::int64_t i = 0; i < count; ++i)
    if (place[static_cast<std::size_t>(i)] < -1 || place[static_cast<std::size_t>(i)] >= count)
      core::fail(op, "places of -1 to " + std::to_string(count - 1),
                 "place[" + std::to_string(i) + "] = " + std::to_string(place[static_cast<std::size_t>(i)]),
                 "pass what gate_blocks returned");
}

void ops::take_as_valid(const DeviceIndex& index, int device) { remember(index, place_of(index, device)); }

void ops::require_valid_on_device(const DeviceIndex& at, const Executor& executor) {
  const plan::SeenPlaces::Place place = place_of(at, executor.device);
  if (shared_by_threads<plan::SeenPlaces>().contains(place, at.writes, at.free_slots)) return;
  require_memory(at.op, at.index);
  const std::int64_t rows = at.index.block_rows(), cols = at.index.block_cols(), blocks = at.index.blocks;
  const bool columns = at.transposed.ccol != nullptr;
  std::vector<std::int32_t> crow(static_cast<std::size_t>(rows + 1)), col(static_cast<std::size_t>(blocks)),
      ccol(columns ? static_cast<std::size_t>(cols + 1) : 0), row(columns ? col.size() : 0), slot(row.size());
  const runtime::CudaDeviceScope scope(executor.device);
  const auto copied = [&](std::vector<std::int32_t>& to, const std::int32_t* from) {
    return runtime::DeviceBytes{to.data(), from, to.size() * sizeof(std::int32_t)};
  };
  int error = 0;
  if (!runtime::copy_to_host(
          {copied(crow, at.index.crow), copied(col, at.index.col), copied(ccol, at.transposed.ccol),
           copied(row, at.transposed.row), copied(slot, at.transposed.slot)},
          executor.stream, &error)) {
    return require_queued(at.op, error, executor, "a copy of the index");  // 0: a graph is captured
  }
  IndexView index = at.index;
  index.crow = crow.data(), index.col = col.data();
  if (at.free_slots) index = stored_of(at.op, index);
  if (at.single_elements)
    Csr::validate(at.op, {index.rows, index.cols, index.blocks, index.crow, index.col});
  else
    validate(at.op, index);
  if (columns) layout::validate_columns(at.op, index, {ccol.data(), row.data(), slot.data()});
  remember(at, place);
}

}  // namespace sparseloom
