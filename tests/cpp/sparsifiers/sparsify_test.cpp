// Selections against a full sort in double; what they read, and what memory they take.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "core/backwards.h"
#include "core/expect_error.h"
#include "core/rng.h"
#include "sparseloom/generic/half.h"
#include "sparseloom/sparsifier_ops.h"
#include "sparseloom/sparsifiers.h"

namespace sparseloom {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

/// A matrix with equal magnitudes of both signs, NaN and Inf among its elements; its rows lie apart.
struct Drawn {
  std::int64_t rows, cols, stride;
  std::vector<double> exact;  // [rows, cols]
  std::vector<std::byte> bytes;
  DType dtype;

  Drawn(DType dtype, std::int64_t rows, std::int64_t cols, bool specials = true)
      : rows(rows), cols(cols), stride(cols + 3), dtype(dtype) {
    core::Rng rng(7);
    bytes.resize(static_cast<std::size_t>(rows * stride) * size_of(dtype));
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < cols; ++c) {
        double x = rng.uniform() < 0.5 ? static_cast<double>(rng.below(7)) - 3 : 4 * rng.uniform() - 2;
        const std::uint64_t special = specials ? rng.below(200) : 9;
        if (special == 0) x = std::nan("");
        if (special == 1) x = -kInf;
        put(r * stride + c, x);
      }
  }

  void put(std::int64_t at, double x) {
    const auto store = [&](auto value) {
      std::memcpy(bytes.data() + static_cast<std::size_t>(at) * sizeof(value), &value, sizeof(value));
    };
    switch (dtype) {
      case DType::f64: exact.push_back(x), store(x); break;
      case DType::f32: exact.push_back(static_cast<float>(x)), store(static_cast<float>(x)); break;
      case DType::f16: exact.push_back(core::to_f32(core::to_f16(x))), store(core::to_f16(x)); break;
      default: exact.push_back(core::to_f32(core::to_bf16(x))), store(core::to_bf16(x)); break;
    }
  }
  ConstMatrixView view() const { return {bytes.data(), dtype, rows, cols, stride}; }
  double magnitude(std::int64_t i) const {
    const double x = exact[static_cast<std::size_t>(i)];
    return std::isnan(x) ? kInf : std::fabs(x);
  }
};

/// Which `count` of the indices have the largest keys; ties go to the lowest index.
template <class KeyOf>
std::vector<std::int64_t> largest(std::vector<std::int64_t> indices, std::int64_t count, KeyOf key) {
  std::stable_sort(indices.begin(), indices.end(), [&](auto a, auto b) { return key(a) > key(b); });
  indices.resize(static_cast<std::size_t>(std::min<std::int64_t>(count, std::ssize(indices))));
  return indices;
}

std::vector<std::int64_t> range(std::int64_t begin, std::int64_t end) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(end - begin));
  std::iota(all.begin(), all.end(), begin);
  return all;
}

std::int64_t kept_of(double fraction, std::int64_t n) {
  return n - static_cast<std::int64_t>(std::floor(fraction * static_cast<double>(n) + 0.5));
}

std::vector<char> twin(const Drawn& w, const SparsifierSpec& spec) {
  const std::int64_t n = w.rows * w.cols;
  const auto magnitude = [&](std::int64_t i) { return w.magnitude(i); };
  std::vector<char> stays(static_cast<std::size_t>(n));
  if (spec.selection == Selection::scalar_fraction) {
    for (std::int64_t i : largest(range(0, n), kept_of(spec.amount, n), magnitude)) stays[i] = 1;
  } else if (spec.selection == Selection::per_block_nm) {
    for (std::int64_t r = 0; r < w.rows; ++r)
      for (std::int64_t c = 0; c < w.cols; c += spec.m)
        for (std::int64_t i :
             largest(range(r * w.cols + c, r * w.cols + std::min(c + spec.m, w.cols)), spec.n, magnitude))
          stays[i] = 1;
  } else if (spec.selection == Selection::blockwise_fraction) {
    const std::int64_t down = (w.rows + spec.block_rows - 1) / spec.block_rows;
    const std::int64_t across = (w.cols + spec.block_cols - 1) / spec.block_cols;
    const auto block_of = [&](std::int64_t i) {
      return i / w.cols / spec.block_rows * across + i % w.cols / spec.block_cols;
    };
    std::vector<double> sums(static_cast<std::size_t>(down * across));
    for (std::int64_t i = 0; i < n; ++i) sums[block_of(i)] += w.magnitude(i);
    std::vector<char> block(sums.size());
    for (std::int64_t b : largest(range(0, down * across), kept_of(spec.amount, down * across),
                                  [&](std::int64_t b) { return static_cast<float>(sums[b]); }))
      block[b] = 1;
    for (std::int64_t i = 0; i < n; ++i) stays[i] = block[block_of(i)];
  } else {
    for (std::int64_t i = 0; i < n; ++i)
      stays[i] = spec.selection == Selection::keep_all || w.magnitude(i) > spec.amount;
  }
  return stays;
}

