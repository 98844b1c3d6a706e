// Closes the region and namespace that begin.h opens.
}  // namespace sparseloom::kernels::avx512_bf16
#pragma GCC pop_options
