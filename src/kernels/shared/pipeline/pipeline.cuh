// The pipeline of the warp-specialised Hopper kernels: a ring of stages in shared memory, which producer
// warps fill by TMA and consumer warps multiply, as in CUTLASS's PipelineTmaAsync.
//
//   producer   acquire(stage) waits until the consumers have released what the stage held before;
//              expect(full(stage), bytes) announces the bytes, and the copies complete on full(stage)
//   consumer   wait(stage) waits until the bytes have landed; release(stage) frees the stage
//
// Each stage has two mbarriers. `full` completes when every producer of the stage has arrived and the bytes
// of its copies have landed; `empty` completes when every consumer warp has released the stage. Both sides
// visit the stages in the same order, so nothing can deadlock.
//
// The caller keeps the next stage and the parity of its phase in the form that costs it least: as the count
// of all previous stages (StageOf), as one bit per stage (Parities), or as offsets (Turn in
// bsr_linear/sm90/mma). All functions compile to the instructions that they name; the objects hold addresses
// only.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/shared/ptx/address.cuh"
#include "kernels/shared/ptx/sm90/mbarrier.cuh"

namespace sparseloom::kernels::cuda {

class Pipeline {
 public:
  template <int kStages>
  __device__ __forceinline__ Pipeline(const std::uint64_t (&full)[kStages],
                                      const std::uint64_t (&empty)[kStages])
      : full_(ptx::shared_address(full)), empty_(ptx::shared_address(empty)) {}

  /// Initialises the barriers of all stages. One thread calls it, and then ptx::fence_mbarrier_init().
  template <int kStages>
  static __device__ __forceinline__ void init(std::uint64_t (&full)[kStages], std::uint64_t (&empty)[kStages],
                                              std::uint32_t producers, std::uint32_t consumer_warps) {
    for (int stage = 0; stage < kStages; ++stage) {
      ptx::mbarrier_init(ptx::shared_address(&full[stage]), producers);
      ptx::mbarrier_init(ptx::shared_address(&empty[stage]), consumer_warps);
    }
  }

  /// The barrier on which the copies into a stage complete.
  __device__ __forceinline__ std::uint32_t full(std::uint32_t stage) const { return full_ + stage * 8; }

  /// Waits until the stage is free. `parity`: that of the phase of `empty` that ends then.
  __device__ __forceinline__ void acquire(std::uint32_t stage, std::uint32_t parity) const {
    ptx::mbarrier_wait(empty_ + stage * 8, parity);
  }
  /// Arrives on `full`, and announces the bytes of the copies that follow, or 0.
  static __device__ __forceinline__ void expect(std::uint32_t full, std::uint32_t bytes) {
    if (bytes == 0) {
      ptx::mbarrier_arrive(full);
    } else {
      ptx::mbarrier_arrive_expect_tx(full, bytes);
    }
  }

  /// Waits until the stage is filled. `parity`: that of the phase of `full` that ends then.
  __device__ __forceinline__ void wait(std::uint32_t stage, std::uint32_t parity) const {
    ptx::mbarrier_wait(full_ + stage * 8, parity);
  }
  /// Whether wait() would return at once. It does not wait.
  __device__ __forceinline__ bool test(std::uint32_t stage, std::uint32_t parity) const {
    return ptx::mbarrier_test_wait(full_ + stage * 8, parity);
  }
  /// Releases the stage for its warp. One lane calls it, after all lanes have read the stage.
  __device__ __forceinline__ void release(std::uint32_t stage) const {
    ptx::mbarrier_arrive(empty_ + stage * 8);
  }

 private:
  std::uint32_t full_, empty_;  // shared addresses
};

/// The stage after `turn` others, and the parity of the phase of `full` in which it is filled; it is acquired
/// with the other parity.
template <int kStages>
struct StageOf {
  unsigned index, parity;
  explicit __device__ __forceinline__ StageOf(unsigned turn)
      : index(turn % kStages), parity(turn / kStages % 2) {}
};

/// The parities of the phases to wait for next, one bit per stage, for rings whose number of stages changes.
/// Each phase must be awaited exactly once.
class Parities {
 public:
  __device__ __forceinline__ unsigned of(std::uint32_t stage) const { return bits_ >> stage & 1; }
  /// Records that the stage's phase was awaited.
  __device__ __forceinline__ void pass(std::uint32_t stage) { bits_ ^= 1u << stage; }

 private:
  unsigned bits_ = 0;
};

}  // namespace sparseloom::kernels::cuda
