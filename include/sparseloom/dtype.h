// Element types of weights and activations.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sparseloom {

/// f32, f16 and bf16 accumulate in fp32. f64 runs on the reference kernel only. i8 and f8e4m3 run the forward
/// product only and carry scales (see Scales in ops.h); i8 accumulates in int32. f8e4m3 is OCP E4M3 without
/// infinities ("OCP 8-bit Floating Point Specification", 2023): the largest value is 448, and 0x7f and 0xff
/// are NaN.
enum class DType : std::uint8_t { f32, f16, bf16, f64, i8, f8e4m3 };

/// Whether products of this type have scales and a result of another type, Problem::out.
constexpr bool is_scaled(DType type) noexcept { return type == DType::i8 || type == DType::f8e4m3; }

/// Bytes of one element.
constexpr std::size_t size_of(DType type) noexcept {
  switch (type) {
    case DType::f64: return 8;
    case DType::f32: return 4;
    case DType::f16:
    case DType::bf16: return 2;
    case DType::i8:
    case DType::f8e4m3: return 1;
  }
  return 0;
}

/// The name that plans, errors and info_json() print.
constexpr const char* name_of(DType type) noexcept {
  switch (type) {
    case DType::f32: return "f32";
    case DType::f16: return "f16";
    case DType::bf16: return "bf16";
    case DType::f64: return "f64";
    case DType::i8: return "int8";
    case DType::f8e4m3: return "float8_e4m3fn";
  }
  return "?";
}

}  // namespace sparseloom
