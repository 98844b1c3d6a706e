// Opens the region and namespace of AVX2 code; end.h closes both. Everything from the standard library and
// all shared headers are included before it: an inline function first seen in here would be compiled for AVX2
// and could be the copy the linker keeps.
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
namespace sparseloom::kernels::avx2 {
