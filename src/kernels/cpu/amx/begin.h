// Opens the region and namespace of AMX code; see avx2/begin.h. Machines with AMX have all of AVX-512 that is
// named here.
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,amx-tile,amx-bf16")
namespace sparseloom::kernels::amx {
