}  // namespace sparseloom::kernels::avx2
#pragma GCC pop_options
