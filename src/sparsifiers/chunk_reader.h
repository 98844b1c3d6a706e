// ChunkReader: the sparsifiers' only access to the elements of a matrix, so that its counts are the elements
// read.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <type_traits>

#include "sparseloom/generic/half.h"
#include "sparseloom/matrix_view.h"
#include "sparseloom/sparsifiers.h"

namespace sparseloom::sparsifiers {

/// Elements and bytes that all readers of the process delivered, and the function that asks GPUs for theirs.
struct ReadCounters {
  std::atomic<std::int64_t> elements{0}, bytes{0};
  std::atomic<SparsifierReads (*)() noexcept> on_gpus{nullptr};
};
ReadCounters& read_counters() noexcept;

/// The magnitude of an element as an integer that compares as the magnitude does. NaN becomes Inf.
template <class T>
auto key_of(T x) noexcept {
  if constexpr (std::is_same_v<T, double>)
    return std::min(std::bit_cast<std::uint64_t>(x) & ~(std::uint64_t{1} << 63), std::uint64_t{0x7ff} << 52);
  else if constexpr (std::is_same_v<T, float>)
    return std::min(std::bit_cast<std::uint32_t>(x) & 0x7fffffffu, 0x7f800000u);
  else
    return std::min<std::uint32_t>(x.bits & 0x7fffu, std::is_same_v<T, core::F16> ? 0x7c00u : 0x7f80u);
}
template <class T>
using Key = decltype(key_of(T{}));
/// Bits of a key that may be set.
template <class T>
inline constexpr int kKeyBits = 8 * static_cast<int>(sizeof(T)) - 1;

inline double to_f64(double x) noexcept { return x; }
inline double to_f64(float x) noexcept { return x; }
inline double to_f64(core::F16 x) noexcept { return core::to_f32(x); }
inline double to_f64(core::Bf16 x) noexcept { return core::to_f32(x); }

/// Reads a matrix as the sequence of its rows. One reader serves one thread; its destructor adds its counts
/// to the process's.
template <class T>
class ChunkReader {
 public:
  explicit ChunkReader(const ConstMatrixView& dense) noexcept : dense_(dense) {}
  ~ChunkReader() {
    read_counters().elements.fetch_add(read_, std::memory_order_relaxed);
    read_counters().bytes.fetch_add(read_ * static_cast<std::int64_t>(sizeof(T)), std::memory_order_relaxed);
  }
  ChunkReader(const ChunkReader&) = delete;
  ChunkReader& operator=(const ChunkReader&) = delete;

  /// Calls f(i, x) for the elements [begin, end) of the sequence, i counted from the first element of the
  /// matrix.
  template <class F>
  void read(std::int64_t begin, std::int64_t end, F&& f) {
    read_ += std::max<std::int64_t>(end - begin, 0);
    while (begin < end) {
      const std::int64_t row = begin / dense_.cols, col = begin % dense_.cols;
      const std::int64_t stop = std::min(end, begin + dense_.cols - col);
      const T* const from = static_cast<const T*>(dense_.data) + row * dense_.stride + col - begin;
      for (std::int64_t i = begin; i < stop; ++i) f(i, from[i]);
      begin = stop;
    }
  }

 private:
  ConstMatrixView dense_;
  std::int64_t read_ = 0;
};

}  // namespace sparseloom::sparsifiers
