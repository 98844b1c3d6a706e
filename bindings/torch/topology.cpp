// The operators of topologies that change: in place, in torch's memory and on torch's stream.
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>

#include "convert.h"
#include "core/check.h"
#include "executor.h"
#include "operands.h"
#include "ops/checks.h"
#include "registration.h"
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

// A mask, the tables that it belongs to, and the buffers needed to rewrite them.
struct Change {
  int device;
  Executor executor;
  Tensor mask;
  TopologyTables tables;
};

Change change_of(const char* op, const Tensor& given_mask, const Tensor& packed, const Tensor& moved,
                 const Tensor& requested) {
  const int device = device_of(op, "index", packed);
  require_device(op, "mask", given_mask, device, "index");
  const bool bytes =
      given_mask.scalar_type() == ScalarType::Bool || given_mask.scalar_type() == ScalarType::Byte;
  if (!bytes || given_mask.dim() != 2)
    core::fail(op, "a bool mask [block rows, block cols], one entry for each block",
               shape_of(given_mask) + " of torch.ScalarType " +
                   std::to_string(static_cast<int>(given_mask.scalar_type())),
               "pass mask.bool() with one entry for each block of the grid");
  TopologyTables tables;
  tables.block_rows = given_mask.size(0);
  tables.block_cols = given_mask.size(1);
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
  return {device, torch_executor(device), as_contiguous(given_mask), tables};
}

void set_topology(const Tensor& given_mask, const Tensor& packed, const Tensor& moved,
                  const Tensor& requested) {
  constexpr const char* op = "set_topology";
  const Change to = change_of(op, given_mask, packed, moved, requested);
  const Scratch workspace(op, set_topology_workspace(to.tables, to.executor), to.device);
  sparseloom::set_topology(static_cast<const std::uint8_t*>(to.mask.const_data_ptr()), to.tables,
                           workspace.span(), to.executor);
}

void update_topology(const Tensor& given_mask, const Tensor& packed, const Tensor& moved,
                     const Tensor& requested, const Tensor& flags) {
  constexpr const char* op = "update_topology";
  const Change to = change_of(op, given_mask, packed, moved, requested);
  std::int32_t* const bits = written(op, "flags", flags, 1, to.device);
  const Scratch workspace(op, set_topology_workspace(to.tables, to.executor), to.device);
  sparseloom::update_topology(static_cast<const std::uint8_t*>(to.mask.const_data_ptr()), to.tables, bits,
                              workspace.span(), to.executor);
}

// Contiguous numbers of one dtype on the index's device.
const void* numbers_of(const char* op, const char* name, const Tensor& tensor, ScalarType dtype,
                       std::int64_t expected, int device) {
  require_device(op, name, tensor, device, "index");
  if (tensor.scalar_type() != dtype || tensor.numel() != expected || !tensor.is_contiguous())
    core::fail(op,
               std::string(name) + ", contiguous " + (dtype == ScalarType::Double ? "float64" : "float32") +
                   " of " + std::to_string(expected) + " elements",
               "torch.ScalarType " + std::to_string(static_cast<int>(tensor.scalar_type())) + " of shape " +
                   shape_of(tensor),
               "convert it, or make it contiguous");
  return tensor.const_data_ptr();
}

