// Elements of every dtype in memory, and a matrix of them with guards around it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/allocation.h"
#include "kernels/args.h"

namespace sparseloom::testing {

double load(DType dtype, const void* data, std::int64_t i);
void store(DType dtype, void* data, std::int64_t i, double value);

/// Bytes of poison behind each matrix. None where a page that nobody may touch follows.
inline const std::size_t kGuard = guarded() ? 0 : 64;
constexpr std::byte kPoison{0xff};  // all ones is a NaN in every dtype

/// Memory as a call's workspace of `bytes`: poison, at a multiple of 64 bytes, with kGuard bytes more behind
/// it.
class Scratch {
 public:
  explicit Scratch(std::size_t bytes);
  std::byte* data() { return memory_.get(); }
  std::span<std::byte> span() { return {memory_.get(), bytes_}; }
  bool overrun() const;

 private:
  struct Free {
    void operator()(std::byte* memory) const noexcept;
  };
  std::size_t bytes_, allocated_;
  std::unique_ptr<std::byte, Free> memory_;
};

/// A row-major matrix in memory of its own, every byte of it outside [rows, cols] poisoned with NaN.
struct Matrix {
  DType dtype = DType::f32;
  std::int64_t rows = 0, cols = 0, stride = 0, offset = 0;
  std::vector<std::byte> bytes;

  Matrix(DType dtype, std::int64_t rows, std::int64_t cols, std::int64_t padding)
      : Matrix(dtype, rows, cols, padding, padding) {}
  Matrix(DType dtype, std::int64_t rows, std::int64_t cols, std::int64_t padding, std::int64_t offset);
  void* data() { return bytes.data() + offset * static_cast<std::int64_t>(size_of(dtype)); }
  double at(std::int64_t r, std::int64_t c) const {
    return load(dtype, bytes.data(), offset + r * stride + c);
  }
  void set(std::int64_t r, std::int64_t c, double v) {
    store(dtype, bytes.data(), offset + r * stride + c, v);
  }
  /// All bits of the element one: a NaN whose payload a kernel that rounds by adding bits would carry into
  /// the sign.
  void poison(std::int64_t r, std::int64_t c);
  bool padding_untouched() const;
};

}  // namespace sparseloom::testing
