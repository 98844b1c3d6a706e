// What the launches of this room answer in the place of a cudaError_t where a call is not for them.
#pragma once

namespace sparseloom::kernels::cuda {

/// The copy engine cannot address an operand, or a count does not fit: another kernel takes the call. Nothing
/// has been launched.
inline constexpr int kCannotTake = -1;

}  // namespace sparseloom::kernels::cuda
