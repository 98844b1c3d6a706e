// Forward of n:m:g output by output (outputs.h): several blocks and chunks, odd numbers of strips, chunks
// that fill no vector, tables of values that are gathered, and inputs that are not finite.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "core/backwards.h"
#include "core/rng.h"
#include "sparseloom/generic/scalar.h"
#include "sparseloom/nm_ops.h"
#include "sparseloom/nmg_linear.h"

namespace sparseloom {
namespace {

struct Shape {
  std::int64_t rows, cols, n, m, g, tokens;
};
// Tiles of three and of four vectors, and a last one of one; 18, 20, 64, 128 and 192 outputs a chunk.
constexpr Shape kShapes[] = {{70, 301, 2, 4, 3, 70},   {90, 333, 1, 4, 5, 70},   {200, 130, 1, 4, 16, 150},
                             {260, 300, 1, 8, 16, 66}, {200, 260, 1, 24, 8, 49}, {30, 70, 1, 3, 1, 81},
                             {45, 50, 2, 5, 2, 33},    {33, 66, 2, 2, 8, 65}};

class NmgOutputs : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Dtypes, NmgOutputs, ::testing::Values(DType::f32, DType::f16, DType::bf16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

/// x with one input that is Inf reaches the outputs that store it and no others.
TEST_P(NmgOutputs, AreThoseOfFp64AndOfTheStoredInputsAlone) {
  const DType dtype = GetParam();
  const std::size_t size = size_of(dtype);
  const double eps = dtype == DType::f32 ? 0x1p-23 : dtype == DType::f16 ? 0x1p-10 : 0x1p-7;
  for (const Shape& s : kShapes) {
    core::Rng rng(21);
    std::vector<float> dense(static_cast<std::size_t>(s.rows * s.cols));
    for (float& value : dense) value = static_cast<float>(2 * rng.uniform() - 1);
    NmgView w = nmg_view("test", s.rows, s.cols, s.n, s.m, s.g);
    std::vector<std::int16_t> order(static_cast<std::size_t>(w.chunks() * w.strips() * w.chunk_rows()));
    nmg_order(view(dense.data(), s.rows, s.cols), w, order.data(), Executor::serial());
    w.order = order.data();
    std::vector<float> packed(static_cast<std::size_t>(Nmg::stored(w)));
    nmg_pack(view(dense.data(), s.rows, s.cols), w, packed.data(), Executor::serial());
    std::vector<std::byte> values(packed.size() * size),
        x(static_cast<std::size_t>(s.tokens * s.cols) * size);
    for (std::size_t i = 0; i < packed.size(); ++i) kernels::store(dtype, values.data(), i, packed[i]);
    for (std::int64_t i = 0; i < s.tokens * s.cols; ++i)
      kernels::store(dtype, x.data(), i, 2 * rng.uniform() - 1);
    // The last strip may have no other that it makes pairs with.
    const std::int64_t token = s.tokens - 1, input = (s.cols - 1) / s.m * s.m;
    kernels::store(dtype, x.data(), token * s.cols + input, std::numeric_limits<double>::infinity());
    for (const char* kernel : {"avx512bf16_grouped", "avx512_grouped", "avx2_grouped"})
      for (int threads : {1, 3}) {
        const Executor executor = testing::backwards(threads);
        const auto problem = NmgLinear::describe(w, Direction::forward, dtype, s.tokens);
        const auto open = NmgLinear::plan(problem, executor);
        const auto found = std::find_if(open->candidates.begin(), open->candidates.end(),
                                        [&](const Candidate& each) { return each.kernel == kernel; });
        if (found == open->candidates.end() || !found->refusal.empty()) continue;
        const auto plan = NmgLinear::plan(problem, executor, kernel);
        std::vector<std::byte> y(static_cast<std::size_t>(s.tokens * s.rows) * size);
        Workspace workspace;
        MatmulArgs args;
        args.a = x.data(), args.a_stride = s.cols, args.values = values.data();
        args.out = y.data(), args.out_stride = s.rows;
        NmgLinear::run(*plan, args, w, workspace.at_least(plan->workspace_bytes), executor);
        for (std::int64_t row = 0; row < s.rows; ++row) {
          std::vector<std::pair<std::int64_t, double>> stored;
          Nmg::for_each_in_row(w, row, [&](std::int64_t col, std::int64_t slot) {
            stored.emplace_back(col, kernels::load(dtype, values.data(), slot));
          });
          for (std::int64_t t = 0; t < s.tokens; ++t) {
            double sum = 0, norm = 0;
            for (const auto& [col, value] : stored) {
              const double product = kernels::load(dtype, x.data(), t * s.cols + col) * value;
              sum += product, norm += std::fabs(product);
            }
            const double got = kernels::load(dtype, y.data(), t * s.rows + row);
            const std::string what = std::string(kernel) + " " + std::to_string(s.n) + ":" +
                                     std::to_string(s.m) + ":" + std::to_string(s.g) + " token " +
                                     std::to_string(t) + " output " + std::to_string(row);
            if (std::isinf(sum))
              ASSERT_EQ(got, sum) << what;
            else
              ASSERT_NEAR(got, sum, eps * std::fabs(sum) + 0x1p-21 * norm) << what;
          }
        }
      }
  }
}

}  // namespace
}  // namespace sparseloom
