// The kernels of sparsifiers, compiled for the CPU, take what the CPU's own code takes, read what they count
// and write nothing else. cuda_runtime.h of this folder says what that shows.
#include "kernels/shared/sparsify/sparsify.h"

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <vector>

#include "kernels/shared/sparsify/choice.cuh"
#include "sparsifiers/device_cases.h"

namespace sparseloom::kernels::cuda::sparsify {

// What a launch asks for as dynamic shared memory.
constinit thread_local std::uint32_t packed[kBinWords];

}  // namespace sparseloom::kernels::cuda::sparsify

namespace sparseloom::testing {
namespace {

namespace cuda = kernels::cuda;

std::int64_t counted_bytes() {
  SparsifierReads reads;
  cuda::sm80_sparsifier_reads(reads);
  return reads.bytes;
}

/// Memory that is aligned as CUDA's is, with guards around it.
class Guarded {
 public:
  explicit Guarded(std::vector<std::byte> bytes)
      : bytes_(std::move(bytes)), all_(bytes_.size() + 768, kGuard) {
    const auto at = reinterpret_cast<std::uintptr_t>(all_.data());
    begin_ = (256 - at % 256) % 256 + 256;
    if (!bytes_.empty()) std::memcpy(data(), bytes_.data(), bytes_.size());
  }
  std::byte* data() { return all_.data() + begin_; }
  std::vector<std::byte> read() const {
    const auto first = all_.begin() + static_cast<std::ptrdiff_t>(begin_),
               last = first + static_cast<std::ptrdiff_t>(bytes_.size());
    const auto is_guard = [](std::byte b) { return b == kGuard; };
    EXPECT_TRUE(std::all_of(all_.begin(), first, is_guard) && std::all_of(last, all_.end(), is_guard))
        << "wrote outside";
    return {first, last};
  }

 private:
  static constexpr std::byte kGuard{0x5a};
  std::vector<std::byte> bytes_, all_;
  std::size_t begin_;
};

int multiprocessors = 1;

SparsifyOutput run(const SparsifyCase& c, const std::vector<std::byte>& memory, const SparsifierSpec& spec,
                   bool with_mask, bool with_values) {
  const SparsifyOutput poison(c);
  Guarded dense(memory), mask(poison.mask), values(poison.values);
  const ConstMatrixView view = view_of(c, dense.data());
  Guarded workspace(std::vector<std::byte>(cuda::sm80_sparsify_workspace(view, spec), std::byte{0xa5}));
  cuda::Sparsify call{view, spec,
                      result_of(c, with_mask ? mask.data() : nullptr, with_values ? values.data() : nullptr)};
  call.workspace = workspace.data(), call.multiprocessors = multiprocessors;
  const std::int64_t counted = counted_bytes();
  on_host::settings().bytes_loaded = 0;
  EXPECT_EQ(cuda::sm80_sparsify(call), cudaSuccess);
  // Scores of blocks are read by the same reader, but are no elements of the matrix.
  if (spec.selection == Selection::blockwise_fraction)
    EXPECT_LE(counted_bytes() - counted, on_host::settings().bytes_loaded);
  else
    EXPECT_EQ(counted_bytes() - counted, on_host::settings().bytes_loaded);
  workspace.read();
  SparsifyOutput output(c);
  output.mask = mask.read(), output.values = values.read();
  return output;
}

/// How the grids run: on one thread, turned round, and three thread blocks at a time.
struct Way {
  int thread_blocks;
  bool reversed;
  int multiprocessors;
};

class OnHost : public ::testing::TestWithParam<std::tuple<DType, Values>> {
 protected:
  void check(std::int64_t rows, std::int64_t cols, std::int64_t gap, std::int64_t offset, const Way& way) {
    on_host::settings().thread_blocks = way.thread_blocks, on_host::settings().reversed = way.reversed;
    multiprocessors = way.multiprocessors;
    const auto [dtype, values] = GetParam();
    expect_as_on_the_cpu({dtype, rows, cols, gap, offset, values}, sparsify_specs(), run);
  }
};

INSTANTIATE_TEST_SUITE_P(, OnHost,
                         ::testing::Combine(::testing::Values(DType::f32, DType::f16, DType::bf16,
                                                              DType::f64),
                                            ::testing::ValuesIn(kValues)));

TEST_P(OnHost, TakesWhatTheCpuTakes) {
  const auto [dtype, values] = GetParam();
  switch ((static_cast<int>(dtype) + static_cast<int>(values)) % 3) {
    case 0: check(37, 448, 0, 0, {1, false, 1}); break;
    case 1: check(37, 301, 5, 0, {3, true, 2}); break;
    default: check(33, 328, 8, 8, {3, false, 2}); break;
  }
  check(1, 1, 0, 0, {1, false, 1});
  check(7, 3, 0, 1, {1, true, 2});
}

TEST(OnHostRanks, PassManyTiles) {
  on_host::settings().thread_blocks = 3, on_host::settings().reversed = false;
  multiprocessors = 3;
  std::vector<SparsifierSpec> specs(2);
  specs[0].amount = 0.3, specs[1].amount = 0.9;
  for (SparsifierSpec& spec : specs) spec.selection = Selection::scalar_fraction;
  // Rows that lie apart are read element by element: 74 tiles, of which a warp looks back over 32 at a time.
  expect_as_on_the_cpu({DType::bf16, 3, 50021, 1, 0, Values::equal}, specs, run);
  expect_as_on_the_cpu({DType::f32, 3, 50021, 1, 0, Values::ties}, specs, run);
}

}  // namespace
}  // namespace sparseloom::testing
