}  // namespace sparseloom::kernels::avx512_vnni
#pragma GCC pop_options
