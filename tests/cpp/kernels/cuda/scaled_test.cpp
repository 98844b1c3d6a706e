// float8_e4m3fn products on the GPU: every kernel that takes them, against fp64, on allocations of their
// exact size and poisoned outputs. CudaSmallScaled is the subset for compute-sanitizer.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "kernels/bsr_linear/cuda/rows.h"
#include "kernels/cuda/device_call.h"
#include "kernels/scaled_case.h"
#include "sparseloom/generic/half.h"

namespace sparseloom::testing {
namespace {

/// Device memory with a copy of `bytes` bytes; freed with it.
class Copy {
 public:
  Copy(const void* from, std::size_t bytes) {
    if (bytes == 0) return;
    EXPECT_CUDA(cudaMalloc(&data_, bytes));
    EXPECT_CUDA(cudaMemcpy(data_, from, bytes, cudaMemcpyHostToDevice));
  }
  ~Copy() { cudaFree(data_); }
  Copy(const Copy&) = delete;
  Copy& operator=(const Copy&) = delete;
  template <class T>
  T* at(std::int64_t i = 0) const {
    return data_ == nullptr ? nullptr : static_cast<T*>(data_) + i;
  }

 private:
  void* data_ = nullptr;
};

template <class T>
Copy copy_of(const std::vector<T>& list) {
  return Copy(list.data(), list.size() * sizeof(T));
}

// The matrix less the guard behind it, so that a sanitizer sees what reads there.
Copy copy_of(const Matrix& matrix) { return Copy(matrix.bytes.data(), matrix.bytes.size() - kGuard); }

Matrix run(ScaledInstance& instance, const kernels::ScaledKernel& kernel, int device) {
  const runtime::CudaDeviceScope scope(device);
  const Copy x = copy_of(instance.x), values = copy_of(instance.values), bias = copy_of(instance.bias),
             crow = copy_of(instance.crow), col = copy_of(instance.col), x_scale = copy_of(instance.x_scale),
             w_scale = copy_of(instance.w_scale);
  Matrix result(instance.c.out, instance.c.m, instance.c.rows, instance.c.stride_padding);
  const Copy out = copy_of(result);
  const auto size = static_cast<std::int64_t>(size_of(instance.c.out));
  MatmulArgs args = instance.args();
  args.a = x.at<std::byte>(instance.x.offset);
  args.values = values.at<std::byte>(instance.values.offset);
  args.bias = instance.c.bias ? bias.at<std::byte>(instance.bias.offset * size) : nullptr;
  args.index.crow = crow.at<std::int32_t>(), args.index.col = col.at<std::int32_t>();
  args.a_scale = x_scale.at<float>(), args.w_scale = w_scale.at<float>();
  args.out = out.at<std::byte>(result.offset * size), args.out_stride = result.stride;
  // An order of the block rows, where the kernel takes one, must not show.
  std::vector<std::uint16_t> order(static_cast<std::size_t>(args.index.block_rows()));
  std::iota(order.rbegin(), order.rend(), std::uint16_t{0});
  ScaledProblem problem = instance.problem(1);
  problem.device = device;
  const Schedule schedule =
      kernels::bsr_linear::ask(kernel, problem, {runtime::Isa::generic, {}, runtime::cuda_device(device)})
          .schedule;
  if (schedule.groups.block_rows > 0) args.block_row_order = order.data();
  const Stream stream(device);
  args.device = device, args.stream = stream.get();
  EXPECT_CUDA(cudaDeviceSynchronize());  // the copies above came by the default stream, which this one does
                                         // not wait for
  EXPECT_CUDA(kernel.launch(args, schedule, Executor::cuda(device, stream.get()))) << kernel.name;
  stream.wait();
  EXPECT_CUDA(cudaMemcpy(result.bytes.data(), out.at<std::byte>(), result.bytes.size() - kGuard,
                         cudaMemcpyDeviceToHost));
  EXPECT_TRUE(result.padding_untouched())
      << kernel.name << " wrote outside the output: " << describe(instance.c);
  return result;
}

/// The tensor cores align the 32 products of an instruction to the largest and drop what lies 13 bits below:
/// some 2^-11 of it over the 32, and no more of the sum of magnitudes over the 64 or 128 inputs that are one
/// sum before they are added up in fp32. Three times that: one element in four million of sums over 128
/// passed 2.4 times.
constexpr double kAligned = 0x1p-10;

/// With fast_accum every instruction's 32 products are aligned to the sum so far, too.
double aligned(const ScaledCase& c, std::int64_t blocks) {
  return c.fast_accum ? kAligned * std::max(1.0, static_cast<double>(blocks * c.block.cols) / 128) : kAligned;
}

void expect_near(ScaledInstance& instance, const Matrix& out) {
  const ScaledCase& c = instance.c;
  const double out_ulp = c.out == DType::bf16 ? 0x1p-8 : 0x1p-24;
  std::vector<float> inputs;  // [cols, m]
  for (std::int64_t i = 0; i < c.cols; ++i)
    for (std::int64_t t = 0; t < c.m; ++t) inputs.push_back(static_cast<float>(instance.x.at(t, i)));
  for (std::int64_t o = 0; o < c.rows; ++o) {
    const std::int64_t r = o / c.block.rows;
    const std::int64_t blocks =
        instance.crow[static_cast<std::size_t>(r) + 1] - instance.crow[static_cast<std::size_t>(r)];
    const double ws = instance.w_scale[c.w_each ? static_cast<std::size_t>(o) : 0],
                 b = c.bias ? instance.bias.at(0, o) : 0;
    std::vector<double> sum(static_cast<std::size_t>(c.m)), norm(static_cast<std::size_t>(c.m));
    for (std::int64_t block = instance.crow[static_cast<std::size_t>(r)];
         block < instance.crow[static_cast<std::size_t>(r) + 1]; ++block)
      for (std::int64_t i = 0; i < c.block.cols; ++i) {
        const std::int64_t column =
            instance.col[static_cast<std::size_t>(block)] * std::int64_t{c.block.cols} + i;
        if (column >= c.cols) break;
        const double w = instance.values.at(block * c.block.rows + o % c.block.rows, i);
        const float* const input = inputs.data() + column * c.m;
        for (std::size_t t = 0; t < sum.size(); ++t) {
          const double product = input[t] * w;
          sum[t] += product, norm[t] += std::abs(product);
        }
      }
    for (std::int64_t t = 0; t < c.m; ++t) {
      const double scale =
          static_cast<double>(instance.x_scale[c.x_each ? static_cast<std::size_t>(t) : 0]) * ws;
      const double exact = activate(c.activation, scale * sum[static_cast<std::size_t>(t)] + b);
      const double terms = std::abs(scale) * norm[static_cast<std::size_t>(t)];
      ASSERT_NEAR(
          out.at(t, o), exact,
          out_ulp * std::abs(exact) + 1.5 * aligned(c, blocks) * terms + 0x1p-20 * std::abs(b) + 1e-37)
          << describe(c) << " at " << t << ", " << o;
    }
  }
}

std::vector<const kernels::ScaledKernel*> runnable(const ScaledInstance& instance, int device) {
  const ScaledCase& c = instance.c;
  const std::int64_t padding = c.stride_padding, out_size = static_cast<std::int64_t>(size_of(c.out));
  ScaledProblem problem = instance.problem(1);
  problem.device = device;
  problem.aligned = padding % 16 == 0 && c.values_shift % 16 == 0 && (c.cols + padding) % 16 == 0 &&
                    (c.rows + padding) * out_size % 16 == 0;
  const plan::Machine machine{runtime::Isa::generic, {}, runtime::cuda_device(device)};
  std::vector<const kernels::ScaledKernel*> list;
  for (const kernels::ScaledKernel& kernel : kernels::cuda_scaled_kernels())
    if (kernels::bsr_linear::ask(kernel, problem, machine).refusal.empty()) list.push_back(&kernel);
  return list;
}

class CudaSmallScaled : public ::testing::TestWithParam<int> {
 protected:
  /// Sums promoted and not.
  void check(ScaledCase c) {
    for (const bool fast_accum : {false, true}) {
      c.fast_accum = fast_accum;
      ScaledInstance instance(c);
      const auto kernels = runnable(instance, 0);
      ASSERT_FALSE(kernels.empty()) << describe(c);
      for (const kernels::ScaledKernel* kernel : kernels) {
        SCOPED_TRACE(kernel->name);
        expect_near(instance, run(instance, *kernel, 0));
      }
    }
  }
  static ScaledCase base(BlockShape block, DType out) {
    ScaledCase c;
    c.dtype = DType::f8e4m3, c.out = out, c.block = block, c.density = 0.6;
    return c;
  }
};
class CudaScaled : public CudaSmallScaled {};

std::vector<std::pair<BlockShape, bool>> both_ways() {
  std::vector<std::pair<BlockShape, bool>> list;
  for (const BlockShape block : {BlockShape{64, 64}, {128, 128}, {64, 128}, {128, 64}})
    for (const bool fast_accum : {false, true}) list.emplace_back(block, fast_accum);
  return list;
}

constexpr BlockShape kBlocks[] = {{8, 8}, {16, 128}, {64, 64}, {64, 128}, {128, 64}, {128, 128}};

TEST_P(CudaSmallScaled, EveryBlockEdgeScaleAndOutput) {
  int turn = 0;
  for (const BlockShape block : kBlocks)
    for (const DType out : {DType::bf16, DType::f32}) {
      ScaledCase c = base(block, out);
      c.m = 37, c.rows = 3 * block.rows - 8, c.cols = 4 * block.cols - 16;
      c.x_each = turn % 2 == 0, c.w_each = turn % 3 == 0, c.bias = turn % 3 == 1;
      c.activation = turn % 4 == 1 ? Activation::gelu_erf : Activation::none;
      c.stride_padding = 16;  // keeps what TMA wants
      c.seed = static_cast<std::uint64_t>(++turn);
      check(c);
    }
}

TEST_P(CudaSmallScaled, Misaligned) {
  for (const DType out : {DType::bf16, DType::f32}) {
    ScaledCase c = base({64, 64}, out);
    c.m = 19, c.rows = 131, c.cols = 197, c.stride_padding = 3, c.values_shift = 1, c.bias = true;
    check(c);
    c.m = 1, c.stride_padding = 0;
    check(c);
  }
}

TEST_P(CudaSmallScaled, NoBlocksWriteTheBias) {
  for (const DType out : {DType::bf16, DType::f32}) {
    ScaledCase c = base({64, 128}, out);
    c.m = 20, c.rows = 128, c.cols = 256, c.density = 0, c.bias = true;
    check(c);
    c.density = 0.3, c.skewed = true, c.rows = 512;  // some rows without blocks
    check(c);
  }
}

TEST_P(CudaSmallScaled, ScalesFollowIeee) {
  constexpr float kInf = std::numeric_limits<float>::infinity(),
                  kNan = std::numeric_limits<float>::quiet_NaN();
  ScaledCase c = base({64, 64}, DType::f32);
  c.m = 20, c.rows = 64, c.cols = 128, c.density = 1;
  ScaledInstance instance(c);
  for (std::int64_t i = 0; i < c.cols; ++i) instance.x.set(6, i, 0);  // a token whose sums are zero
  instance.x_scale[2] = 0, instance.x_scale[3] = kInf, instance.x_scale[4] = kNan;
  instance.w_scale[9] = kInf, instance.w_scale[10] = kNan, instance.w_scale[11] = 0;
  for (const kernels::ScaledKernel* kernel : runnable(instance, 0)) {
    SCOPED_TRACE(kernel->name);
    const Matrix out = run(instance, *kernel, 0);
    EXPECT_EQ(out.at(2, 0), 0);
    EXPECT_TRUE(std::isinf(out.at(3, 0)));
    EXPECT_TRUE(std::isnan(out.at(4, 0)));
    EXPECT_TRUE(std::isinf(out.at(0, 9)));
    EXPECT_TRUE(std::isnan(out.at(0, 10)));
    EXPECT_EQ(out.at(0, 11), 0);
    EXPECT_TRUE(std::isnan(out.at(2, 9))) << "0 * Inf";
    EXPECT_TRUE(std::isnan(out.at(6, 9))) << "a sum of 0 * Inf";
    EXPECT_TRUE(std::isnan(out.at(3, 11))) << "Inf * 0";
    for (std::int64_t o = 0; o < c.rows; ++o) EXPECT_EQ(std::isfinite(out.at(0, o)), o < 9 || o > 10) << o;
  }
}

// What x holds under an absent block does not spread; under a stored one it does.
TEST_P(CudaSmallScaled, NotANumberStaysUnderItsBlocks) {
  for (const auto& [block, fast_accum] : both_ways()) {
    ScaledCase c = base(block, DType::bf16);
    c.m = 70, c.rows = 4 * block.rows, c.cols = 6 * block.cols, c.density = 0.5, c.fast_accum = fast_accum;
    ScaledInstance instance(c);
    const std::int64_t bad = 2;  // block column
    instance.x.poison(5, bad * block.cols + 3);
    for (const kernels::ScaledKernel* kernel : runnable(instance, 0)) {
      const Matrix out = run(instance, *kernel, 0);
      for (std::int64_t o = 0; o < c.rows; ++o) {
        bool stored = false;
        const auto r = static_cast<std::size_t>(o / block.rows);
        for (std::int64_t i = instance.crow[r]; i < instance.crow[r + 1]; ++i)
          stored |= instance.col[static_cast<std::size_t>(i)] == bad;
        EXPECT_EQ(std::isnan(out.at(5, o)), stored) << kernel->name << " output " << o;
        EXPECT_FALSE(std::isnan(out.at(4, o))) << kernel->name << " output " << o;
      }
    }
  }
}

// Small integers: 14 bits hold every sum.
TEST_P(CudaSmallScaled, SmallIntegersExactlyAndRepeated) {
  for (const auto& [block, fast_accum] : both_ways()) {
    ScaledCase c = base(block, fast_accum ? DType::bf16 : DType::f32);
    c.fast_accum = fast_accum;
    c.m = 150, c.rows = 3 * block.rows, c.cols = 7 * block.cols, c.density = 0.7, c.x_each = c.w_each = false;
    ScaledInstance instance(c);
    const auto small = [](std::int64_t i) { return static_cast<double>((i * 31 + i / 7) % 7 - 3); };
    for (std::int64_t t = 0; t < c.m; ++t)
      for (std::int64_t i = 0; i < c.cols; ++i) instance.x.set(t, i, small(t * 5 + i));
    for (std::int64_t r = 0; r < instance.values.rows; ++r)
      for (std::int64_t i = 0; i < block.cols; ++i) instance.values.set(r, i, small(r * 3 + i * 11));
    instance.x_scale[0] = 0.5f, instance.w_scale[0] = 0.25f;
    for (const kernels::ScaledKernel* kernel : runnable(instance, 0)) {
      SCOPED_TRACE(kernel->name);
      const Matrix out = run(instance, *kernel, 0);
      for (std::int64_t o = 0; o < c.rows; ++o)
        for (std::int64_t t = 0; t < c.m; ++t) {
          double sum = 0;
          const auto r = static_cast<std::size_t>(o / block.rows);
          for (std::int64_t i = instance.crow[r]; i < instance.crow[r + 1]; ++i)
            for (std::int64_t k = 0; k < block.cols; ++k)
              sum +=
                  instance.x.at(t, instance.col[static_cast<std::size_t>(i)] * std::int64_t{block.cols} + k) *
                  instance.values.at(i * block.rows + o % block.rows, k);
          const double y = 0.125 * sum;
          ASSERT_EQ(out.at(t, o), fast_accum ? core::to_f32(core::to_bf16(y)) : y)
              << describe(c) << " at " << t << ", " << o;
        }
      EXPECT_EQ(run(instance, *kernel, 0).bytes, out.bytes) << "another run gave other bits";
    }
  }
}

// More tiles than multiprocessors: the wide tile, its second round, and 64-byte K tiles in every pairing.
TEST_P(CudaScaled, WideTiles) {
  for (const BlockShape block : {BlockShape{64, 64}, {128, 128}, {64, 128}, {128, 64}}) {
    for (const DType out : {DType::bf16, DType::f32}) {
      const bool deep = (out == DType::bf16) ==
                        (block.rows == 64);  // the others with fewer inputs: the check takes seconds each
      ScaledCase c = base(block, out);
      c.m = 2100, c.rows = 2040, c.cols = deep ? 640 : 400, c.density = 0.3, c.bias = deep,
      c.stride_padding = 16;
      check(c);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, CudaSmallScaled, ::testing::ValuesIn(when_devices(1)));
INSTANTIATE_TEST_SUITE_P(, CudaScaled, ::testing::ValuesIn(when_devices(1)));
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaSmallScaled);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaScaled);

}  // namespace
}  // namespace sparseloom::testing
