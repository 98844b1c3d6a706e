// Draws the arguments of hostile calls: sizes, and memory of exactly its size with a page behind it that
// nobody may touch, so that a product built without a sanitizer is caught too.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "sparseloom/dtype.h"
#include "sparseloom/matrix_view.h"

namespace sparseloom::hostile {

/// Numbers that overflow, or that a size or an entry must not be.
inline constexpr std::int64_t kNumbers[] = {0,
                                            1,
                                            -1,
                                            7,
                                            std::int64_t{1} << 31,
                                            (std::int64_t{1} << 31) - 1,
                                            std::int64_t{1} << 32,
                                            std::int64_t{1} << 53,
                                            std::int64_t{1} << 62,
                                            std::numeric_limits<std::int64_t>::max(),
                                            std::numeric_limits<std::int64_t>::min()};

/// No matrix with memory has longer sides.
inline constexpr std::int64_t kMost = 1 << 16;

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : engine_(seed) {}
  std::uint64_t bits() { return engine_(); }
  /// 0 to n - 1.
  std::int64_t below(std::int64_t n) {
    return static_cast<std::int64_t>(bits() % static_cast<std::uint64_t>(n));
  }
  bool chance(int percent) { return below(100) < percent; }
  template <class T, std::size_t N>
  T pick(const T (&from)[N]) {
    return from[below(N)];
  }
  std::int64_t number() { return pick(kNumbers); }
  /// A size up to `most`, neighbours of multiples of 8 among them; seldom a number that no size is.
  std::int64_t size(std::int64_t most) {
    if (chance(4)) return number();
    const std::int64_t near = 8 * below(most / 8 + 1) + below(3) - 1;
    return std::clamp<std::int64_t>(chance(50) ? near : below(most + 1), 0, most);
  }
  DType dtype() {
    return pick({DType::f32, DType::f32, DType::f32, DType::f64, DType::f64, DType::bf16, DType::f16,
                 DType::i8, DType::f8e4m3});
  }

 private:
  template <class T>
  T pick(std::initializer_list<T> from) {
    return from.begin()[below(static_cast<std::int64_t>(from.size()))];
  }
  std::mt19937_64 engine_;
};

/// What one case allocates. Each piece ends at a forbidden page.
class Memory {
 public:
  Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() {
    for (const auto& [begin, bytes] : maps_) ::munmap(begin, bytes);
  }

  /// Zeros; null for none. The address is what the size leaves: aligned to the element alone.
  void* bytes(std::int64_t size) {
    if (size <= 0) return nullptr;
    const auto page = static_cast<std::int64_t>(::sysconf(_SC_PAGESIZE));
    const std::int64_t room = (size + page - 1) / page * page;
    void* const begin = ::mmap(nullptr, static_cast<std::size_t>(room + page), PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (begin == MAP_FAILED) throw std::bad_alloc();
    maps_.emplace_back(begin, static_cast<std::size_t>(room + page));
    ::mprotect(static_cast<std::byte*>(begin) + room, static_cast<std::size_t>(page), PROT_NONE);
    return static_cast<std::byte*>(begin) + (room - size);
  }
  template <class T>
  T* array(const std::vector<T>& from) {
    T* const to = static_cast<T*>(bytes(static_cast<std::int64_t>(from.size() * sizeof(T))));
    if (to != nullptr) std::memcpy(to, from.data(), from.size() * sizeof(T));
    return to;
  }

  /// [rows, cols] of small whole numbers, with rows that may be longer; it ends with its last element.
  MatrixView matrix(Draw& draw, DType dtype, std::int64_t rows, std::int64_t cols) {
    rows = std::max<std::int64_t>(rows, 0), cols = std::max<std::int64_t>(cols, 0);
    if (rows > kMost || cols > kMost) return {nullptr, dtype, rows, cols, cols};
    const std::int64_t stride = cols + (draw.chance(60) ? 0 : draw.below(9));
    const auto element = static_cast<std::int64_t>(size_of(dtype));
    const std::int64_t count = rows == 0 || cols == 0 ? 0 : (rows - 1) * stride + cols;
    void* const data = bytes(count * element);
    for (std::int64_t i = 0; i < count; ++i) put(data, dtype, i, static_cast<int>(draw.below(5)) - 2);
    return {data, dtype, rows, cols, stride};
  }

  static void put(void* data, DType dtype, std::int64_t at, int number) {
    if (dtype == DType::f32) static_cast<float*>(data)[at] = static_cast<float>(number);
    if (dtype == DType::f64) static_cast<double*>(data)[at] = number;
    if (dtype == DType::i8) static_cast<std::int8_t*>(data)[at] = static_cast<std::int8_t>(number);
    static constexpr std::uint16_t kBf16[] = {0xC000, 0xBF80, 0, 0x3F80, 0x4000};  // -2 to 2
    static constexpr std::uint16_t kF16[] = {0xC000, 0xBC00, 0, 0x3C00, 0x4000};
    if (dtype == DType::bf16) static_cast<std::uint16_t*>(data)[at] = kBf16[number + 2];
    if (dtype == DType::f16) static_cast<std::uint16_t*>(data)[at] = kF16[number + 2];
  }

 private:
  std::vector<std::pair<void*, std::size_t>> maps_;
};

/// One element of f32 or f64.
inline double at(const ConstMatrixView& m, std::int64_t row, std::int64_t col) {
  const std::int64_t i = row * m.stride + col;
  return m.dtype == DType::f32 ? static_cast<double>(static_cast<const float*>(m.data)[i])
                               : static_cast<const double*>(m.data)[i];
}

}  // namespace sparseloom::hostile
