// The CUDA kernels of CSR weights, each with every cut, against fp64; where NaN goes; and copies and the
// dense row's pieces against the layout's own functions.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "kernels/csr_case.h"
#include "kernels/csr_linear/rows.h"
#include "kernels/csr_linear/sm80/entries.h"
#include "kernels/cuda/on_gpu.h"
#include "runtime/cuda.h"

namespace sparseloom::testing {
namespace {

namespace cuda = kernels::cuda;

std::vector<std::byte> as_bytes(const std::vector<std::int32_t>& list) {
  std::vector<std::byte> bytes(list.size() * sizeof(std::int32_t));
  if (!list.empty()) std::memcpy(bytes.data(), list.data(), bytes.size());
  return bytes;
}

/// The index on the device.
struct Index {
  explicit Index(const CsrInstance& i)
      : crow(as_bytes(i.crow)),
        col(as_bytes(i.col)),
        ccol(as_bytes(i.ccol)),
        row(as_bytes(i.row)),
        slot(as_bytes(i.slot)),
        view(i.w) {
    view.crow = at(crow), view.col = at(col), view.ccol = at(ccol), view.row = at(row), view.slot = at(slot);
  }
  static const std::int32_t* at(const OnGpu& part) {
    return reinterpret_cast<const std::int32_t*>(part.get());
  }
  OnGpu crow, col, ccol, row, slot;
  CsrView view;
};

/// An instance of a kernel.
struct Way {
  std::string name;
  std::size_t workspace;
  std::function<int(const cuda::CsrProduct&)> run;
};

std::vector<Way> ways(const CsrCase& c, std::int64_t stored) {
  std::vector<Way> list{{"gather", 0, cuda::sm80_csr_gather}};
  if (c.direction == Direction::dw) {
    list.push_back(
        {"sampled", cuda::csr_sampled_workspace(c.rows, c.cols, c.m, c.dtype), cuda::sm80_csr_sampled});
    return list;
  }
  const std::int64_t depth = c.direction == Direction::dx ? c.rows : c.cols;
  const int size = static_cast<int>(size_of(c.dtype));
  for (int i = 0; i < cuda::slabs::kCutCount; ++i) {
    const cuda::slabs::Cut& cut = cuda::slabs::kCuts[i];
    // All features in one slab where they fit, and the smallest slabs.
    const int least = cuda::slabs::room_of(cut, size, depth, 0).bytes;
    for (const int most : {std::max(least, 48 << 10), least})
      list.push_back({"slabs " + std::to_string(i) + " of " + std::to_string(most) + " bytes",
                      cuda::csr_slabs_workspace(c.direction, stored, c.dtype),
                      [i, most](const cuda::CsrProduct& p) { return cuda::sm80_csr_slabs(p, i, most); }});
  }
  return list;
}

/// Runs a kernel in every way, twice, and hands the outputs to `judge`.
template <class Judge>
void run_all(CsrInstance& instance, const Judge& judge) {
  const CsrCase& c = instance.c;
  const Stream stream;
  const Index index(instance);
  const OnGpu values(instance.values.bytes), a(instance.a.bytes), b(instance.b.bytes),
      bias(instance.bias.bytes), residual(instance.residual.bytes);
  const auto inside = [](const OnGpu& on_gpu, const Matrix& matrix) {
    return on_gpu.get() + matrix.offset * static_cast<std::int64_t>(size_of(matrix.dtype));
  };
  for (const Way& way : ways(c, instance.w.stored)) {
    SCOPED_TRACE(way.name + " " + c.text());
    Matrix got = instance.output();
    std::vector<std::byte> first;
    for (int time = 0; time < 2; ++time) {
      const Matrix before = instance.output();
      const OnGpu out(before.bytes), workspace(std::vector<std::byte>(way.workspace, kPoison));
      MatmulArgs args;
      args.direction = c.direction, args.dtype = c.dtype, args.activation = c.activation, args.m = c.m;
      args.a = inside(a, instance.a), args.a_stride = instance.a.stride;
      args.b = inside(b, instance.b), args.b_stride = instance.b.stride;
      args.values = inside(values, instance.values), args.accumulate = c.accumulate;
      if (c.bias) args.bias = inside(bias, instance.bias);
      if (c.residual)
        args.residual = inside(residual, instance.residual), args.residual_stride = instance.residual.stride;
      args.out = inside(out, before), args.out_stride = before.stride;
      args.workspace = workspace.get(), args.device = 0, args.stream = stream.get();
      EXPECT_CUDA(way.run({args, index.view}));
      stream.wait();
      got.bytes = out.read();
      static_cast<void>(workspace.read());
      if (time == 0) first = got.bytes;
    }
    EXPECT_TRUE(first == got.bytes) << "other bits in a second call";
    EXPECT_TRUE(got.padding_untouched());
    judge(way.name, got);
    if (::testing::Test::HasFailure()) return;
  }
}

void check(const CsrCase& c) {
  CsrInstance instance(c);
  // What the GPU's activations are held to elsewhere; shared/epilogue/activation.cuh has their errors.
  const double function = c.activation == Activation::none ? 0 : 2e-5;
  run_all(instance,
          [&](const std::string& name, const Matrix& out) { instance.expect_accurate(name, out, function); });
}

class CudaCsr : public ::testing::TestWithParam<DType> {};

std::vector<DType> dtypes() {
  if (runtime::cuda_device(0).sm < 80) return {};
  return {DType::f32, DType::bf16, DType::f16};
}

TEST_P(CudaCsr, IsAccurateForEverySize) {
  for (Direction direction : {Direction::forward, Direction::dx, Direction::dw})
    for (auto [rows, cols] :
         {std::pair<std::int64_t, std::int64_t>{1, 4}, {7, 1}, {37, 130}, {150, 41}, {70, 300}})
      for (std::int64_t m : {1, 3, 4, 33, 70, 129}) {
        check({GetParam(), m, rows, cols, direction});
        if (HasFailure()) return;
      }
}

TEST_P(CudaCsr, HasAnEpilogue) {
  for (Activation activation : activations())
    for (std::int64_t m : {1, 40}) {
      CsrCase c{GetParam(), m, 61, 80};
      c.activation = activation, c.bias = true, c.residual = m > 1 || activation == Activation::none;
      check(c);
      if (HasFailure()) return;
    }
}

TEST_P(CudaCsr, AddsToAGradient) {
  for (std::int64_t m : {1, 4, 70}) {
    CsrCase c{GetParam(), m, 61, 80, Direction::dw};
    c.accumulate = true;
    check(c);
  }
}

// x that does not fit in shared memory, and rows that lanes share.
TEST_P(CudaCsr, TakesLongRows) {
  for (Direction direction : {Direction::forward, Direction::dx, Direction::dw})
    for (std::int64_t m : {1, 2, 5}) {
      const std::int64_t depth = 45000;
      check(direction == Direction::dx ? CsrCase{GetParam(), m, depth, 3, direction}
                                       : CsrCase{GetParam(), m, 3, depth, direction});
      if (HasFailure()) return;
    }
}

TEST_P(CudaCsr, SumsOfNothingAreZero) {
  CsrCase c{GetParam(), 3, 5, 0};
  c.bias = true;
  const auto gathers = [](CsrInstance&& instance) {
    const Stream stream;
    const Index index(instance);
    const OnGpu bias(instance.bias.bytes);
    Matrix out = instance.output();
    const OnGpu written(out.bytes);
    MatmulArgs args;
    args.direction = instance.c.direction, args.dtype = instance.c.dtype, args.m = instance.c.m;
    args.bias = instance.c.bias ? bias.get() : nullptr;
    args.out = written.get() + out.offset * static_cast<std::int64_t>(size_of(out.dtype));
    args.out_stride = out.stride, args.device = 0, args.stream = stream.get();
    EXPECT_CUDA(cuda::sm80_csr_gather({args, index.view}));
    stream.wait();
    out.bytes = written.read();
    instance.expect_accurate("gather", out);
  };
  gathers(CsrInstance(c));
  gathers(CsrInstance({GetParam(), 3, 0, 5, Direction::dx}));
  gathers(CsrInstance({GetParam(), 0, 6, 5, Direction::dw}));
}

// What x holds under an element that is not stored reaches no output.
TEST_P(CudaCsr, NanReachesWhatIsStored) {
  for (const double value :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()})
    for (Direction direction : {Direction::forward, Direction::dx})
      for (std::int64_t m : {1, 4, 40, 70}) {
        CsrInstance instance({GetParam(), m, 50, 90, direction});
        for (std::int64_t t = 0; t < m; t += 3) instance.a.set(t, (7 * t + 5) % instance.a.cols, value);
        run_all(instance, [&](const std::string& name, const Matrix& out) {
          for (std::int64_t t = 0; t < m; ++t) {
            std::vector<bool> met(static_cast<std::size_t>(out.cols));
            for (std::int64_t r = 0; r < 50; ++r)
              Csr::for_each_in_row(instance.w, r, [&](std::int64_t i, std::int64_t) {
                const bool dx = direction == Direction::dx;
                if (!std::isfinite(instance.a.at(t, dx ? r : i)))
                  met[static_cast<std::size_t>(dx ? i : r)] = true;
              });
            for (std::int64_t o = 0; o < out.cols; ++o)
              ASSERT_EQ(!std::isfinite(out.at(t, o)), met[static_cast<std::size_t>(o)])
                  << name << " token " << t << ", output " << o;
          }
        });
        if (HasFailure()) return;
      }
}

/// What a sanitizer, which slows a kernel down a hundred times, has seconds for: each kernel with every cut,
/// of sizes that no tile divides.
class CudaSmallCsr : public ::testing::TestWithParam<DType> {};

TEST_P(CudaSmallCsr, IsAccurate) {
  for (Direction direction : {Direction::forward, Direction::dx, Direction::dw})
    for (std::int64_t m : {1, 3, 35}) {
      check({GetParam(), m, 21, 38, direction});
      if (HasFailure()) return;
    }
}

TEST_P(CudaSmallCsr, HasAnEpilogueAndAddsToAGradient) {
  CsrCase c{GetParam(), 5, 21, 38};
  c.activation = Activation::gelu_erf, c.bias = true, c.residual = true;
  check(c);
  CsrCase dw{GetParam(), 5, 21, 38, Direction::dw};
  dw.accumulate = true;
  check(dw);
}

TEST_P(CudaSmallCsr, CopiesMatchTheLayout) {
  for (auto [rows, cols] : {std::pair<std::int64_t, std::int64_t>{1, 4}, {37, 130}, {150, 41}}) {
    CsrInstance instance({GetParam(), 1, rows, cols});
    const Stream stream;
    const Index index(instance);
    const auto size = size_of(GetParam());
    const auto bytes = [&](std::int64_t count) { return static_cast<std::size_t>(count) * size; };
    std::vector<std::byte> stored(
        instance.values.bytes.begin(),
        instance.values.bytes.begin() + static_cast<std::ptrdiff_t>(bytes(instance.w.stored)));
    const OnGpu values(stored), dense(std::vector<std::byte>(bytes(rows * cols), kPoison)),
        back(std::vector<std::byte>(stored.size(), kPoison)),
        turned(std::vector<std::byte>(stored.size(), kPoison));
    const MatrixView matrix{dense.get(), GetParam(), rows, cols, cols};
    EXPECT_CUDA(cuda::csr_unpack(index.view, values.get(), matrix, stream.get()));
    EXPECT_CUDA(cuda::csr_gather(matrix, index.view, back.get(), stream.get()));
    EXPECT_CUDA(cuda::csr_by_column(GetParam(), index.view, values.get(), turned.get(), stream.get()));
    stream.wait();
    std::vector<std::byte> expected(bytes(rows * cols)), by_column;
    Csr::unpack(instance.w, stored.data(), {expected.data(), GetParam(), rows, cols, cols}, 0, rows);
    for (const std::int32_t slot : instance.slot)
      by_column.insert(by_column.end(), stored.begin() + static_cast<std::ptrdiff_t>(bytes(slot)),
                       stored.begin() + static_cast<std::ptrdiff_t>(bytes(slot + 1)));
    EXPECT_TRUE(dense.read() == expected);
    EXPECT_TRUE(back.read() == stored);
    EXPECT_TRUE(turned.read() == by_column);
  }
}

INSTANTIATE_TEST_SUITE_P(, CudaCsr, ::testing::ValuesIn(dtypes()),
                         [](const auto& info) { return std::string(name_of(info.param)); });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaCsr);
