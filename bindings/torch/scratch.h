// Scratch: the workspace memory of one call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "convert.h"
#include "sparseloom/executor.h"

namespace sparseloom::binding {

/// The workspace of one call. On the CPU, up to kKept bytes stay with the calling thread, because the page
/// faults of fresh memory (4096 for 16 MB) cost a large fraction of a product (measured). Larger workspaces,
/// which `dense` needs, come from torch's allocator and go back to it: keeping them would double the layer's
/// memory unnoticed. On CUDA all memory comes from torch's caching allocator, which handles streams and
/// graphs.
class Scratch {
 public:
  Scratch(const char* op, std::size_t bytes, int device) {
    if (device >= 0) {
      if (bytes == 0) return;
      memory_ = new_bytes(op, static_cast<std::int64_t>(bytes), device);  // the allocator aligns to 512
      span_ = {static_cast<std::byte*>(memory_->mutable_data_ptr()), bytes};
      return;
    }
    static thread_local Workspace workspace;
    if (bytes <= kKept) {
      span_ = workspace.at_least(bytes);
      return;
    }
    memory_ = new_bytes(op, static_cast<std::int64_t>(bytes + 63), device);
    // Aligned by hand: torch aligns to 64 bytes on the CPU today but does not promise it.
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
