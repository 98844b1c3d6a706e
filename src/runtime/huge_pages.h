// Huge pages for memory that an allocator maps again in each call.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>

namespace sparseloom::runtime {

/// From this size on, glibc maps memory anew for each malloc and unmaps it in free: the highest value that
/// its M_MMAP_THRESHOLD grows to (mallopt(3)). Smaller memory is used again, with its pages.
inline constexpr std::size_t kMappedAnewBytes = std::size_t{32} << 20;

/// Asks the system to map the huge pages that lie entirely within the memory when they are first touched
/// (madvise(2), MADV_HUGEPAGE). It is a hint: if the system offers none, nothing happens.
inline void prefer_huge_pages(void* memory, std::size_t bytes) noexcept {
  constexpr std::uintptr_t kHugePage = std::uintptr_t{2} << 20;  // of x86-64, and of AArch64 with 4 KiB pages
  const std::uintptr_t from = reinterpret_cast<std::uintptr_t>(memory),
                       begin = (from + kHugePage - 1) / kHugePage * kHugePage,
                       end = (from + bytes) / kHugePage * kHugePage;
  if (begin < end) static_cast<void>(madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE));
}

}  // namespace sparseloom::runtime
