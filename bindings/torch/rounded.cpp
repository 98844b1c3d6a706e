#include "rounded.h"

#include "core/check.h"
#include "sparseloom/quantize.h"

namespace sparseloom::binding {
namespace {

constexpr std::size_t kAlign = 64;

}  // namespace

DType multiplied_as(const char* op, const Tensor& x, const Tensor& values, int device) {
  const DType dtype = dtype_of(op, "x", x);
  const bool rounds = device < 0 && (dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16) &&
                      dtype_of(op, "values", values) == DType::i8;
  return rounds ? DType::i8 : operand_of(op, x);
}

RoundedX::RoundedX(const char* op, const ConstMatrixView& x, DType dtype,
                   const std::optional<Tensor>& x_scale, int device)
    : x_(x), rounds_(x.dtype != dtype) {
  if (!x_scale && !rounds_)
    core::fail(op, "x_scale beside x in 8 bits", "none", "pass the factors that quantize_rows returned");
  if (x_scale && rounds_ && x_scale->numel() != 1)
    core::fail(op, "x_scale of one element, or none, beside x that the call rounds", shape_of(*x_scale),
               "leave it out: every token gets a factor of its own");
  if (x_scale) given_ = factors_of(op, "x_scale", *x_scale, rounds_ ? 1 : x.rows, "token", device);
}

std::size_t RoundedX::values_at(std::size_t own) const { return core::round_up(own, kAlign); }

std::size_t RoundedX::scale_at(std::size_t own) const {
  return core::round_up(values_at(own) + static_cast<std::size_t>(x_.rows * x_.cols), kAlign);
}

std::size_t RoundedX::bytes(std::size_t own) const {
  if (!rounds_) return own;
  return scale_at(own) + (given_ ? 0 : static_cast<std::size_t>(x_.rows) * sizeof(float));
}

RoundedX::Operand RoundedX::operand(std::span<std::byte> workspace, std::size_t own,
                                    const Executor& executor) const {
  if (!rounds_) return {x_, given_->span};
  auto* const values = reinterpret_cast<std::int8_t*>(workspace.data() + values_at(own));
  auto* const scale = reinterpret_cast<float*>(workspace.data() + scale_at(own));
  quantize_rows(x_, given_ ? given_->span.data() : nullptr, {values, given_ ? nullptr : scale}, executor);
  return {{values, DType::i8, x_.rows, x_.cols, x_.cols},
          given_ ? given_->span : std::span<const float>(scale, static_cast<std::size_t>(x_.rows))};
}

}  // namespace sparseloom::binding
