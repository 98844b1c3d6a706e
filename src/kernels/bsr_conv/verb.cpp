// The verb of sparseloom/bsr_conv.h: its key and its text.
#include "sparseloom/bsr_conv.h"

namespace sparseloom::bsr_conv {
namespace {

std::uint64_t word(std::int64_t number) { return static_cast<std::uint64_t>(number); }
std::uint64_t pair(std::int32_t high, std::int32_t low) {
  return word(high) << 32 | static_cast<std::uint32_t>(low);
}

// Strides, paddings, dilations and kernels below 2^16 have words of their own in the key; with larger ones
// the plan would take two problems for one. make_plan refuses them.
std::uint64_t taps_of(const ConvAxis& a) {
  return word(a.kernel) << 48 | word(a.stride) << 32 | word(a.padding) << 16 | word(a.dilation);
}

}  // namespace

ProblemKey Conv::key(const Problem& p) {
  const std::uint64_t flags = word(p.aligned) | word(p.out_aligned) << 1 | word(p.bias) << 2 |
                              word(p.can_gemm) << 3 | word(p.strict) << 4 | word(p.residual) << 5 |
                              word(p.accumulate) << 6 | word(p.tf32) << 7;
  const auto& axis = p.shape.axis;
  return {pair(axis[0].in, axis[0].out),
          pair(axis[1].in, axis[1].out),
          pair(axis[2].in, axis[2].out),
          taps_of(axis[0]),
          taps_of(axis[1]),
          taps_of(axis[2]),
          pair(p.shape.images, p.threads),
          word(p.rows) << 32 | static_cast<std::uint32_t>(p.cols),
          word(p.blocks),
          pair(p.block.rows, p.block.cols),
          word(p.facts.digest()) << 16 | static_cast<std::uint16_t>(p.device),
          word(static_cast<int>(p.direction)) | word(static_cast<int>(p.dtype)) << 8 |
              word(static_cast<int>(p.activation)) << 16 | flags << 24};
}

std::string Conv::print(const Problem& p) {
  const auto of_axes = [&](auto member) {
    std::string text;
    for (const ConvAxis& axis : p.shape.axis)
      text += (text.empty() ? "" : "x") + std::to_string(axis.*member);
    return text;
  };
  return to_string(static_cast<const sparseloom::Problem&>(p)) + " images=" + std::to_string(p.shape.images) +
         " in=" + of_axes(&ConvAxis::in) + " out=" + of_axes(&ConvAxis::out) +
         " kernel=" + of_axes(&ConvAxis::kernel) + " stride=" + of_axes(&ConvAxis::stride) +
         " padding=" + of_axes(&ConvAxis::padding) + " dilation=" + of_axes(&ConvAxis::dilation);
}

}  // namespace sparseloom::bsr_conv
