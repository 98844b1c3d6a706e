// Attention over kept blocks by every CUDA row against sums element by element in fp64, small enough for
// compute-sanitizer: lists of maps and of keys, forward and backward.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/cuda/device_call.h"
#include "kernels/cuda/on_gpu.h"
#include "ops/attention_case.h"
#include "sparseloom/generic/scalar.h"

namespace sparseloom::testing {
namespace {

std::vector<std::byte> in_dtype(DType dtype, const std::vector<float>& numbers) {
  std::vector<std::byte> bytes(numbers.size() * size_of(dtype));
  for (std::size_t i = 0; i < numbers.size(); ++i)
    store(dtype, bytes.data(), static_cast<std::int64_t>(i), numbers[i]);
  return bytes;
}

std::vector<std::byte> list_bytes(const std::vector<std::int32_t>& list) {
  std::vector<std::byte> bytes(list.size() * sizeof(std::int32_t));
  std::memcpy(bytes.data(), list.data(), bytes.size());
  return bytes;
}

/// A case on the device. Results begin as NaN.
class There {
 public:
  There(AttentionCase& given, DType dtype)
      : c_(given),
        dtype_(dtype),
        q_(in_dtype(dtype, c_.q)),
        k_(in_dtype(dtype, c_.k)),
        v_(in_dtype(dtype, c_.v)),
        dout_(in_dtype(dtype, c_.dout)),
        out_(poison(c_.q.size() * 2)),
        dq_(poison(c_.q.size() * 2)),
        dk_(poison(c_.k.size() * 2)),
        dv_(poison(c_.k.size() * 2)),
        lse_(poison(c_.lse.size() * 4)),
        counts_(list_bytes(c_.counts)),
        indices_(list_bytes(c_.indices)),
        key_counts_(poison(c_.key_counts.size() * 4)),
        key_indices_(poison(c_.key_indices.size() * 4)) {
    c_.problem.dtype = dtype, c_.problem.device = 0;
  }

  std::vector<std::string> rows(block_attention::Direction direction) {
    c_.problem.direction = direction;
    std::vector<std::string> names;
    for (const Candidate& row : plan_attention(c_.problem, executor())->candidates)
      if (row.refusal.empty()) names.emplace_back(row.kernel);
    return names;
  }

  void forward(const std::string& row) {
    c_.problem.direction = block_attention::Direction::forward;
    const auto plan = plan_attention(c_.problem, executor(), row);
    const OnGpu workspace(poison(plan->workspace_bytes));
    attention(*plan, args(), {workspace.get(), plan->workspace_bytes}, executor());
    stream_.wait();
  }

  void backward(const std::string& row) {
    transpose_lists(of_queries(), c_.problem.heads, c_.kv_blocks, numbers(key_counts_), numbers(key_indices_),
                    executor());
    c_.problem.direction = block_attention::Direction::backward;
    const auto plan = plan_attention(c_.problem, executor(), row);
    const OnGpu workspace(poison(plan->workspace_bytes));
    attention_gradient(*plan, args(), {workspace.get(), plan->workspace_bytes}, executor());
    stream_.wait();
  }

  void expect_out(const AttentionAnswer& exact) const {
    expect_near("out", out_, exact.out);
    const std::vector<std::byte> bytes = lse_.read();
    for (std::size_t i = 0; i < exact.lse.size(); ++i) {
      const double got = load(DType::f32, bytes.data(), static_cast<std::int64_t>(i));
      if (got == exact.lse[i]) continue;  // also where both are -infinity
      ASSERT_NEAR(got, exact.lse[i], 1e-3) << "lse at " << i;
    }
  }
  void expect_gradients(const AttentionAnswer& exact) const {
    expect_near("dq", dq_, exact.dq);
    expect_near("dk", dk_, exact.dk);
    expect_near("dv", dv_, exact.dv);
  }

 private:
  static std::vector<std::byte> poison(std::size_t bytes) { return {bytes, std::byte{0xff}}; }
  static std::int32_t* numbers(const OnGpu& memory) { return reinterpret_cast<std::int32_t*>(memory.get()); }

