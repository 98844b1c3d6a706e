// Sizes and types that all CPU kernels share. A cell is the four bytes that one lane multiplies at a time:
// one fp32, a pair of bf16 or four int8.
#pragma once

#include <cstdint>

#include "sparseloom/generic/half.h"

namespace sparseloom::kernels::cpu {

/// The register tile is kGroup outputs high on every instruction set (AVX2 computes it in two halves). 8
/// divides every block side.
inline constexpr int kGroup = 8;
inline constexpr int kMaxVectors = 3;
inline constexpr int kMaxLanes = 16;
inline constexpr int kMaxBlock = 128;
inline constexpr int kAskSteps = 16;  // dw: steps between two prefetches of the next columns

/// A call gets one task per this many multiplications (panel) or stored elements (decode), up to the number
/// of threads. A smaller task is not worth waking a thread for, which takes some 5 us: these are 5 us of work
/// (kTaskUs) at 100 Gflop/s or 10 Gelement/s.
inline constexpr double kTaskProducts = 250e3, kTaskElements = 50e3, kTaskUs = 5;

/// The type through which user memory is read: memory of any alignment and any type.
using Cell [[gnu::may_alias, gnu::aligned(1)]] = float;
inline constexpr std::int64_t kCellBytes = 4, kLineCells = 16;  // bytes of a cell, cells of a cache line
inline constexpr std::int64_t kAlign = 64;                      // bytes, of each buffer in a workspace

using core::Bf16;
using core::F16;

}  // namespace sparseloom::kernels::cpu
