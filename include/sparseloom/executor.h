// Executor: what the caller lends to a call. That is threads or a CUDA stream and, if the caller has them, a
// dense GEMM and a dense convolution. Workspace: scratch memory for CPU calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "sparseloom/conv_shape.h"
#include "sparseloom/direction.h"
#include "sparseloom/export.h"
#include "sparseloom/matrix_view.h"

namespace sparseloom {

/// A callable that is borrowed for the length of one call; it works on the indices [begin, end).
struct RangeBody {
  void (*call)(void* self, std::int64_t begin, std::int64_t end);
  void* self;
  void operator()(std::int64_t begin, std::int64_t end) const { call(self, begin, end); }
};

/// One dense product C = op(A) op(B) (+ bias on every row). All matrices are row-major; op transposes if its
/// flag is set; 16-bit types accumulate in fp32.
struct Gemm {
  ConstMatrixView a;  // [m, k], or [k, m] when a_transposed
  ConstMatrixView b;  // [k, n], or [n, k] when b_transposed
  // [m, n], overwritten. Has the dtype of a and b, or f32 (sums that were never rounded) if a dw on a CUDA
  // device accumulates 16-bit a and b.
  MatrixView c;
  const void* bias = nullptr;  // [n] of c's dtype, or null; added before c is rounded
  bool a_transposed = false;
  bool b_transposed = false;
  int device = -1;         // Executor::device, which has all these matrices
  void* stream = nullptr;  // Executor::stream: the product must be queued on it
};

/// C[i, j] = a_scale[i] b_scale[j] sum_k A[i, k] B[j, k] (+ bias[j]) of f8e4m3 operands, all row-major. The
/// sums are in fp32, or as close to it as the vendor's kernel comes; with fast_accum they stay in the
/// precision of the tensor cores. Scales of 0, Inf and NaN are multiplied like other numbers, in any order.
/// The library asks for this only on CUDA devices of compute capability 8.9 and newer, with k and n multiples
/// of 16.
struct ScaledGemm {
  ConstMatrixView a;           // [m, k]
  ConstMatrixView b;           // [n, k]
  MatrixView c;                // [m, n] of bf16 or f32, overwritten
  const void* bias = nullptr;  // [n] of bf16, beside a c of bf16, or null; added before c is rounded
  // [m] when a_scale_each, else one factor [1] for all rows; on the device, like all other memory here.
  const float* a_scale = nullptr;
  const float* b_scale = nullptr;  // [n] when b_scale_each, else [1]
  bool a_scale_each = false;
  bool b_scale_each = false;
  bool fast_accum = false;  // Problem::fast_accum
  int device = -1;          // as in Gemm
  void* stream = nullptr;   // as in Gemm
};

/// One convolution with a dense W, or one of its gradients. A matrix has a row of channels for each pixel, in
/// the order of ConvShape, images first; W and dW are [rows, taps * cols], which is channels-last memory.
struct DenseConv {
  Direction direction = Direction::forward;
  ConvShape shape;
  ConstMatrixView a;  // forward: x [in pixels, cols]; dx and dw: dy [out pixels, rows]
  ConstMatrixView b;  // forward and dx: W; dw: x
  /// y, dx or dW, of the dtype of a and b: overwritten. A vendor's library that returns memory of its own
  /// need not copy: the lender may set data and stride to that memory, in this layout, and leaves `out`
  /// unwritten. The memory has to stay valid, and writable, until the call has returned (on CUDA: until its
  /// work is done).
  MatrixView out;
  const void* bias = nullptr;  // [channels of out] of the same dtype, or null; forward and dx only
  int device = -1;             // as in Gemm
  void* stream = nullptr;      // as in Gemm
};

/// Threads, GEMM and convolution are lent through plain function pointers, so that a host (torch, or an
/// engine of your own) keeps its one thread pool. The library starts no threads except those of
/// Executor::pool().
struct Executor {
  /// Passed unchanged to the function pointers below.
  void* context = nullptr;

  /// The number of ranges of one call. Results are bitwise the same for every value.
  int num_threads = 1;

  /// The present delay of the threads that parallel_for lends, in microseconds, as far as the host knows:
  /// beside busy processes it depends on the scheduler. A call is divided only if that saves more time.
  /// Results do not depend on it.
  double late_us = 0;

  /// Runs body over a partition of [0, count). It may run any number of the ranges at once, must run each
  /// index exactly once, and returns when all are done. An exception that this callback itself throws passes
  /// through the call. Null: the calling thread does all the work.
  void (*parallel_for)(void* context, std::int64_t count, RangeBody body) = nullptr;

  /// The vendor's dense product, which the `dense` candidate of a plan calls. Null: the plan refuses that
  /// candidate and says so.
  void (*gemm)(void* context, const Gemm& product) = nullptr;

  /// The same for f8e4m3, on CUDA devices. Null: the plan refuses `dense` for f8e4m3.
  void (*scaled_gemm)(void* context, const ScaledGemm& product) = nullptr;

  /// The vendor's dense convolution, which the `dense` candidate of a convolution's plan calls. Null: the
  /// plan refuses that candidate and says so.
  void (*conv)(void* context, DenseConv& product) = nullptr;

  /// Ordinal of the CUDA device of the call's matrices, indices, values and workspace; -1: the CPU. A call on
  /// a device queues its work on `stream` (a cudaStream_t; null: the device's default stream) and returns
  /// before that work is done. It never waits, and it does not change the thread's current device.
  int device = -1;
  void* stream = nullptr;

  /// Runs everything on the calling thread; lends no dense product.
  static Executor serial() noexcept { return {}; }

  /// A CUDA device and one of its streams. Set `gemm`, `scaled_gemm` and `conv` afterwards to lend them.
  static Executor cuda(int device, void* stream = nullptr) noexcept {
    Executor executor;
    executor.device = device;
    executor.stream = stream;
    return executor;
  }

  /// A process-wide pool of std::thread. It grows to the largest requested `num_threads` (0: one thread for
  /// each CPU this process may use).
  SPARSELOOM_API static Executor pool(int num_threads = 0);
};

/// Scratch memory in host memory for the calls of one thread, aligned to 64 bytes. It grows to the largest
/// requested size and keeps it.
class SPARSELOOM_API Workspace {
 public:
  /// At least `bytes` of scratch; the content is undefined. Throws std::bad_alloc when there is no memory.
  std::span<std::byte> at_least(std::size_t bytes);

 private:
  struct Free {
    void operator()(std::byte* memory) const noexcept;
  };
  std::unique_ptr<std::byte, Free> memory_;
  std::size_t size_ = 0;
};

}  // namespace sparseloom
