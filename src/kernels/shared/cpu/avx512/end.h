// Closes the region and namespace that begin.h opens.
}  // namespace sparseloom::kernels::avx512
#pragma GCC pop_options
