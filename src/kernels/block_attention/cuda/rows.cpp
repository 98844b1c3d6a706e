#include "kernels/block_attention/rows.h"

namespace sparseloom::kernels {

std::span<const AttentionRow> attention_cuda_rows() { return {}; }

}  // namespace sparseloom::kernels
