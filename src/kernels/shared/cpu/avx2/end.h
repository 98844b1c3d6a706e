// Closes the region and namespace that begin.h opens.
}  // namespace sparseloom::kernels::avx2
#pragma GCC pop_options
