// Opens the region and namespace of AMX code; see shared/cpu/avx2/begin.h. Every machine with AMX has all the
// AVX-512 features named here.
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,amx-tile,amx-bf16")
namespace sparseloom::kernels::amx {
