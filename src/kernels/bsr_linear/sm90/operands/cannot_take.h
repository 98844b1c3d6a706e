// What the launchers of this folder return in place of a cudaError_t when they cannot take a call.
#pragma once

namespace sparseloom::kernels::cuda {

/// TMA cannot address an operand, or a count does not fit. Nothing has been launched, and another kernel
/// takes the call.
inline constexpr int kCannotTake = -1;

}  // namespace sparseloom::kernels::cuda
