// torch's convolution, as an executor lends it.
#pragma once

#include "sparseloom/executor.h"

namespace sparseloom::binding {

/// Executor::conv of torch_executor: aten's own operators, which choose the algorithm (cuDNN's on CUDA), on
/// torch's current stream, which is the executor's. `context`: null, then the result is copied into `out`; or
/// a std::optional<Tensor>, which afterwards holds the result: in the sizes of the tensor that it held
/// before, the memory of `out`, if it held one.
void torch_conv(void* context, DenseConv& conv);

}  // namespace sparseloom::binding
