#include "kernels/matrix.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "sparseloom/generic/float8.h"
#include "sparseloom/generic/half.h"

namespace sparseloom::testing {

double load(DType dtype, const void* data, std::int64_t i) {
  const auto* p = static_cast<const std::byte*>(data) + i * static_cast<std::int64_t>(size_of(dtype));
  if (dtype == DType::f32) {
    float v;
    std::memcpy(&v, p, sizeof v);
    return v;
  }
  if (dtype == DType::f64) {
    double v;
    std::memcpy(&v, p, sizeof v);
    return v;
  }
  if (dtype == DType::i8) return static_cast<std::int8_t>(*p);
  if (dtype == DType::f8e4m3) return core::to_f32(core::F8E4M3{static_cast<std::uint8_t>(*p)});
  std::uint16_t bits;
  std::memcpy(&bits, p, sizeof bits);
  return dtype == DType::f16 ? core::to_f32(core::F16{bits}) : core::to_f32(core::Bf16{bits});
}

void store(DType dtype, void* data, std::int64_t i, double value) {
  auto* p = static_cast<std::byte*>(data) + i * static_cast<std::int64_t>(size_of(dtype));
  if (dtype == DType::f32) {
    const float v = static_cast<float>(value);
    std::memcpy(p, &v, sizeof v);
    return;
  }
  if (dtype == DType::f64) {
    std::memcpy(p, &value, sizeof value);
    return;
  }
  if (is_scaled(
          dtype)) {  // the byte that stands for it: 8-bit operands are drawn as bytes, few are set by value
    for (int bits = 0; bits < 256; ++bits) {
      *p = static_cast<std::byte>(bits);
      if (load(dtype, p, 0) == value) return;
    }
    std::abort();
  }
  const std::uint16_t bits = dtype == DType::f16 ? core::to_f16(value).bits : core::to_bf16(value).bits;
  std::memcpy(p, &bits, sizeof bits);
}

void Scratch::Free::operator()(std::byte* memory) const noexcept { std::free(memory); }

Scratch::Scratch(std::size_t bytes)
    : bytes_(bytes),
      allocated_(guarded() ? bytes : (bytes + 2 * kGuard - 1) / kGuard * kGuard),
      memory_(static_cast<std::byte*>(std::aligned_alloc(64, allocated_))) {
  std::fill_n(memory_.get(), allocated_, kPoison);
}

bool Scratch::overrun() const {
  return std::any_of(memory_.get() + bytes_, memory_.get() + allocated_,
                     [](std::byte b) { return b != kPoison; });
}

Matrix::Matrix(DType dtype_, std::int64_t rows_, std::int64_t cols_, std::int64_t padding,
               std::int64_t offset_)
    : dtype(dtype_),
      rows(rows_),
      cols(cols_),
      stride(cols_ + padding),
      offset(offset_),
      bytes(static_cast<std::size_t>(offset + (rows > 0 ? (rows - 1) * stride + cols : 0)) * size_of(dtype) +
                kGuard,
            kPoison) {}

void Matrix::poison(std::int64_t r, std::int64_t c) {
  const auto size = static_cast<std::int64_t>(size_of(dtype));
  std::fill_n(bytes.begin() + (offset + r * stride + c) * size, size, kPoison);
}

bool Matrix::padding_untouched() const {
  const std::int64_t size = static_cast<std::int64_t>(size_of(dtype)),
                     end = static_cast<std::int64_t>(bytes.size());
  const auto poisoned = [&](std::int64_t first, std::int64_t last) {
    return std::all_of(bytes.begin() + first, bytes.begin() + std::min(last, end),
                       [](std::byte b) { return b == kPoison; });
  };
  if (rows == 0 || cols == 0) return poisoned(0, end);
  bool untouched = poisoned(0, offset * size);
  for (std::int64_t r = 0; r < rows; ++r)
    untouched &= poisoned((offset + r * stride + cols) * size,
                          r + 1 < rows ? (offset + (r + 1) * stride) * size : end);
  return untouched;
}

}  // namespace sparseloom::testing
