// Draws the arguments of hostile calls: sizes, and memory of exactly its size with a page behind it that
// nobody may touch, so that a product built without a sanitizer is caught too. The kinds of calls are at the
// end; hostile_test.cpp runs them.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "sparseloom/dtype.h"
#include "sparseloom/executor.h"
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

inline Executor executor_of(Draw& draw) {
  Executor executor;
  executor.num_threads = draw.chance(80) ? 1 : static_cast<int>(draw.below(4));
  if (draw.chance(3)) executor.num_threads = -1;
  if (draw.chance(3)) return Executor::pool(2);
  return executor;
}

/// A matrix of the sizes that are right, or, seldom, one that is wrong in one respect.
inline MatrixView operand(Draw& draw, Memory& memory, DType dtype, std::int64_t rows, std::int64_t cols) {
  if (draw.chance(5)) rows = std::min<std::int64_t>(rows, kMost) + draw.below(3) - 1;
  if (draw.chance(5)) cols = std::min<std::int64_t>(cols, kMost) + draw.below(3) - 1;
  if (draw.chance(3)) dtype = draw.dtype();
  MatrixView made =
      memory.matrix(draw, dtype, std::min<std::int64_t>(rows, 300), std::min<std::int64_t>(cols, 300));
  if (draw.chance(3)) made.data = nullptr;
  if (draw.chance(3)) made.stride = draw.chance(50) ? made.cols - 1 : -made.stride;
  if (draw.chance(2)) made.data = nullptr, made.rows = std::max<std::int64_t>(draw.number(), 0);
  return made;
}

/// So many bytes, mostly; aligned to 64 of them, mostly.
inline std::span<std::byte> workspace(Draw& draw, Memory& memory, std::size_t bytes) {
  if (bytes > (1 << 24)) return {};  // of a plan for more tokens than any call has
  if (draw.chance(5) && bytes > 0) bytes -= 1;
  const std::size_t room = (bytes + 63) / 64 * 64 + (draw.chance(4) ? 8 : 0);
  auto* const data = static_cast<std::byte*>(memory.bytes(static_cast<std::int64_t>(room)));
  return {draw.chance(3) ? nullptr : data, bytes};
}

/// An index by rows of at most 300 x 300, and its lists, of which some entries may be wrong.
struct Lists {
  std::vector<std::int32_t> crow, col;
  Lists(Draw& draw, std::int64_t lines, std::int64_t across) {
    const int percent = std::array{0, 20, 50, 100}[static_cast<std::size_t>(draw.below(4))];
    crow.push_back(0);
    for (std::int64_t r = 0; r < lines; ++r) {
      for (std::int64_t c = 0; c < across; ++c)
        if (draw.chance(percent)) col.push_back(static_cast<std::int32_t>(c));
      crow.push_back(static_cast<std::int32_t>(col.size()));
    }
    if (!draw.chance(30)) return;
    std::vector<std::int32_t>& list = draw.chance(50) || col.empty() ? crow : col;
    std::int32_t& entry = list[static_cast<std::size_t>(draw.below(static_cast<std::int64_t>(list.size())))];
    entry = draw.chance(50) ? entry + static_cast<std::int32_t>(draw.below(3)) - 1
                            : static_cast<std::int32_t>(draw.number());
    if (draw.chance(20)) list.pop_back();
  }
};

inline std::int64_t lines_of(std::int64_t size, std::int64_t side) {
  return size < 0 || size > 300 || side <= 0 ? 0 : (size + side - 1) / side;
}

inline bool exact(DType dtype) { return dtype == DType::f32 || dtype == DType::f64; }

/// Requires y = x W^T, where W is dense: whole numbers, whose sums are exact.
inline void expect_product(const ConstMatrixView& x, const ConstMatrixView& w, const ConstMatrixView& y) {
  for (std::int64_t t = 0; t < y.rows; ++t) {
    for (std::int64_t o = 0; o < y.cols; ++o) {
      double sum = 0;
      for (std::int64_t i = 0; i < x.cols; ++i) sum += at(x, t, i) * at(w, o, i);
      ASSERT_EQ(at(y, t, o), sum) << t << ", " << o;
    }
  }
}

// One call or a few each: hostile_attention.cpp, hostile_layers.cpp, and from eight_bits on
// hostile_formats.cpp.
void attention(Draw& draw);
void convolutions(Draw& draw);
void gates(Draw& draw);
void recurrent(Draw& draw);
void unit_norms(Draw& draw);
void eight_bits(Draw& draw);
void packings(Draw& draw);
void prunings(Draw& draw);
void topologies(Draw& draw);

}  // namespace sparseloom::hostile
