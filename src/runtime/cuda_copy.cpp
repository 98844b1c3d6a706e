#include "runtime/cuda_copy.h"

#ifdef SPARSELOOM_HAVE_CUDA
#include <cuda_runtime_api.h>
#endif

namespace sparseloom::runtime {

#ifdef SPARSELOOM_HAVE_CUDA

bool copy_to_host(std::initializer_list<DeviceBytes> pieces, void* stream, int* error) {
  const auto on = static_cast<cudaStream_t>(stream);
  auto capturing = cudaStreamCaptureStatusNone;
  cudaError_t status = cudaStreamIsCapturing(on, &capturing);
  *error = 0;
  if (status == cudaSuccess && capturing != cudaStreamCaptureStatusNone) return false;
  for (const DeviceBytes& piece : pieces)
    if (status == cudaSuccess && piece.bytes > 0)
      status = cudaMemcpyAsync(piece.to, piece.from, piece.bytes, cudaMemcpyDeviceToHost, on);
  if (status == cudaSuccess) status = cudaStreamSynchronize(on);
  if (status != cudaSuccess) *error = static_cast<int>(cudaGetLastError());
  return status == cudaSuccess;
}

#else

bool copy_to_host(std::initializer_list<DeviceBytes>, void*, int* error) {
  *error = 0;
  return false;
}

#endif

}  // namespace sparseloom::runtime
