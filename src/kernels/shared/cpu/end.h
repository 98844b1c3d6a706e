// Closes the region and namespace that the begin.h of any instruction set opens.
}
#pragma GCC pop_options
