// The operators gate_blocks and gate_gradients.
#include "sparseloom/gates.h"

#include <tuple>

#include "convert.h"
#include "core/check.h"
#include "executor.h"
#include "operands.h"
#include "registration.h"
#include "scratch.h"
#include "sparseloom/packed_index.h"

namespace sparseloom::binding {
namespace {

// Gates, contiguous.
Tensor gates_of(const char* op, const Tensor& gates, std::int64_t blocks, int device) {
  require_device(op, "gates", gates, device, "values");
  if (gates.scalar_type() != ScalarType::Float || gates.dim() != 1 || gates.size(0) != blocks)
    core::fail(
        op, "gates of float32 [" + std::to_string(blocks) + "], one for each stored block",
        shape_of(gates) + " of torch.ScalarType " + std::to_string(static_cast<int>(gates.scalar_type())),
        "convert them with .float()");
  return as_contiguous(gates);
}

std::tuple<Tensor, Tensor, Tensor> gate_blocks(const Tensor& given_values, const Tensor& packed,
                                               const Tensor& given_gates, std::int64_t rows,
                                               std::int64_t cols) {
  constexpr const char* op = "gate_blocks";
  const int device = device_of(op, "values", given_values);
  const DType dtype = dtype_of(op, "values", given_values);
  const Tensor values = as_contiguous(given_values);
  const BlockShape block = block_of_values(op, values);
  const IndexView index =
      index_of(op, packed, values.size(0), rows, cols, block, device, "values", {.columns = true});
  const void* data = values_of(op, values, index);
  const Tensor gates = gates_of(op, given_gates, index.blocks, device);
  const Executor executor = torch_executor(device);
  const Scratch workspace(op, gate_blocks_workspace(index, executor), device);
  const auto lists = [&](std::int64_t size) { return new_tensor(op, {size}, ScalarType::Int, device); };
  Tensor gated_index = lists(index_segments(index.block_rows(), index.block_cols(), index.blocks).size);
  Tensor gated_values = new_like(op, values, sizes_of(values)), place = lists(index.blocks);
  sparseloom::gate_blocks(
      index, column_index(index), dtype, data, static_cast<const float*>(gates.const_data_ptr()),
      {static_cast<std::int32_t*>(gated_index.mutable_data_ptr()), gated_values.mutable_data_ptr(),
       static_cast<std::int32_t*>(place.mutable_data_ptr())},
      workspace.span(), executor);
  if (device >= 0) {  // the host need not read what the kernel wrote
    const auto segments = index_segments(index.block_rows(), index.block_cols(), index.blocks);
    IndexView gated = index;
    gated.crow = static_cast<const std::int32_t*>(gated_index.const_data_ptr());
    gated.col = gated.crow + segments.col;
    take_packed_as_valid(op, gated_index, gated, device, true);
  }
  return {gated_index, gated_values, place};
}

std::tuple<Tensor, Tensor> gate_gradients(const Tensor& given_gradient, const Tensor& given_values,
                                          const Tensor& given_gates, const Tensor& place, bool need_values,
                                          bool need_gates) {
  constexpr const char* op = "gate_gradients";
  const int device = device_of(op, "values", given_values);
  const Tensor values = as_contiguous(given_values), gradient = as_contiguous(given_gradient);
  GateGradients call;
  call.dtype = dtype_of(op, "values", values);
  call.block = block_of_values(op, values);
  call.blocks = values.size(0);
  require_device(op, "gradient", gradient, device, "values");
  require_same_dtype(op, call.dtype, "gradient", gradient);
  if (sizes_of(gradient) != sizes_of(values))
    core::fail(op, "a gradient of the values' shape " + shape_of(values), shape_of(gradient),
               "pass dW at the blocks that gate_blocks returned");
  const Tensor gates = gates_of(op, given_gates, call.blocks, device);
  call.values = values.const_data_ptr();
  call.gradient = gradient.const_data_ptr();
  call.gates = static_cast<const float*>(gates.const_data_ptr());
  call.place = indices_of(op, "place", place, call.blocks, device, "values");
  Tensor dvalues = new_like(op, values, need_values ? sizes_of(values) : std::vector<std::int64_t>{0, 0, 0});
  Tensor dgates = new_tensor(op, {need_gates ? call.blocks : 0}, ScalarType::Float, device);
  if (need_values) call.dvalues = dvalues.mutable_data_ptr();
  if (need_gates) call.dgates = static_cast<float*>(dgates.mutable_data_ptr());
  sparseloom::gate_gradients(call, torch_executor(device));
  return {dvalues, dgates};
}

}  // namespace
}  // namespace sparseloom::binding

SPARSELOOM_TORCH_LIBRARY_IMPL(CPU, m) {
  m.impl("gate_blocks", TORCH_BOX(&sparseloom::binding::gate_blocks));
  m.impl("gate_gradients", TORCH_BOX(&sparseloom::binding::gate_gradients));
}

SPARSELOOM_TORCH_LIBRARY_IMPL(CUDA, m) {
  m.impl("gate_blocks", TORCH_BOX(&sparseloom::binding::gate_blocks));
  m.impl("gate_gradients", TORCH_BOX(&sparseloom::binding::gate_gradients));
}
