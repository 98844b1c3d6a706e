// What an entry of a CUDA kernel gets.
#pragma once

#include "sparseloom/block_attention.h"

namespace sparseloom::kernels::cuda::attention {

struct Call {
  const block_attention::Problem& problem;
  const block_attention::Args& args;
  void* stream;
};

}  // namespace sparseloom::kernels::cuda::attention
