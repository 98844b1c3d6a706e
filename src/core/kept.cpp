// keep_bytes: pieces of slabs from the system, with a list of free ones per size.
#include "sparseloom/kept.h"

#include <sys/mman.h>

#include <array>
#include <mutex>
#include <new>

#include "core/shared_by_threads.h"

namespace sparseloom {
namespace {

constexpr std::size_t kStep = 32;            // sizes are rounded up to it
constexpr std::size_t kMostPiece = 4 << 10;  // larger memory gets its own pages
constexpr std::size_t kSlab = 256 << 10;

std::size_t rounded(std::size_t bytes, std::size_t step) { return (bytes + step - 1) / step * step; }

void* pages(std::size_t bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  return memory;
}

class Pieces {
 public:
  void* take(std::size_t size) {
    const std::lock_guard lock(mutex_);
    Free*& list = free_[size / kStep];
    if (list != nullptr) {
      Free* taken = list;
      list = taken->next;
      return taken;
    }
    if (left_ < size) {  // the rest of the slab is lost, a piece of it at most
      next_ = static_cast<std::byte*>(pages(kSlab));
      left_ = kSlab;
    }
    void* taken = next_;
    next_ += size, left_ -= size;
    return taken;
  }
  void give(void* memory, std::size_t size) noexcept {
    const std::lock_guard lock(mutex_);
    free_[size / kStep] = new (memory) Free{free_[size / kStep]};
  }
  void lock_for_fork() { mutex_.lock(); }
  void unlock_after_fork() { mutex_.unlock(); }

 private:
  struct Free {
    Free* next;
  };
  std::mutex mutex_;
  std::array<Free*, kMostPiece / kStep + 1> free_{};
  std::byte* next_ = nullptr;
  std::size_t left_ = 0;
};

constexpr std::size_t kPage = 4096;

}  // namespace

void* keep_bytes(std::size_t bytes) {
  if (bytes > kMostPiece) return pages(rounded(bytes, kPage));
  return shared_by_threads<Pieces>().take(rounded(bytes == 0 ? 1 : bytes, kStep));
}

void forget_bytes(void* memory, std::size_t bytes) noexcept {
  if (bytes > kMostPiece)
    ::munmap(memory, rounded(bytes, kPage));
  else
    shared_by_threads<Pieces>().give(memory, rounded(bytes == 0 ? 1 : bytes, kStep));
}

}  // namespace sparseloom
