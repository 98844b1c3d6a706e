// Opens the region and namespace of AVX2 code; end.h closes both. A region is the code between them, which is
// compiled for one instruction set. The standard library and all shared headers must be included before it:
// an inline function first seen in a region would be compiled for AVX2, and the linker could keep that copy
// for all.
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
namespace sparseloom::kernels::avx2 {
