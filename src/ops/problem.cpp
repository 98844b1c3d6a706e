// The steps of make_plan for the problems of both verbs.
#include "ops/problem.h"

#include <algorithm>
#include <string>

#include "core/check.h"
#include "ops/checks.h"
#include "ops/valid_index.h"
#include "sparseloom/matrix_view.h"

namespace sparseloom::ops {

void describe_index(const IndexView& index, DType dtype, std::int64_t m, CommonProblem& problem) {
  problem.dtype = dtype;
  problem.m = m;
  problem.rows = index.rows;
  problem.cols = index.cols;
  problem.block = index.block;
  problem.blocks = index.blocks;
}

bool packed_is_aligned(DType dtype, std::int64_t rows, std::int64_t features) {
  return is_aligned({nullptr, dtype, std::max<std::int64_t>(rows, 0), features, features});
}

void complete(CommonProblem& problem, const IndexView& index, const Executor& executor) {
  problem.device = executor.device;
  problem.threads = problem.device >= 0 ? 1 : std::max(1, executor.num_threads);
  if (problem.device < 0) problem.facts = {}, problem.aligned = problem.out_aligned = true;
  const bool same = problem.rows == index.rows && problem.cols == index.cols &&
                    problem.block == index.block && problem.blocks == index.blocks;
  if (!same)
    core::fail("plan",
               "a problem of the index's shape " + core::shape(index.rows, index.cols) + " with " +
                   std::to_string(index.blocks) + " blocks",
               core::shape(problem.rows, problem.cols) + " with " + std::to_string(problem.blocks),
               "fill the problem from the same matrix");
  require_known("plan", Direction::forward, problem.dtype, problem.activation);
  require_sizes("plan", problem.m, problem.rows, problem.cols);
}

void require_valid(const CommonProblem& problem, const IndexView& index) {
  if (problem.device >= 0) return;
  require_valid("plan", index);
}

}  // namespace sparseloom::ops