INSTANTIATE_TEST_SUITE_P(, CudaSmallCsr, ::testing::ValuesIn(dtypes()),
                         [](const auto& info) { return std::string(name_of(info.param)); });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaSmallCsr);

/// The rows on a Hopper GPU, which a plan asks without one.
TEST(CsrCudaRows, TakeEveryProductAndGoDenseOnlyWhereManyElementsAreStored) {
  const plan::Machine hopper{
      runtime::Isa::generic, {}, {90, 132, 50u << 20, 227u << 10, 2e9, 4.8e12}, {}, {132, 66, 32, 16}};
  const auto fastest = [&](LinearProblem problem) {
    problem.device = 0, problem.can_gemm = true;
    std::string name;
    double least = std::numeric_limits<double>::infinity();
    for (const kernels::CsrRow& row : kernels::csr_cuda_rows()) {
      plan::Offer offer;
      Proposals<CsrLinear> proposals(offer);
      if (plan::ask(row, problem, hopper, proposals)) continue;
      EXPECT_TRUE(std::isfinite(offer.predicted_us)) << row.name;
      if (offer.predicted_us < least) least = offer.predicted_us, name = row.name;
    }
    return name;
  };
  for (Direction direction : {Direction::forward, Direction::dx, Direction::dw})
    for (DType dtype : {DType::f32, DType::bf16, DType::f16})
      for (std::int64_t m : {1, 64, 1024, 200000}) {
        LinearProblem problem;
        problem.direction = direction, problem.dtype = dtype, problem.m = m;
        problem.rows = problem.cols = 4096, problem.stored = 4096 * 4;
        if (dtype == DType::f32 || m <= 64) {
          EXPECT_NE(fastest(problem), "dense_on_device") << CsrLinear::print(problem);
        }
        problem.stored = 4096 * 2048;
        if (m >= 1024) {
          EXPECT_EQ(fastest(problem), "dense_on_device") << CsrLinear::print(problem);
        }
        problem.strict = true;
        EXPECT_NE(fastest(problem), "dense_on_device") << CsrLinear::print(problem);
        problem.m = 0, problem.stored = 0;
        EXPECT_EQ(fastest(problem), "sm80_gather");
      }
}

}  // namespace
}  // namespace sparseloom::testing
