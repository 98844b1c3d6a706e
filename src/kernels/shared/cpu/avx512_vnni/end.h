// Closes the region and namespace that begin.h opens.
}  // namespace sparseloom::kernels::avx512_vnni
#pragma GCC pop_options
