// Helpers that the launchers of wgmma::dw and wgmma/dw_regions share.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "kernels/args.h"

namespace sparseloom::kernels::cuda::wgmma::dw {

/// Returns a number that no other launch of this process uses and that stale memory is very unlikely to
/// contain: splitmix64 of a counter.
inline std::uint64_t next_nonce() noexcept {
  static std::atomic<std::uint64_t> counter{
      static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count())};
  std::uint64_t mixed = counter.fetch_add(0x9e3779b97f4a7c15, std::memory_order_relaxed);
  mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9;
  mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111eb;
  mixed ^= mixed >> 31;
  return mixed == 0 ? 1 : mixed;  // 0 means a cleared flag
}

/// Whether the output is aligned as the kernel stores it: 16 bytes at a time, or fp32 values one at a time.
inline bool out_possible(const MatmulArgs& args) noexcept {
  return args.accumulate || args.dtype == DType::f32 || reinterpret_cast<std::uintptr_t>(args.out) % 16 == 0;
}

}  // namespace sparseloom::kernels::cuda::wgmma::dw