SparsifierSpec spec_of(Selection selection, double amount = 0, std::int64_t a = 1, std::int64_t b = 1) {
  SparsifierSpec spec;
  spec.selection = selection, spec.amount = amount;
  if (selection == Selection::blockwise_fraction) spec.block_rows = a, spec.block_cols = b;
  if (selection == Selection::per_block_nm) spec.n = a, spec.m = b;
  return spec;
}

std::vector<SparsifierSpec> specs() {
  std::vector<SparsifierSpec> all = {spec_of(Selection::keep_all), spec_of(Selection::scalar_threshold, 0),
                                     spec_of(Selection::scalar_threshold, 1.5)};
  for (double fraction : {0.0, 0.3, 0.5, 0.9, 0.999, 1.0}) {
    all.push_back(spec_of(Selection::scalar_fraction, fraction));
    all.push_back(spec_of(Selection::blockwise_fraction, fraction, 8, 3));
  }
  all.push_back(spec_of(Selection::blockwise_fraction, 0.5, 1000, 1));
  all.push_back(spec_of(Selection::per_block_nm, 0, 2, 4));
  all.push_back(spec_of(Selection::per_block_nm, 0, 1, 7));
  all.push_back(spec_of(Selection::per_block_nm, 0, 30, 1000));
  return all;
}

class Sparsify : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Dtypes, Sparsify, ::testing::Values(DType::f32, DType::f16, DType::bf16, DType::f64),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST_P(Sparsify, ChoosesAsAFullSortDoes) {
  // Large enough that several threads get a part; small ones are one part.
  for (auto [rows, cols] : {std::pair<std::int64_t, std::int64_t>{337, 301}, {5, 11}, {1, 1}}) {
    const Drawn w(GetParam(), rows, cols);
    for (const SparsifierSpec& spec : specs()) {
      const std::vector<char> expected = twin(w, spec);
      const auto n = static_cast<std::size_t>(rows * cols);
      for (int threads : {1, 3}) {
        std::vector<char> mask(n, 2);
        std::vector<std::byte> values(n * size_of(w.dtype), std::byte{1});
        sparsify(w.view(), spec, {reinterpret_cast<bool*>(mask.data()), values.data()},
                 testing::backwards(threads));
        EXPECT_EQ(mask, expected) << static_cast<int>(spec.selection) << " " << spec.amount << " " << rows;
        const std::size_t size = size_of(w.dtype);
        const std::vector<std::byte> zero(size);
        for (std::size_t i = 0; i < n; ++i) {
          const std::size_t from = i / cols * static_cast<std::size_t>(w.stride) + i % cols;
          const std::byte* const kept = expected[i] ? w.bytes.data() + from * size : zero.data();
          ASSERT_EQ(std::memcmp(values.data() + i * size, kept, size), 0) << i;
        }
      }
    }
  }
}

TEST(SparsifyRandom, DrawsTheSameForAnyThreadsAndTheFractionOnAverage) {
  const Drawn w(DType::f32, 300, 400);
  SparsifierSpec spec = spec_of(Selection::random_fraction, 0.9);
  spec.seed = 11;
  const auto drawn = [&](int threads) {
    std::vector<char> mask(120'000);
    sparsify(w.view(), spec, {reinterpret_cast<bool*>(mask.data()), nullptr}, testing::backwards(threads));
    return mask;
  };
  const std::vector<char> mask = drawn(1);
  EXPECT_EQ(mask, drawn(4));
  // A standard deviation is 104.
  EXPECT_NEAR(static_cast<double>(std::count(mask.begin(), mask.end(), 1)), 12'000, 520);
  spec.seed = 12;
  EXPECT_NE(mask, drawn(1));
}

/// Counts what is held at once.
class Peak : public std::pmr::memory_resource {
 public:
  std::int64_t peak() const { return peak_; }

 private:
  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    held_ += static_cast<std::int64_t>(bytes), peak_ = std::max<std::int64_t>(peak_, held_);
    return std::pmr::new_delete_resource()->allocate(bytes, alignment);
  }
  void do_deallocate(void* memory, std::size_t bytes, std::size_t alignment) override {
    held_ -= static_cast<std::int64_t>(bytes);
    std::pmr::new_delete_resource()->deallocate(memory, bytes, alignment);
  }
  bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }
  std::int64_t held_ = 0, peak_ = 0;
};

struct Cost {
  double passes;
  std::int64_t peak;
};

Cost cost_of(const Drawn& w, const SparsifierSpec& spec) {
  const auto n = static_cast<std::size_t>(w.rows * w.cols);
  std::vector<std::byte> values(n * size_of(w.dtype));
  Peak scratch;
  const SparsifierReads before = sparsifier_reads();
  sparsify(w.view(), spec, {nullptr, values.data()}, testing::backwards(2), &scratch);
  const SparsifierReads after = sparsifier_reads();
  EXPECT_EQ(after.bytes - before.bytes,
            (after.elements - before.elements) * static_cast<std::int64_t>(size_of(w.dtype)));
  return {static_cast<double>(after.elements - before.elements) / static_cast<double>(n), scratch.peak()};
}

