// gate_blocks and gate_gradients: checks, the work on the CPU, and the launches on CUDA.
#include "sparseloom/gates.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "core/check.h"
#include "kernels/shared/bsr/gates.h"
#include "ops/block_row_hints.h"
#include "ops/checks.h"
#include "ops/valid_index.h"
#include "runtime/cuda.h"
#include "sparseloom/generic/half.h"
#include "sparseloom/generic/parallel.h"
#include "sparseloom/packed_index.h"

namespace sparseloom {
namespace {

float as_f32(float x) { return x; }
float as_f32(core::F16 x) { return core::to_f32(x); }
float as_f32(core::Bf16 x) { return core::to_f32(x); }
void round_to(float& to, float x) { to = x; }
void round_to(core::F16& to, float x) { to = core::to_f16(x); }
void round_to(core::Bf16& to, float x) { to = core::to_bf16(x); }

template <class Body>
void with_element(const char* op, DType dtype, Body body) {
  switch (dtype) {
    case DType::f32: return body(float{});
    case DType::f16: return body(core::F16{});
    case DType::bf16: return body(core::Bf16{});
    default: core::fail(op, "values of f32, f16 or bf16", name_of(dtype), "convert them with .float()");
  }
}

// Runs body(i) for all blocks; on this thread alone if the others come later than they would save.
template <class Body>
void each_block(const Executor& executor, std::int64_t blocks, std::int64_t elements, const Body& body) {
  constexpr double kElementUs = 3e-4;  // per element, on one thread
  const double us = static_cast<double>(blocks * elements) * kElementUs;
  runtime::parallel_tasks(runtime::if_worth_it(executor, us), blocks, body);
}

// The index of the live blocks.
void write_index(const IndexView& index, const TransposedView& transposed, const float* gates,
                 const GatedBlocks& gated) {
  const std::int64_t rows = index.block_rows(), cols = index.block_cols();
  const IndexSegments at = index_segments(rows, cols, index.blocks);
  std::fill_n(gated.index, at.size, 0);
  std::int32_t *crow = gated.index + at.crow, *ccol = gated.index + at.ccol;
  std::int32_t live = 0;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int32_t i = index.crow[r]; i < index.crow[r + 1]; ++i) {
      gated.place[i] = gates[i] != 0 ? live : -1;
      if (gates[i] != 0) gated.index[at.col + live++] = index.col[i];
    }
    crow[r + 1] = live;
  }
  live = 0;
  for (std::int64_t c = 0; c < cols; ++c) {
    for (std::int32_t t = transposed.ccol[c]; t < transposed.ccol[c + 1]; ++t) {
      const std::int32_t place = gated.place[transposed.slot[t]];
      if (place < 0) continue;
      gated.index[at.row + live] = transposed.row[t];
      gated.index[at.slot + live++] = place;
    }
    ccol[c + 1] = live;
  }
}

template <class T>
void write_values(const IndexView& index, const T* values, const float* gates, const GatedBlocks& gated,
                  const Executor& executor) {
  const std::int64_t
      size = index.block_elements(),
      live = gated.index[index_segments(index.block_rows(), index.block_cols(), index.blocks).crow +
                         index.block_rows()];
  auto* to = static_cast<T*>(gated.values);
  each_block(executor, index.blocks, size, [&](std::int64_t i) {
    if (i >= live) std::fill_n(to + i * size, size, T{});  // a free slot, which no other task writes
    if (gated.place[i] < 0) return;
    T* const own = to + gated.place[i] * size;
    for (std::int64_t e = 0; e < size; ++e) round_to(own[e], gates[i] * as_f32(values[i * size + e]));
  });
}

