// Marks plain C++ that CUDA kernels call as well.
#pragma once

#ifdef __CUDACC__
#define SPARSELOOM_ON_DEVICE_TOO __host__ __device__
#else
#define SPARSELOOM_ON_DEVICE_TOO
#endif
