// Multiplies with a block-sparse matrix, checks the result against plain loops and prints the kernel that
// ran.
#include <cmath>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "sparseloom/sparseloom.h"

namespace sl = sparseloom;

int main() {
  constexpr std::int64_t tokens = 50, rows = 200, cols = 328;  // ragged: neither is a multiple of 32
  const sl::BlockPattern pattern = sl::pattern::balanced(rows, cols, {32, 32}, 0.25, /*seed=*/1);

  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> weight(rows * cols), x(tokens * cols), bias(rows), y(tokens * rows);
  for (auto* filled : {&weight, &x, &bias}) {
    for (float& value : *filled) value = normal(random);
  }

  const sl::BsrMatrix w = sl::BsrMatrix::pack(sl::view(weight.data(), rows, cols), pattern);
  const sl::Executor threads = sl::Executor::pool(2);
  sl::Problem problem = sl::describe(w, sl::Direction::forward, tokens);
  problem.bias = true;
  problem.activation = sl::Activation::relu;
  const auto plan = sl::make_plan(problem, w, threads);
  std::printf("%s\n", plan->describe().c_str());

  sl::Workspace workspace;
  sl::linear(*plan, sl::view(x.data(), tokens, cols), w, bias.data(), sl::view(y.data(), tokens, rows),
             workspace, threads);

  double worst = 0;
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t r = 0; r < rows; ++r) {
      double sum = bias[r];
      for (std::int64_t c = 0; c < cols; ++c) {
        if (pattern.test(r / 32, c / 32)) sum += double{x[t * cols + c]} * weight[r * cols + c];
      }
      worst = std::fmax(worst, std::fabs(y[t * rows + r] - std::fmax(sum, 0.0)));
    }
  }
  std::printf("kernel %s, worst error %.2e\n", plan->kernel_name.c_str(), worst);

  // About 82 products of normals per output: fp32 rounding stays below 1e-4 by an order of magnitude.
  if (!(worst < 1e-4)) return std::fprintf(stderr, "wrong result\n"), 1;
  if (plan->kernel_name == "reference")
    return std::fprintf(stderr, "the reference kernel ran, a fast one was expected\n"), 1;

  try {
    sl::BlockPattern bad(rows, cols, {48, 32});
  } catch (const sl::Error& error) {  // across the library's boundary, with its parts
    std::printf("refused as it should be: %s\n", error.what());
    return error.remedy().empty() ? 1 : 0;
  }
  return std::fprintf(stderr, "a 48x32 block was accepted\n"), 1;
}
