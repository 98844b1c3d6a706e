// One convolution of small integers as the tests of bsr_conv's CUDA kernels see it: a random pattern,
// operands between guards on the device, and the exact answer.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/args.h"
#include "kernels/bsr_conv/walk.h"
#include "kernels/cuda/on_gpu.h"
#include "kernels/matrix.h"

namespace sparseloom::testing {

struct ConvCase {
  Direction direction = Direction::forward;
  DType dtype = DType::bf16;
  kernels::conv::Shape shape;  // `out` of each axis follows from the others
  std::int64_t rows = 0, cols = 0;
  BlockShape block;
  double density = 0.5;
  bool bias = false, residual = false, relu = false;
  std::int64_t padding = 0;  // elements behind each pixel of each tensor
  bool accumulate = false;   // dw
  std::uint64_t seed = 1;
};

std::string describe(const ConvCase& c);

/// One axis; its output extent follows.
kernels::conv::Axis axis_of(int in, int kernel, int stride = 1, int padding = 0, int dilation = 1);

/// Sets up the call, runs `launch` and compares every element with the exact sums, rounded once. `launch`
/// gets the call without a workspace; workspace(args) says how many bytes the call needs. `special` puts an
/// Inf and a NaN into channels that no stored block reads, which must not show.
class ConvCall {
 public:
  explicit ConvCall(const ConvCase& c, bool special = false);

  template <class Launch>
  void check(std::size_t workspace_bytes, Launch launch) {
    const std::vector<std::byte> poison(workspace_bytes, std::byte{0xff});
    const OnGpu workspace(poison);
    args_.workspace = workspace.get();
    ASSERT_EQ(launch(args_, c_.shape), 0) << describe(c_);
    EXPECT_CUDA(cudaDeviceSynchronize());
    compare();
    workspace.read();
  }

  const MatmulArgs& args() const { return args_; }

 private:
  void fill_index();
  void find_answer();
  void compare() const;

  std::int64_t in_pixels() const;
  std::int64_t out_pixels() const;

  ConvCase c_;
  std::vector<std::int32_t> crow_, col_, ccol_, row_, slot_;
  std::vector<double> x_, dy_, values_, bias_, residual_, before_, answer_;
  std::int64_t answer_rows_ = 0, answer_cols_ = 0, answer_stride_ = 0;
  DType answer_dtype_ = DType::bf16;
  std::vector<std::unique_ptr<OnGpu>> memory_;
  OnGpu* out_ = nullptr;
  MatmulArgs args_;
};

}  // namespace sparseloom::testing
