// Workspace: scratch memory that grows to the largest request.
#include <algorithm>
#include <cstdlib>
#include <new>

#include "sparseloom/executor.h"

namespace sparseloom {

void Workspace::Free::operator()(std::byte* memory) const noexcept { std::free(memory); }

std::span<std::byte> Workspace::at_least(std::size_t bytes) {
  if (bytes > size_) {
    memory_.reset();  // freed first, so that the old and the new memory are not both held
    // At least by half: calls that each need a little more would each leave a hole in the heap.
    const std::size_t grown = size_ + size_ / 2;
    size_ = 0;
    const std::size_t rounded = (std::max(bytes, grown) + 63) / 64 * 64;
    if (rounded < bytes) throw std::bad_alloc();  // the sum has overflowed
    memory_.reset(static_cast<std::byte*>(std::aligned_alloc(64, rounded)));
    if (memory_ == nullptr) throw std::bad_alloc();
    size_ = rounded;
  }
  return {memory_.get(), size_};
}

}  // namespace sparseloom
