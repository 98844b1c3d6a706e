// The entry of decode_staged, and the instances of kernel.cuh, one translation unit each so that they compile
// in parallel. cuda/rows.h has the contract of entries.
#pragma once

#include <cstdint>
#include <limits>

#include "kernels/args.h"

namespace sparseloom::kernels::cuda {

/// sm80_decode for many narrow blocks: forward of bf16 and f16 with block sides of at most kStagedBlock. X
/// goes through shared memory. Takes values aligned to 16 bytes, and as many columns as 32 bits count.
inline constexpr int kStagedBlock = 16;
inline constexpr std::int64_t kStagedColumns = std::numeric_limits<std::int32_t>::max() - 128;
int sm80_decode_staged(const MatmulArgs& args, const Schedule& schedule) noexcept;

namespace decode::staged {

/// For forward, blocks of 8 and 16, and values aligned to 16 bytes.
int launch_bf16(const MatmulArgs& args, const Schedule& schedule) noexcept;
int launch_f16(const MatmulArgs& args, const Schedule& schedule) noexcept;

}  // namespace decode::staged

}  // namespace sparseloom::kernels::cuda
