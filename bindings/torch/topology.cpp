// The operators set_topology and move_blocks: in place, in torch's memory and on torch's stream.
#include "convert.h"
#include "core/check.h"
#include "executor.h"
#include "operands.h"
#include "scratch.h"
#include "sparseloom/ops.h"

namespace sparseloom::binding {
namespace {

// The data of an index tensor that will be written. The schema says which arguments are written; `const
// Tensor&` does not make the data const.
std::int32_t* written(const char* op, const char* name, const Tensor& tensor, std::int64_t expected,
                      int device) {
  indices_of(op, name, tensor, expected, device, "index");
  return static_cast<std::int32_t*>(tensor.mutable_data_ptr());
}

void set_topology(const Tensor& given, const Tensor& packed, const Tensor& moved, const Tensor& requested) {
  constexpr const char* op = "set_topology";
  const int device = device_of(op, "index", packed);
  require_device(op, "mask", given, device, "index");
  const bool bytes = given.scalar_type() == ScalarType::Bool || given.scalar_type() == ScalarType::Byte;
  if (!bytes || given.dim() != 2)
    core::fail(
        op, "a bool mask [block rows, block cols], one entry for each block",
        shape_of(given) + " of torch.ScalarType " + std::to_string(static_cast<int>(given.scalar_type())),
        "pass mask.bool() with one entry for each block of the grid");
  TopologyTables tables;
  tables.block_rows = given.size(0);
  tables.block_cols = given.size(1);
  tables.capacity = moved.numel();
  const IndexSegments at = index_segments(tables.block_rows, tables.block_cols, tables.capacity);
  if (packed.numel() != at.size)
    core::fail(op,
               "the packed index of the mask's " + core::shape(tables.block_rows, tables.block_cols) +
                   " grid with moved's " + std::to_string(tables.capacity) + " blocks, " +
                   std::to_string(at.size) + " elements",
               std::to_string(packed.numel()), "pass a mask with one entry for each block of the grid");
  std::int32_t* const index = written(op, "index", packed, -1, device);
  tables.crow = index + at.crow;
  tables.col = index + at.col;
  tables.ccol = index + at.ccol;
  tables.row = index + at.row;
  tables.slot = index + at.slot;
  tables.moved = written(op, "moved", moved, tables.capacity, device);
  tables.requested = written(op, "requested", requested, 1, device);
  const Executor executor = torch_executor(device);
  const Tensor mask = as_contiguous(given);
  const Scratch workspace(op, set_topology_workspace(tables, executor), device);
  sparseloom::set_topology(static_cast<const std::uint8_t*>(mask.const_data_ptr()), tables, workspace.span(),
                           executor);
}

void move_blocks(const Tensor& values, const Tensor& moved) {
  constexpr const char* op = "move_blocks";
  const int device = device_of(op, "values", values);
  if (values.dim() < 1 || !values.is_contiguous() || values.size(0) != moved.numel())
    core::fail(op, "contiguous values of " + std::to_string(moved.numel()) + " blocks, as moved has",
               shape_of(values), "pass what has a layer's blocks as its first dimension");
  const std::int32_t* from = indices_of(op, "moved", moved, -1, device, "values");
  const auto count = static_cast<std::size_t>(moved.numel());
  const std::int64_t size =
      count ? values.numel() / static_cast<std::int64_t>(count) * values.element_size() : 0;
  const Scratch workspace(op, count * static_cast<std::size_t>(size), device);
  sparseloom::move_blocks(values.mutable_data_ptr(), size, {from, count}, workspace.span(),
                          torch_executor(device));
}

// Fake (Meta) kernels, which torch's compilers call. They do nothing: there are no results, and the tensors
// that are written have their shapes already.
void no_topology(const Tensor&, const Tensor&, const Tensor&, const Tensor&) {}
void no_move(const Tensor&, const Tensor&) {}

}  // namespace
}  // namespace sparseloom::binding

STABLE_TORCH_LIBRARY_IMPL(sparseloom, Meta, m) {
  m.impl("set_topology", TORCH_BOX(&sparseloom::binding::no_topology));
  m.impl("move_blocks", TORCH_BOX(&sparseloom::binding::no_move));
}

STABLE_TORCH_LIBRARY_IMPL(sparseloom, CPU, m) {
  m.impl("set_topology", TORCH_BOX(&sparseloom::binding::set_topology));
  m.impl("move_blocks", TORCH_BOX(&sparseloom::binding::move_blocks));
}

STABLE_TORCH_LIBRARY_IMPL(sparseloom, CUDA, m) {
  m.impl("set_topology", TORCH_BOX(&sparseloom::binding::set_topology));
  m.impl("move_blocks", TORCH_BOX(&sparseloom::binding::move_blocks));
}
