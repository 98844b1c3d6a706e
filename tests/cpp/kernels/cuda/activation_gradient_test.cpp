// The pass before a backward pass's products, against fp64: dz, its column sums, what it may write, and its
// bits in every run.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "kernels/cuda/device_call.h"
#include "kernels/shared/activation/activation.h"
#include "sparseloom/generic/scalar.h"

namespace sparseloom::testing {
namespace {

namespace cuda = kernels::cuda;

/// A matrix's image, its guards and gaps among it, on the device.
class OnTheDevice {
 public:
  explicit OnTheDevice(const std::vector<std::byte>& bytes) : size_(bytes.size()) {
    EXPECT_CUDA(cudaMalloc(&data_, size_));
    EXPECT_CUDA(cudaMemcpy(data_, bytes.data(), size_, cudaMemcpyHostToDevice));
    EXPECT_CUDA(cudaDeviceSynchronize());  // the copy may still be under way, and the test's stream does not
                                           // wait for it
  }
  ~OnTheDevice() { cudaFree(data_); }
  OnTheDevice(const OnTheDevice&) = delete;
  OnTheDevice& operator=(const OnTheDevice&) = delete;
  MatrixView view(const Matrix& matrix) const {
    auto* const first =
        static_cast<std::byte*>(data_) + matrix.offset * static_cast<std::int64_t>(size_of(matrix.dtype));
    return {first, matrix.dtype, matrix.rows, matrix.cols, matrix.stride};
  }
  std::byte* data() const { return static_cast<std::byte*>(data_); }
  std::vector<std::byte> bytes() const {
    std::vector<std::byte> all(size_);
    EXPECT_CUDA(cudaMemcpy(all.data(), data_, size_, cudaMemcpyDeviceToHost));
    return all;
  }

 private:
  void* data_ = nullptr;
  std::size_t size_;
};

struct Shape {
  std::int64_t rows, cols, padding, offset;
};

void check(DType dtype, Activation activation, const Shape& shape, bool with_bias) {
  SCOPED_TRACE(std::string(name_of(activation)) + ", " + std::to_string(shape.rows) + " x " +
               std::to_string(shape.cols));
  const auto matrix = [&] { return Matrix(dtype, shape.rows, shape.cols, shape.padding, shape.offset); };
  Matrix dy = matrix(), saved = matrix(), dz = matrix(), dbias(dtype, 1, shape.cols, 0);
  for (std::int64_t r = 0; r < shape.rows; ++r)
    for (std::int64_t c = 0; c < shape.cols; ++c) {
      dy.set(r, c, static_cast<double>((r * 7 + c * 3) % 31 - 15) * 0.125);
      saved.set(r, c, static_cast<double>((r * 13 + c * 5) % 97 - 48) * 0.11);
    }
  const int multiprocessors = runtime::cuda_device(0).multiprocessors;
  const std::size_t scratch =
      cuda::sm80_activation_gradient_workspace(shape.rows, shape.cols, dtype, multiprocessors);
  const OnTheDevice device_dy(dy.bytes), device_saved(saved.bytes), device_dz(dz.bytes),
      device_dbias(dbias.bytes);
  const OnTheDevice workspace(std::vector<std::byte>(scratch + 256, std::byte{0xff}));
  cuda::ActivationGradientArgs args;
  args.activation = activation;
  args.dy = device_dy.view(dy);
  const bool with_dz = activation != Activation::none;
  if (with_dz) args.saved = device_saved.view(saved), args.dz = device_dz.view(dz);
  args.dbias = with_bias ? device_dbias.view(dbias).data : nullptr;
  args.workspace = workspace.data();
  args.multiprocessors = multiprocessors;
  const Stream stream;
  args.stream = stream.get();
  for (int run = 0; run < 3; ++run) {
    EXPECT_CUDA(cuda::sm80_activation_gradient(args));
    stream.wait();
    const auto now = device_dz.bytes(), sums = device_dbias.bytes();
    EXPECT_TRUE(run == 0 || (now == dz.bytes && sums == dbias.bytes)) << "other bits in another run";
    dz.bytes = now, dbias.bytes = sums;
  }
  EXPECT_TRUE(dz.padding_untouched() && dbias.padding_untouched());
  const auto after = workspace.bytes();
  for (std::size_t b = scratch; b < after.size(); ++b)
    ASSERT_EQ(after[b], std::byte{0xff}) << "overran its workspace";

  const double half_ulp = dtype == DType::f32 ? 0x1p-24 : dtype == DType::f16 ? 0x1p-11 : 0x1p-8;
  const double own = dtype == DType::f32 ? 4e-6 : 1.3e-4;  // of the derivative
  for (std::int64_t c = 0; c < shape.cols; ++c) {
    double sum = 0, magnitude = 0;
    for (std::int64_t r = 0; r < shape.rows; ++r) {
      const double expected = dy.at(r, c) * kernels::slope(activation, saved.at(r, c));
      sum += expected, magnitude += std::abs(dy.at(r, c));
      if (with_dz) {
        ASSERT_NEAR(dz.at(r, c), expected,
                    half_ulp * std::abs(expected) + own * std::abs(dy.at(r, c)) + 0x1p-25)
            << r << ", " << c;
      }
    }
    if (with_bias) {
      ASSERT_NEAR(dbias.at(0, c), sum, half_ulp * std::abs(sum) + own * magnitude + 0x1p-25)
          << "column " << c;
    } else {
      ASSERT_TRUE(std::isnan(dbias.at(0, c)));
    }
  }
}

class CudaSmallGradient : public ::testing::TestWithParam<DType> {};

TEST_P(CudaSmallGradient, MatchesFp64AndWritesNothingElse) {
  // One piece of the rows and several, whole vectors and not, gaps between rows, bases where no vector may
  // start.
  for (const Shape& shape : {Shape{1, 8, 0, 0}, Shape{5, 1, 0, 0}, Shape{9, 77, 3, 3}, Shape{128, 264, 0, 8},
                             Shape{129, 256, 0, 0}, Shape{1000, 520, 8, 0}, Shape{1000, 519, 0, 1}})
    for (const Activation activation : activations())
      for (const bool with_bias : {true, false})
        if (with_bias || activation != Activation::none) check(GetParam(), activation, shape, with_bias);
}

TEST_P(CudaSmallGradient, OfNoRowsTheSumsAreZero) {
  Matrix dbias(GetParam(), 1, 64, 0);
  const OnTheDevice device(dbias.bytes);
  cuda::ActivationGradientArgs args;
  args.dy = {nullptr, GetParam(), 0, 64, 64};
  args.dbias = device.view(dbias).data;
  EXPECT_CUDA(cuda::sm80_activation_gradient(args));
  EXPECT_CUDA(cudaDeviceSynchronize());
  dbias.bytes = device.bytes();
  for (std::int64_t c = 0; c < 64; ++c) EXPECT_EQ(dbias.at(0, c), 0);
  EXPECT_TRUE(dbias.padding_untouched());
}

std::vector<DType> float_types() {
  return when_devices(1).empty() ? std::vector<DType>{}
                                 : std::vector<DType>{DType::f32, DType::f16, DType::bf16};
}
INSTANTIATE_TEST_SUITE_P(, CudaSmallGradient, ::testing::ValuesIn(float_types()),
                         [](const auto& info) { return std::string(sparseloom::name_of(info.param)); });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaSmallGradient);

}  // namespace
}  // namespace sparseloom::testing
