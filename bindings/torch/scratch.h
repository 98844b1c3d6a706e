// Memory that one call works in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "convert.h"
#include "sparseloom/executor.h"

namespace sparseloom::binding {

/// Scratch of one call. On the CPU up to kKept bytes stay with the calling thread: a fresh 16 MB block is
/// 4096 page faults, some 4 ms of a product of 20. More, as dense needs it, comes from torch's allocator and
/// goes back: keeping it would double the layer behind its back. On CUDA all of it is torch's, whose caching
/// allocator knows of streams and of graphs.
class Scratch {
 public:
  Scratch(const char* op, std::size_t bytes, int device) {
    if (device >= 0) {
      if (bytes == 0) return;
      memory_ = new_bytes(op, static_cast<std::int64_t>(bytes), device);  // aligned to 512
      span_ = {static_cast<std::byte*>(memory_->mutable_data_ptr()), bytes};
      return;
    }
    static thread_local Workspace kept;
    if (bytes <= kKept) {
      span_ = kept.at_least(bytes);
      return;
    }
    memory_ = new_bytes(op, static_cast<std::int64_t>(bytes + 63), device);
    // Aligned by hand: torch promises 64 bytes on the CPU today, nothing says for ever.
    const auto at =
        (reinterpret_cast<std::uintptr_t>(memory_->mutable_data_ptr()) + 63) & ~std::uintptr_t{63};
    span_ = {reinterpret_cast<std::byte*>(at), bytes};
  }
  std::span<std::byte> span() const { return span_; }

 private:
  static constexpr std::size_t kKept = 48 << 20;
  std::optional<Tensor> memory_;
  std::span<std::byte> span_;
};

}  // namespace sparseloom::binding