TEST_P(Sparsify, TakesThePassesAndTheMemoryOfTheTable) {
  const Drawn w(GetParam(), 600, 500);
  Drawn equal(GetParam(), 600, 500, false);
  std::memset(equal.bytes.data(), 0x3c, equal.bytes.size());  // every element ties with every other
  for (Selection selection : {Selection::keep_all, Selection::random_fraction, Selection::scalar_threshold}) {
    const Cost cost = cost_of(w, spec_of(selection, 0.5));
    EXPECT_EQ(cost.passes, 1);
    EXPECT_EQ(cost.peak, 0);
  }
  const Cost nm = cost_of(w, spec_of(Selection::per_block_nm, 0, 2, 10));
  EXPECT_EQ(nm.passes, 2);
  EXPECT_LE(nm.peak, 2 * 256 * 8);  // some blocks of 10 at a time, for each thread
  for (const Drawn* each : {static_cast<const Drawn*>(&w), static_cast<const Drawn*>(&equal)})
    for (double fraction : {0.5, 0.9, 0.99}) {
      const std::int64_t nnz = kept_of(fraction, 300'000);
      const Cost scalar = cost_of(*each, spec_of(Selection::scalar_fraction, fraction));
      EXPECT_EQ(scalar.passes, 2);
      // 2 threads: counts of 65 536 bins each, and twice what stays, by value and index; all of it once more.
      EXPECT_LE(scalar.peak, 2 * 65'536 * 4 + (2 * 2 + 2) * nnz * 16 + 4096) << fraction;
      const Cost blocks = cost_of(*each, spec_of(Selection::blockwise_fraction, fraction, 20, 20));
      EXPECT_EQ(blocks.passes, 2);
      EXPECT_LE(blocks.peak, 750 * (8 + 16 + 1) + 64);
    }
}

TEST(SparsifyErrors, NameWhatIsWrong) {
  const Drawn w(DType::f32, 4, 4);
  std::vector<char> mask(16);
  const SparsifierResult result{reinterpret_cast<bool*>(mask.data()), nullptr};
  const auto refuses = [&](const SparsifierSpec& spec, const char* word) {
    test::expect_error("sparsify", {word}, [&] { sparsify(w.view(), spec, result, Executor::serial()); });
  };
  refuses(spec_of(Selection::scalar_fraction, 1.5), "fraction in [0, 1]");
  refuses(spec_of(Selection::random_fraction, std::nan("")), "fraction in [0, 1]");
  refuses(spec_of(Selection::scalar_threshold, -1), "threshold >= 0");
  refuses(spec_of(Selection::blockwise_fraction, 0.5, 0, 4), "block sides >= 1");
  refuses(spec_of(Selection::per_block_nm, 0, 5, 4), "1 <= n <= m");
  ConstMatrixView ints = w.view();
  ints.dtype = DType::i8;
  test::expect_error("sparsify", {"int8", "quantized"},
                     [&] { sparsify(ints, spec_of(Selection::keep_all), result, Executor::serial()); });
  test::expect_error("sparsify", {"on the CPU", "cuda:0"},
                     [&] { sparsify(w.view(), spec_of(Selection::keep_all), result, Executor::cuda(0)); });
}

TEST(SparsifyErrors, OfDeviceAndWorkspace) {
  const Drawn w(DType::f32, 4, 4);
  std::vector<char> mask(16);
  const SparsifierResult result{reinterpret_cast<bool*>(mask.data()), nullptr};
  const SparsifierSpec half = spec_of(Selection::scalar_fraction, 0.5);
  const Executor nowhere = Executor::cuda(63);
  test::expect_error("sparsify", {"compute capability 8.0", "cuda:63"},
                     [&] { sparsify_workspace(w.view(), half, nowhere); });
  test::expect_error("sparsify", {"compute capability 8.0", "cuda:63"},
                     [&] { sparsify(w.view(), half, result, std::span<std::byte>(), nowhere); });
  test::expect_error("sparsify", {"fraction in [0, 1]"}, [&] {
    sparsify_workspace(w.view(), spec_of(Selection::scalar_fraction, 2), Executor::serial());
  });
  alignas(16) std::byte odd[16];
  test::expect_error("sparsify", {"aligned to 16"}, [&] {
    sparsify(w.view(), half, result, std::span(odd).subspan(1), Executor::serial());
  });
  EXPECT_EQ(sparsify_workspace(w.view(), half, Executor::serial()), 0u);
  sparsify(w.view(), half, result, std::span<std::byte>(), Executor::serial());
  EXPECT_EQ(std::count(mask.begin(), mask.end(), 1), 8);
}

TEST(SparsifyEdges, EmptyMatricesAndNoResult) {
  const SparsifierReads before = sparsifier_reads();
  sparsify({nullptr, DType::f32, 0, 5, 5}, spec_of(Selection::scalar_fraction, 0.5), {}, Executor::serial());
  const Drawn w(DType::f32, 4, 4);
  sparsify(w.view(), spec_of(Selection::scalar_fraction, 0.5), {}, Executor::serial());
  EXPECT_EQ(sparsifier_reads().elements, before.elements);
}

}  // namespace
}  // namespace sparseloom