void choose_blocks(const Tensor& packed, const Tensor& scores, std::optional<Tensor> growth,
                   const Tensor& budget, const Tensor& mask, const Tensor& flags) {
  constexpr const char* op = "choose_blocks";
  const int device = device_of(op, "index", packed);
  if (mask.dim() != 2 || mask.scalar_type() != ScalarType::Bool || !mask.is_contiguous())
    core::fail(op, "a contiguous bool mask [block rows, block cols]", shape_of(mask),
               "make it with torch.empty(grid, dtype=torch.bool)");
  require_device(op, "mask", mask, device, "index");
  BlockChoice choice;
  choice.block_rows = mask.size(0);
  choice.block_cols = mask.size(1);
  choice.capacity = scores.numel();
  const IndexSegments at = index_segments(choice.block_rows, choice.block_cols, choice.capacity);
  const std::int32_t* const index = indices_of(op, "index", packed, at.size, device, "scores");
  choice.crow = index + at.crow;
  choice.col = index + at.col;
  const auto floats = [&](const char* name, const Tensor& tensor, std::int64_t count) {
    return static_cast<const float*>(numbers_of(op, name, tensor, ScalarType::Float, count, device));
  };
  choice.scores = floats("scores", scores, choice.capacity);
  if (growth) choice.growth = floats("growth", *growth, choice.block_rows * choice.block_cols);
  choice.budget = static_cast<const double*>(numbers_of(op, "budget", budget, ScalarType::Double, 2, device));
  sparseloom::choose_blocks(choice, static_cast<std::uint8_t*>(mask.mutable_data_ptr()),
                            written(op, "flags", flags, 1, device), torch_executor(device));
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

// Fake (Meta) kernels, which torch's compilers call, and torch itself if a single operand is on meta. There
// are no results, and the tensors that are written have their shapes already.
void require_all_on_meta(const char* op, std::initializer_list<std::pair<const char*, const Tensor&>> all) {
  const auto on_meta = [](const Tensor& tensor) { return !tensor.is_cpu() && !tensor.is_cuda(); };
  const auto place = [&](const Tensor& tensor) {
    return on_meta(tensor) ? std::string("meta") : ops::place(device_of("", "", tensor));
  };
  const auto& [first, like] = *all.begin();
  for (const auto& [name, tensor] : all)
    if (on_meta(tensor) != on_meta(like))
      core::fail(op, std::string(name) + " on " + place(like) + ", as " + first, place(tensor),
                 "move the module to one device with .to()");
}
void no_topology(const Tensor& mask, const Tensor& index, const Tensor& moved, const Tensor& requested) {
  require_all_on_meta("set_topology",
                      {{"mask", mask}, {"index", index}, {"moved", moved}, {"requested", requested}});
}
void no_move(const Tensor& values, const Tensor& moved) {
  require_all_on_meta("move_blocks", {{"values", values}, {"moved", moved}});
}
void no_update(const Tensor& mask, const Tensor& index, const Tensor& moved, const Tensor& requested,
               const Tensor& flags) {
  require_all_on_meta(
      "update_topology",
      {{"mask", mask}, {"index", index}, {"moved", moved}, {"requested", requested}, {"flags", flags}});
}
void no_choice(const Tensor& index, const Tensor& scores, std::optional<Tensor> growth, const Tensor& budget,
               const Tensor& mask, const Tensor& flags) {
  require_all_on_meta("choose_blocks", {{"index", index},
                                        {"scores", scores},
                                        {"growth", growth ? *growth : index},
                                        {"budget", budget},
                                        {"mask", mask},
                                        {"flags", flags}});
}

}  // namespace
}  // namespace sparseloom::binding

SPARSELOOM_TORCH_LIBRARY_IMPL(Meta, m) {
  m.impl("set_topology", TORCH_BOX(&sparseloom::binding::no_topology));
  m.impl("move_blocks", TORCH_BOX(&sparseloom::binding::no_move));
  m.impl("update_topology", TORCH_BOX(&sparseloom::binding::no_update));
  m.impl("choose_blocks", TORCH_BOX(&sparseloom::binding::no_choice));
}

SPARSELOOM_TORCH_LIBRARY_IMPL(CPU, m) {
  m.impl("set_topology", TORCH_BOX(&sparseloom::binding::set_topology));
  m.impl("move_blocks", TORCH_BOX(&sparseloom::binding::move_blocks));
  m.impl("update_topology", TORCH_BOX(&sparseloom::binding::update_topology));
  m.impl("choose_blocks", TORCH_BOX(&sparseloom::binding::choose_blocks));
}

SPARSELOOM_TORCH_LIBRARY_IMPL(CUDA, m) {
  m.impl("set_topology", TORCH_BOX(&sparseloom::binding::set_topology));
  m.impl("move_blocks", TORCH_BOX(&sparseloom::binding::move_blocks));
  m.impl("update_topology", TORCH_BOX(&sparseloom::binding::update_topology));
  m.impl("choose_blocks", TORCH_BOX(&sparseloom::binding::choose_blocks));
}
