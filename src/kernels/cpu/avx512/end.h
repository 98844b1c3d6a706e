}  // namespace sparseloom::kernels::avx512
#pragma GCC pop_options
