}  // namespace sparseloom::kernels::amx
#pragma GCC pop_options
