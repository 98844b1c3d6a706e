// A case of the kernel tests on a CUDA device: memory, streams, and what each suite is instantiated over.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/args.h"
#include "kernels/case.h"
#include "kernels/image.h"
#include "runtime/cuda.h"

namespace sparseloom::testing {

#define EXPECT_CUDA(call) \
  EXPECT_EQ(::sparseloom::runtime::cuda_error_text(call), ::sparseloom::runtime::cuda_error_text(cudaSuccess))

/// A stream that does not wait for the default one.
class Stream {
 public:
  explicit Stream(int device = 0);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }
  void wait() const;

 private:
  int device_;
  cudaStream_t stream_ = nullptr;
};

/// How a call's places lie on the device. guarded: one copy of the image, so that every stray write near them
/// is seen without a tool. exact: an allocation of its own size for each, the workspace uninitialised, so
/// that compute-sanitizer sees the rest. exact_filled: the same with poison in the workspace, for kernels
/// whose flags lie there: they take a flag of any content for not set, and initcheck would report each.
enum class Memory { guarded, exact, exact_filled };

/// One call of one kernel on memory of its own; may be launched any number of times. Borrows the instance.
class DeviceCall {
 public:
  DeviceCall(Instance& instance, const kernels::Kernel& kernel, Memory memory = Memory::guarded,
             int device = 0);
  ~DeviceCall();
  DeviceCall(const DeviceCall&) = delete;
  DeviceCall& operator=(const DeviceCall&) = delete;

  /// Queues the operands as they are now, and poison over the rest (guarded).
  void upload(const Stream& stream);
  /// Queues poison, or what the output held before, over output and workspace.
  void poison(const Stream& stream);
  /// Block rows in this order from now on, see MatmulArgs; borrowed.
  void order_block_rows(const std::vector<std::uint16_t>& order) { args_.block_row_order = order.data(); }
  /// As a call is told whose index has some block rows and groups of them much longer than others.
  void block_rows_are_uneven() { args_.uneven_block_rows = args_.uneven_groups = true; }
  /// Asks for the pre-activation too, laid out as the output: of kernels with stores_pre, once.
  void save_pre(const Stream& stream);
  /// Waits, and returns it; fails the test when anything between its rows or behind it was written.
  Matrix download_pre(const Stream& stream);
  /// Launches and returns what the launcher returned; the thread's device must not change.
  int launch(cudaStream_t stream);
  /// Waits, and returns the output; fails the test when the device reports an error or anything else was
  /// written.
  Matrix download(const Stream& stream);
  /// Waits, and takes the output alone into `out`: for many repeats.
  void download(const Stream& stream, Matrix& out);

 private:
  Instance& instance_;
  const kernels::Kernel& kernel_;
  const kernels::bsr_linear::Answer planned_;
  Memory memory_;
  int device_;
  Image image_;
  std::vector<std::byte*> addresses_;  // of each place
  std::vector<void*> allocations_;
  MatmulArgs args_;
  std::byte* pre_ = nullptr;
};

/// upload, launch, download on a stream of its own.
Matrix run_on_device(Instance& instance, const kernels::Kernel& kernel, Memory memory = Memory::guarded,
                     int device = 0);

/// The CUDA kernels that do not refuse the problem, less those that leave its residual to their caller.
std::vector<const kernels::Kernel*> runnable_on_device(const Problem& problem);

/// The one of that name, or null where the device or the problem is not for it.
const kernels::Kernel* kernel_on_device(const Instance& instance, std::string_view name);

/// Launches the kernel `runs` times twice, one launch beginning while the other ends, and fails where the
/// output is not bit by bit that of the first launch.
void expect_same_bits(Instance& instance, const kernels::Kernel& kernel, int runs);

/// Every such kernel against the answer, per tile. Fails when there is none: the GPU takes every shape.
void check_on_device(const Case& c, Memory memory = Memory::guarded, int device = 0);

/// Every such kernel that stores the pre-activation beside the output: that against the answer, the output
/// against the activation of what was stored, and the same bits in a second launch.
void check_pre_on_device(const Case& c, Memory memory = Memory::guarded);

/// What a suite runs over: direction, dtype, TF32 for f32, and dw that is added.
struct Product {
  Direction direction = Direction::forward;
  DType dtype = DType::f32;
  bool tf32 = false;
  bool accumulate = false;
};

/// All twelve, without those that accumulate, when there are at least this many devices, else none: a machine
/// without one has no such tests, and skips none.
std::vector<Product> products(int devices = 1);
/// Those four too.
std::vector<Product> products_and_sums(int devices = 1);
/// Those of one direction.
std::vector<Product> products_of(Direction direction);
std::string name_of(const ::testing::TestParamInfo<Product>& info);

/// {number} when the machine has that many devices with this much free memory, else {}.
std::vector<int> when_devices(int number, std::size_t free_bytes = 0);

class OnDevice : public ::testing::TestWithParam<Product> {
 protected:
  Case base() const;
};

}  // namespace sparseloom::testing
