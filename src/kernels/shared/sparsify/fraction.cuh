// Host side of the largest elements of a matrix: the workspace, and the launches.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/shared/early_launch.cuh"
#include "kernels/shared/sparsify/stream.cuh"
#include "kernels/shared/sparsify/take.cuh"

namespace sparseloom::kernels::cuda::sparsify {

/// Counting passes over the matrix, of which all but the first may return at once.
template <class E>
inline constexpr int kLevels = (kKeyBits<E> + kBinBits - 1) / kBinBits;

/// The workspace of a search. Its beginning is zeroed.
template <class E>
struct FractionSpace {
  std::size_t tickets, bins, status, words, places, bytes;
  std::int64_t capacity;

  FractionSpace(std::int64_t count, std::int64_t wanted, bool vectors) {
    // As many candidates as elements stay, but not so few that small matrices reach the limit, nor more than
    // one thread block can search in the time of a pass.
    constexpr std::int64_t kFew = 4096, kMany = std::int64_t{1} << 19;
    capacity = kLevels<E> == 1 ? 0 : std::min(std::clamp(wanted, kFew, kMany), count);
    const auto place = [this](std::size_t size) {
      const std::size_t at = bytes;
      bytes += (size + 15) / 16 * 16;
      return at;
    };
    bytes = 0;
    place(sizeof(Choice));
    tickets = place(sizeof(Tickets));
    bins = place(kBins * sizeof(unsigned long long));
    status = place(static_cast<std::size_t>(tiles_of<E>(count, vectors)) * sizeof(unsigned long long));
    words = place(static_cast<std::size_t>(capacity) * sizeof(typename E::Word));
    places = place(static_cast<std::size_t>(capacity) * sizeof(std::int64_t));
  }
};

template <class E, bool kVectors>
cudaError_t launch_passes(const Matrix<E>& matrix, const Search& search, int multiprocessors, int device,
                          cudaStream_t stream) {
  const std::int64_t tiles = tiles_of<E>(matrix.count(), kVectors);
  // Shared memory and registers allow two thread blocks per multiprocessor.
  LaunchShape shape{.grid = blocks_for(tiles, multiprocessors, 2),
                    .block = kThreads,
                    .shared_bytes = kBinBytes,
                    .stream = stream};
  constexpr auto kFirst = count_kernel<E, kVectors, true>;
  cudaError_t status = allow_shared_memory<kFirst>(kBinBytes, device, cudaSharedmemCarveoutMaxShared);
  if (status == cudaSuccess) status = launch_kernel(shape, kFirst, matrix, search, tiles);
  if constexpr (kLevels<E> != 1) {
    constexpr auto kNext = count_kernel<E, kVectors, false>;
    if (status == cudaSuccess)
      status = allow_shared_memory<kNext>(kBinBytes, device, cudaSharedmemCarveoutMaxShared);
    for (int level = 1; level < kLevels<E> && status == cudaSuccess; ++level)
      status = launch_kernel(shape, kNext, matrix, search, tiles);
  }
  shape.shared_bytes = 0;
  if (status == cudaSuccess) status = launch_kernel(shape, take_kernel<E, kVectors>, matrix, search, tiles);
  return status;
}

/// Takes the `wanted` elements with the largest magnitudes. workspace: FractionSpace's bytes.
template <class E>
cudaError_t launch_fraction(const Matrix<E>& matrix, std::int64_t wanted, std::byte* workspace,
                            int multiprocessors, int device, cudaStream_t stream) {
  if (wanted == 0 || wanted == matrix.count())
    return launch_stream(matrix, All{wanted != 0}, multiprocessors, stream);
  const bool vectors = has_vectors(matrix);
  const FractionSpace<E> space(matrix.count(), wanted, vectors);
  const Search search{reinterpret_cast<Choice*>(workspace),
                      reinterpret_cast<Tickets*>(workspace + space.tickets),
                      reinterpret_cast<unsigned long long*>(workspace + space.bins),
                      reinterpret_cast<unsigned long long*>(workspace + space.status),
                      workspace + space.words,
                      reinterpret_cast<std::int64_t*>(workspace + space.places),
                      wanted,
                      space.capacity};
  cudaError_t status = cudaMemsetAsync(workspace, 0, space.words, stream);
  if (status == cudaSuccess)
    status = vectors ? launch_passes<E, true>(matrix, search, multiprocessors, device, stream)
                     : launch_passes<E, false>(matrix, search, multiprocessors, device, stream);
  if constexpr (kLevels<E> != 1) {
    LaunchShape shape{.grid = 1, .block = kFinishThreads, .stream = stream};
    if (status == cudaSuccess) status = launch_kernel(shape, finish_kernel<E>, search);
    const std::int64_t groups = (space.capacity + kThreads - 1) / kThreads;
    shape.grid = blocks_for(groups, multiprocessors), shape.block = kThreads;
    if (status == cudaSuccess) status = launch_kernel(shape, scatter_kernel<E>, matrix, search);
  }
  return status;
}

// In fraction.cu, for scores.
extern template cudaError_t launch_fraction(const Matrix<F32>&, std::int64_t, std::byte*, int, int,
                                            cudaStream_t);

}  // namespace sparseloom::kernels::cuda::sparsify
