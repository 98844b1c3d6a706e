// Closes the region and namespace that begin.h opens.
}  // namespace sparseloom::kernels::amx
#pragma GCC pop_options