template <class T>
void write_gradients(const GateGradients& call, const Executor& executor) {
  const std::int64_t size = std::int64_t{call.block.rows} * call.block.cols;
  each_block(executor, call.blocks, size, [&](std::int64_t i) {
    const std::int32_t place = call.place[i];
    const T* gradient = static_cast<const T*>(call.gradient) + std::max(place, 0) * size;
    if (call.dvalues != nullptr) {
      T* const to = static_cast<T*>(call.dvalues) + i * size;
      if (place < 0) std::fill_n(to, size, T{});
      for (std::int64_t e = 0; place >= 0 && e < size; ++e)
        round_to(to[e], call.gates[i] * as_f32(gradient[e]));
    }
    if (call.dgates != nullptr) {
      const T* values = static_cast<const T*>(call.values) + i * size;
      double sum = 0;
      for (std::int64_t e = 0; place >= 0 && e < size; ++e)
        sum += static_cast<double>(as_f32(gradient[e])) * static_cast<double>(as_f32(values[e]));
      call.dgates[i] = static_cast<float>(sum);
    }
  });
}

}  // namespace

std::size_t gate_blocks_workspace(const IndexView&, const Executor& executor) {
  if (executor.device >= 0) ops::require_gpu("gate_blocks", executor);
  return 0;
}

void gate_blocks(const IndexView& index, const TransposedView& transposed, DType dtype, const void* values,
                 const float* gates, const GatedBlocks& gated, std::span<std::byte> workspace,
                 const Executor& executor) {
  constexpr const char* op = "gate_blocks";
  const std::size_t bytes = gate_blocks_workspace(index, executor);
  const bool stores = index.blocks > 0;
  core::require_memory(op, {{"crow", index.crow},
                            {"col", index.col, stores},
                            {"ccol", transposed.ccol},
                            {"row", transposed.row, stores},
                            {"slot", transposed.slot, stores},
                            {"values", values, stores},
                            {"gates", gates, stores},
                            {"the gated index", gated.index},
                            {"the gated values", gated.values, stores},
                            {"place", gated.place, stores}});
  if (!ops::lends(workspace, bytes, 16))
    core::fail(op, std::to_string(bytes) + " bytes of workspace, aligned to 16",
               std::to_string(workspace.size()) + " bytes", "lend them from an aligned allocation");
  with_element(op, dtype, [&]<class T>(T) {
    if (executor.device >= 0) return;
    ops::require_valid(op, index, transposed);
    write_index(index, transposed, gates, gated);
    write_values(index, static_cast<const T*>(values), gates, gated, executor);
  });
#ifdef SPARSELOOM_HAVE_CUDA
  if (executor.device < 0) return;
  const runtime::CudaDeviceScope scope(executor.device);
  ops::require_queued(
      op, kernels::cuda::sm80_gate_blocks(index, transposed, dtype, values, gates, gated, executor.stream),
      executor);
  ops::share_hints(index,
                   gated.index + index_segments(index.block_rows(), index.block_cols(), index.blocks).crow,
                   executor.device);
#endif
}

void gate_gradients(const GateGradients& call, const Executor& executor) {
  constexpr const char* op = "gate_gradients";
  if (executor.device >= 0) ops::require_gpu(op, executor);
  require_supported(op, call.block);
  if (call.blocks < 0)
    core::fail(op, "0 or more blocks", std::to_string(call.blocks), "pass the weight's stored blocks");
  const bool stores = call.blocks > 0;
  core::require_memory(op, {{"gates", call.gates, stores && call.dvalues != nullptr},
                            {"values", call.values, stores && call.dgates != nullptr},
                            {"place", call.place, stores},
                            {"gradient", call.gradient, stores}});
  with_element(op, call.dtype, [&]<class T>(T) {
    if (executor.device >= 0) return;
    ops::require_valid_places(op, {call.place, static_cast<std::size_t>(call.blocks)});
    write_gradients<T>(call, executor);
  });
#ifdef SPARSELOOM_HAVE_CUDA
  if (executor.device < 0) return;
  const runtime::CudaDeviceScope scope(executor.device);
  ops::require_queued(op, kernels::cuda::sm80_gate_gradients(call, executor.stream), executor);
#endif
}

}  // namespace sparseloom