  Executor executor() const { return Executor::cuda(0, stream_.get()); }
  block_attention::Lists of_queries() const {
    return {numbers(counts_), numbers(indices_), c_.q_blocks, c_.kv_blocks, 0, c_.q_blocks};
  }

  block_attention::Args args() const {
    block_attention::Args args = c_.args();
    args.q.data = q_.get(), args.k.data = k_.get(), args.v.data = v_.get(), args.dout.data = dout_.get();
    args.out.data = out_.get(), args.dq.data = dq_.get(), args.dk.data = dk_.get(), args.dv.data = dv_.get();
    args.lse = reinterpret_cast<float*>(lse_.get());
    args.of_queries = of_queries();
    args.of_keys = {numbers(key_counts_), numbers(key_indices_), c_.kv_blocks, c_.q_blocks, 0, c_.kv_blocks};
    return args;
  }

  /// Scores and gradients of scores are rounded to 16 bits before the second products, values are about 1.
  void expect_near(const char* name, const OnGpu& memory, const std::vector<double>& exact) const {
    const std::vector<std::byte> bytes = memory.read();
    double error = 0, size = 0;
    for (std::size_t i = 0; i < exact.size(); ++i) {
      const double got = load(dtype_, bytes.data(), static_cast<std::int64_t>(i));
      ASSERT_FALSE(std::isnan(got)) << name << " at " << i;
      error = std::max(error, std::abs(got - exact[i])), size = std::max(size, std::abs(exact[i]));
    }
    EXPECT_LE(error, (dtype_ == DType::bf16 ? 0.02 : 0.003) * size) << name;
  }

  AttentionCase& c_;
  DType dtype_;
  Stream stream_;
  OnGpu q_, k_, v_, dout_, out_, dq_, dk_, dv_, lse_, counts_, indices_, key_counts_, key_indices_;
};

struct Sizes {
  std::int64_t queries, keys, dim;
  std::int32_t side;
  bool causal;
};

class CudaSmallAttention : public ::testing::TestWithParam<Sizes> {};

TEST_P(CudaSmallAttention, OfEveryRowIsThatOfSumsElementByElement) {
  using block_attention::Direction;
  const Sizes& s = GetParam();
  for (const DType dtype : {DType::bf16, DType::f16}) {
    AttentionCase c(s.queries, s.keys, s.dim, s.side, s.causal);
    for (std::vector<float>* drawn : {&c.q, &c.k, &c.v, &c.dout}) {
      const std::vector<std::byte> rounded = in_dtype(dtype, *drawn);
      for (std::size_t i = 0; i < drawn->size(); ++i)
        (*drawn)[i] = static_cast<float>(load(dtype, rounded.data(), static_cast<std::int64_t>(i)));
    }
    const AttentionAnswer exact(c);
    There there(c, dtype);
    const std::vector<std::string> forward = there.rows(Direction::forward);
    ASSERT_FALSE(forward.empty());
    for (const std::string& row : forward) {
      SCOPED_TRACE(row + " forward in " + name_of(dtype));
      there.forward(row);
      there.expect_out(exact);
    }
    for (const std::string& row : there.rows(Direction::backward)) {
      SCOPED_TRACE(row + " backward in " + name_of(dtype));
      there.backward(row);
      there.expect_gradients(exact);
    }
  }
}

std::vector<Sizes> sizes() {
  if (when_devices(1).empty()) return {};
  return {{128, 256, 64, 64, false},
          {100, 150, 64, 64, true},
          {130, 200, 128, 128, false},
          {150, 100, 128, 64, true},
          {3, 1100, 128, 64, false}};
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaSmallAttention);
INSTANTIATE_TEST_SUITE_P(, CudaSmallAttention, ::testing::ValuesIn(sizes()),
                         [](const auto& info) { return "Case" + std::to_string(info.index); });

}  // namespace
}  // namespace sparseloom::testing
