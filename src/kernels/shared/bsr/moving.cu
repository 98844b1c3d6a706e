// Launches for topologies of any number of blocks up to a capacity: the choice of blocks (choose.cuh), and
// zeros for free slots.
#include <algorithm>

#include "kernels/shared/bsr/choose.cuh"
#include "kernels/shared/bsr/topology.h"

namespace sparseloom::kernels::cuda {
namespace {

constexpr int kClearThreads = 256;
constexpr std::int64_t kMostClearing = 1056;  // eight thread blocks per SM of an H200

// A thread block clears one free slot after another; their number is on the device.
template <class Word>
__global__ void __launch_bounds__(kClearThreads)
    clear_kernel(Word* __restrict__ blocks, std::int64_t block_words,
                 const std::int32_t* __restrict__ crow_end, std::int64_t capacity) {
  const std::int64_t live = max(__ldg(crow_end), 0);
  for (std::int64_t slot = live + blockIdx.x; slot < capacity; slot += gridDim.x)
    for (std::int64_t i = threadIdx.x; i < block_words; i += kClearThreads)
      blocks[slot * block_words + i] = Word{};
}

template <class Word>
cudaError_t clear(void* blocks, std::int64_t block_bytes, const std::int32_t* crow_end, std::int64_t capacity,
                  cudaStream_t stream) {
  clear_kernel<<<static_cast<unsigned>(std::min(capacity, kMostClearing)), kClearThreads, 0, stream>>>(
      static_cast<Word*>(blocks), block_bytes / static_cast<std::int64_t>(sizeof(Word)), crow_end, capacity);
  return cudaGetLastError();
}

}  // namespace

int sm80_choose_blocks(const BlockChoice& choice, std::uint8_t* mask, std::int32_t* flags,
                       void* stream) noexcept {
  if (choice.block_rows == 0 || choice.block_cols == 0) return cudaSuccess;
  choose::choose_kernel<<<1, choose::kThreads, 0, static_cast<cudaStream_t>(stream)>>>({choice, mask, flags});
  return cudaGetLastError();
}

int sm80_clear_free_blocks(void* blocks, std::int64_t block_bytes, const std::int32_t* crow_end,
                           std::int64_t capacity, void* stream) noexcept {
  if (capacity == 0 || block_bytes == 0) return cudaSuccess;
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  const bool aligned =
      (reinterpret_cast<std::uintptr_t>(blocks) | static_cast<std::uintptr_t>(block_bytes)) % sizeof(uint4) ==
      0;
  return aligned ? clear<uint4>(blocks, block_bytes, crow_end, capacity, cuda_stream)
                 : clear<std::uint8_t>(blocks, block_bytes, crow_end, capacity, cuda_stream);
}

}  // namespace sparseloom::kernels::cuda
