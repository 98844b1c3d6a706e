// The checks, arguments and launches that the calls of both verbs (linear of any kind, linear_dx, linear_dw)
// share.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <span>

#include "ops/block_row_hints.h"
#include "ops/checks.h"
#include "runtime/cuda.h"
#include "sparseloom/bsr_linear.h"
#include "sparseloom/executor.h"
#include "sparseloom/layout.h"

namespace sparseloom::ops {

void check_matrix(const char* op, const char* name, const ConstMatrixView& matrix, std::int64_t rows,
                  std::int64_t cols, DType dtype);

/// Checks index, workspace and the executor's device.
void check_call(const char* op, const CommonProblem& problem, const Choice& plan, const IndexView& index,
                std::span<std::byte> workspace, const Executor& executor);

void check_bias(const char* op, const CommonProblem& problem, const void* bias);

/// Checks the memory of values (or dvalues, by `name`), of the problem's number of blocks.
void check_values(const char* op, const char* name, const CommonProblem& problem, const void* values);
/// Checks the memory of the column index, and in host memory its content.
void check_transposed(const char* op, const CommonProblem& problem, const IndexView& index,
                      const TransposedView& transposed);

/// Refuses operands that are less aligned than planned, if the kernel depends on it.
void check_aligned(const char* op, const Choice& plan, bsr_linear::Aligned needs, const void* values,
                   std::initializer_list<ConstMatrixView> read,
                   std::initializer_list<ConstMatrixView> written);

template <class V>
void check_aligned(const char* op, const PlanOf<V>& plan, const void* values,
                   std::initializer_list<ConstMatrixView> read,
                   std::initializer_list<ConstMatrixView> written) {
  check_aligned(op, plan, plan.chosen->traits.alignment_of(plan.problem), values, read, written);
}

/// The distance between rows, in elements. For a single row it is rounded to a multiple of 16 bytes, because
/// the copy engine needs a stride anyway.
std::int64_t row_distance(const ConstMatrixView& matrix);

/// The kernel arguments that both verbs fill in.
MatmulArgs arguments(const CommonProblem& problem, const IndexView& index, const ConstMatrixView& a,
                     std::span<std::byte> workspace, const Executor& executor);

template <class V>
void launch(const char* op, const PlanOf<V>& plan, MatmulArgs args, const Executor& executor) {
  const runtime::CudaDeviceScope scope(executor.device);
  const auto hints = block_row_hints(plan.problem, args.direction, plan.schedule.groups, args.index);
  if (hints != nullptr) {
    args.block_row_order = hints->order.empty() ? nullptr : hints->order.data();
    args.uneven_block_rows = hints->uneven;
    args.uneven_groups = hints->uneven_groups;
  }
  require_queued(op, plan.launch(args, executor), executor, plan.kernel_name);
}

}  // namespace sparseloom::ops
