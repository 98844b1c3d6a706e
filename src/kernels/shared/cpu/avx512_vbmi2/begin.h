// Opens the region and namespace of code that needs AVX-512 VBMI2; see ../avx2/begin.h.
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi2")
namespace sparseloom::kernels::avx512_vbmi2 {
