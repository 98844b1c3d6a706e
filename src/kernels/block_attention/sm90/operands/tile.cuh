// Tiles of tokens in shared memory, [head_dim / 64][tokens][128 bytes], swizzled as token maps write them.
#pragma once

#include <cstdint>

#include "kernels/shared/ptx/sm90/wgmma.cuh"

namespace sparseloom::kernels::cuda::attention {

/// The constant part of wgmma's descriptor of a tile whose k is head_dim (K-major). 16 elements of it are 32
/// bytes of a row; 64 are the next [tokens][128 bytes].
inline constexpr std::uint64_t kKMajorTile = ptx::wgmma_descriptor(ptx::Swizzle::bytes128, 1024, 0);
/// Of one whose k is tokens (MN-major). 16 tokens are 2048 bytes.
template <int kTokens>
inline constexpr std::uint64_t kMnMajorTile = ptx::wgmma_descriptor(ptx::Swizzle::bytes128, 1024,
                                                                    kTokens * 128);

}  // namespace sparseloom::kernels::cuda::attention
