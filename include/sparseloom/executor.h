// What the caller lends to a call: threads or a CUDA stream and, if it has one, a dense GEMM.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "sparseloom/export.h"
#include "sparseloom/matrix_view.h"

namespace sparseloom {

/// A callable borrowed for the length of one call: work on [begin, end).
struct RangeBody {
  void (*call)(void* self, std::int64_t begin, std::int64_t end);
  void* self;
  void operator()(std::int64_t begin, std::int64_t end) const { call(self, begin, end); }
};

/// C = op(A) op(B) (+ bias on every row), all row-major, fp32 accumulation for 16-bit types; op transposes
/// where the flag says so.
struct Gemm {
  ConstMatrixView a;  // [m, k], or [k, m] when a_transposed
  ConstMatrixView b;  // [k, n], or [n, k] when b_transposed
  MatrixView c;  // [m, n], overwritten; f32, unrounded, of 16-bit a and b when a dw on a device accumulates
  const void* bias = nullptr;  // [n] of c's dtype, or null; added before c is rounded
  bool a_transposed = false;
  bool b_transposed = false;
  int device = -1;         // Executor::device: where all of it lies
  void* stream = nullptr;  // Executor::stream: what the product must be queued on
};

/// C[i, j] = a_scale[i] b_scale[j] sum_k A[i, k] B[j, k] (+ bias[j]) of f8e4m3 operands, row-major, the sums
/// in fp32 or as near to it as the vendor comes (fast_accum: in what the tensor cores keep). Factors of zero,
/// Inf and NaN count as numbers do, in whatever order. Asked for on CUDA devices of compute capability 8.9
/// and newer, with k and n multiples of 16.
struct ScaledGemm {
  ConstMatrixView a;           // [m, k]
  ConstMatrixView b;           // [n, k]
  MatrixView c;                // [m, n] of bf16 or f32, overwritten
  const void* bias = nullptr;  // [n] of bf16, beside a c of bf16, or null; added before c is rounded
  const float* a_scale =
      nullptr;  // [m] when a_scale_each, else [1] for all rows; on the device, as all other memory
  const float* b_scale = nullptr;  // [n] when b_scale_each, else [1]
  bool a_scale_each = false;
  bool b_scale_each = false;
  bool fast_accum = false;  // Problem::fast_accum
  int device = -1;          // as Gemm's
  void* stream = nullptr;   // as Gemm's
};

/// Threads and GEMM are lent through plain function pointers, so that a host (torch, an engine of your own)
/// keeps its one pool. The library starts no thread and keeps none beside Executor::pool()'s.
struct Executor {
  void* context = nullptr;

  /// How many ranges one call is cut into; results are bitwise the same for every value.
  int num_threads = 1;

  /// Runs body over a partition of [0, count). May run any number of the ranges at once, must run each index
  /// exactly once, and returns when all are done. An exception of the callback's own passes through the call.
  /// Null: the calling thread alone.
  void (*parallel_for)(void* context, std::int64_t count, RangeBody body) = nullptr;

  /// The vendor's dense product, used by the `dense` candidate of a plan. Null: that candidate is refused and
  /// says so.
  void (*gemm)(void* context, const Gemm& product) = nullptr;

  /// The same for f8e4m3, on CUDA devices. Null: `dense` is refused for it.
  void (*scaled_gemm)(void* context, const ScaledGemm& product) = nullptr;

  /// Ordinal of the CUDA device that matrices, indices, values and workspace of the call lie on; -1: the CPU.
  /// A call on a device queues its work on `stream` (a cudaStream_t; null: the device's default stream),
  /// returns before that is done, never waits, and leaves the thread's current device as it was.
  int device = -1;
  void* stream = nullptr;

  /// The calling thread alone.
  static Executor serial() noexcept { return {}; }

  /// A CUDA device and a stream of it. Lend a GEMM by setting `gemm`, and `scaled_gemm`.
  static Executor cuda(int device, void* stream = nullptr) noexcept {
    Executor executor;
    executor.device = device;
    executor.stream = stream;
    return executor;
  }

  /// A process-wide pool of std::thread, grown on demand to the largest `num_threads` asked for (0: one per
  /// CPU this process may use).
  SPARSELOOM_API static Executor pool(int num_threads = 0);
};

/// Scratch memory for the calls of one thread, aligned to 64 bytes: grows to the largest plan it met and
/// keeps that.
class SPARSELOOM_API Workspace {
 public:
  /// Throws std::bad_alloc when there is no memory.
  std::span<std::byte> at_least(std::size_t bytes);

 private:
  struct Free {
    void operator()(std::byte* memory) const noexcept;
  };
  std::unique_ptr<std::byte, Free> memory_;
  std::size_t size_ = 0;
};

}  // namespace sparseloom
