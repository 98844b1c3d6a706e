// The decode kernels: few tokens, so time is the bytes of the stored blocks, each read once and never packed.
#pragma once

#include <cstdint>

#include "kernels/args.h"
#include "kernels/cpu/cell.h"

namespace sparseloom::kernels::cpu {

inline constexpr int kDecodeTokens = 8;

/// Outputs [begin, end) of one call, multiples of `unit`: 8 rows of W (forward), or a strip of columns inside
/// one block (dx).
struct DecodeRange {
  std::int64_t begin, end;
};

using DecodeFunction = void (*)(const MatmulArgs& args, DecodeRange units);

struct DecodeOps {
  int lanes;
  DecodeFunction (*function)(DType dtype, Direction direction, std::int64_t tokens);
  std::int64_t (*dx_strip)(std::int64_t tokens, std::int64_t block_cols);  // columns of one dx unit
};

extern const DecodeOps kAvx2Decode, kAvx512Decode;
extern const DecodeOps kAvx512Bf16Decode;  // forward of bf16 alone

void run_decode(const DecodeOps& ops, const MatmulArgs& args, const Executor& executor);

}  // namespace sparseloom::kernels::cpu
