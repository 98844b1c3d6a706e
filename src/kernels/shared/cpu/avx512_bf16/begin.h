// Opens the region and namespace of AVX-512 BF16 code; see avx2/begin.h.
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")
namespace sparseloom::kernels::avx512_bf16 {
