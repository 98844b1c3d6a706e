// Element types of weights and activations.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sparseloom {

/// f32, f16 and bf16 accumulate in fp32; f64 runs on the reference kernel only.
enum class DType : std::uint8_t { f32, f16, bf16, f64 };

constexpr std::size_t size_of(DType type) noexcept { return type == DType::f64 ? 8 : type == DType::f32 ? 4 : 2; }

constexpr const char* name_of(DType type) noexcept {
  switch (type) {
    case DType::f32: return "f32";
    case DType::f16: return "f16";
    case DType::bf16: return "bf16";
    case DType::f64: return "f64";
  }
  return "?";
}

}  // namespace sparseloom
