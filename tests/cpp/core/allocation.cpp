// Replaces operator new and, by the linker's --wrap, aligned_alloc and free in all that the test program is
// linked of.
#include "core/allocation.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#ifdef SPARSELOOM_GUARD_PAGES  // not under sanitizers, which guard memory themselves
extern "C" {
void* __real_aligned_alloc(std::size_t alignment, std::size_t bytes);
void __real_free(void* memory);
}
#endif

namespace sparseloom::testing {
namespace {

std::atomic<bool> counting{false};
std::atomic<int> allocations{0};

#ifdef SPARSELOOM_GUARD_PAGES
constexpr bool kCanGuard = true;
#else
constexpr bool kCanGuard = false;
#endif
// Clang takes what operator new returns for aligned to 16 bytes; GCC does not, so that any element may be the
// last.
#if defined(__clang__)
constexpr std::size_t kLeastAlignment = 16;
#else
constexpr std::size_t kLeastAlignment = 1;
#endif

enum class Guard { none, behind, before };

Guard asked_guard() {
  const char* const asked = std::getenv("SPARSELOOM_TEST_GUARD");
  if (!kCanGuard || asked == nullptr || *asked == '\0') return Guard::none;
  if (std::strcmp(asked, "behind") == 0) return Guard::behind;
  if (std::strcmp(asked, "before") == 0) return Guard::before;
  std::fprintf(stderr, "SPARSELOOM_TEST_GUARD: expected behind or before, got %s\n", asked);
  std::_Exit(1);
}
Guard guard() {
  static const Guard asked = asked_guard();
  return asked;
}

// Of the thread that runs the tests, while one runs. What outlives them would need a mapping each, of which
// Linux allows 65,530.
thread_local bool in_test = false;
char next_call[2000] = "a test that names no call";

/// Addresses for what is guarded. None is used twice: freed memory stays out of reach too.
class Region {
 public:
  static Region& instance() {
    static Region region;
    return region;
  }

  /// Null: no memory.
  void* lend(std::size_t bytes, std::size_t alignment) {
    bytes = std::max<std::size_t>(bytes, 1);
    const std::size_t pages = (bytes + page_ - 1) / page_;
    const std::size_t first = next_.fetch_add(pages + 1);  // one that nobody may touch lies behind
    if (first + pages >= kBytes / page_) return nullptr;
    std::byte* const begin = base_ + first * page_;
    if (mprotect(begin, pages * page_, PROT_READ | PROT_WRITE) != 0) return nullptr;
    bytes_of_[first] = bytes;
    const std::size_t room = guard() == Guard::behind ? pages * page_ - bytes : 0;
    return begin + room / alignment * alignment;
  }

  bool holds(const void* memory) const {
    const auto* const at = static_cast<const std::byte*>(memory);
    return at >= base_ && at < base_ + kBytes;
  }

  void take_back(void* memory) {
    const std::size_t first = page_of(memory);
    const std::size_t pages = (bytes_of_[first] + page_ - 1) / page_;
    bytes_of_[first] |= kFreed;
    mmap(base_ + first * page_, pages * page_, PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  }

  /// What lies at an address that must not be touched.
  void describe(const void* fault, char* text, std::size_t size) const {
    const auto* const at = static_cast<const std::byte*>(fault);
    const std::size_t page = page_of(fault);
    const auto tell = [&](std::size_t first, bool behind) {
      const std::size_t bytes = bytes_of_[first] & ~kFreed, pages = (bytes + page_ - 1) / page_;
      const std::byte* const begin = base_ + first * page_;
      const std::ptrdiff_t distance =
          behind ? at - (begin + (guard() == Guard::behind ? pages * page_ : bytes)) + 1 : begin - at;
      std::snprintf(text, size, "byte %td %s an allocation of %zu bytes%s", distance,
                    behind ? "behind" : "before", bytes,
                    bytes_of_[first] & kFreed ? ", which was freed" : "");
    };
    if (guard() == Guard::before && page + 1 < next_ && bytes_of_[page + 1] != 0)
      return tell(page + 1, false);
    std::size_t first = page;
    while (first > 0 && bytes_of_[first] == 0) --first;
    tell(first, true);
  }

 private:
  static constexpr std::size_t kBytes = std::size_t{1} << 40, kFreed = std::size_t{1} << 63;

  Region() : page_(static_cast<std::size_t>(sysconf(_SC_PAGESIZE))) {
    const auto reserve = [](std::size_t bytes, int access) {
      void* const at = mmap(nullptr, bytes, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (at == MAP_FAILED) std::perror("SPARSELOOM_TEST_GUARD: no addresses"), std::_Exit(1);
      return at;
    };
    base_ = static_cast<std::byte*>(reserve(kBytes, PROT_NONE));
    bytes_of_ =
        static_cast<std::size_t*>(reserve(kBytes / page_ * sizeof(std::size_t), PROT_READ | PROT_WRITE));
  }
  std::size_t page_of(const void* memory) const {
    return static_cast<std::size_t>(static_cast<const std::byte*>(memory) - base_) / page_;
  }

  std::size_t page_;
  std::byte* base_;
  std::size_t* bytes_of_;             // of the allocation that begins in a page
  std::atomic<std::size_t> next_{1};  // page; the first one is a guard
};

void on_fault(int, siginfo_t* info, void*) {
  char what[200] = "no operand";
  if (Region::instance().holds(info->si_addr)) Region::instance().describe(info->si_addr, what, sizeof what);
  const auto* const test = ::testing::UnitTest::GetInstance()->current_test_info();
  std::fprintf(stderr, "%s.%s: %s touched %p: %s\n", test ? test->test_suite_name() : "",
               test ? test->name() : "", next_call, info->si_addr, what);
  std::fflush(stderr);
  std::_Exit(kStrayExit);
}

class Switch : public ::testing::EmptyTestEventListener {
  void OnTestStart(const ::testing::TestInfo&) override { in_test = true; }
  void OnTestEnd(const ::testing::TestInfo&) override { in_test = false; }
};

[[maybe_unused]] const bool installed = [] {
  if (!guarded()) return false;
  struct sigaction action = {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &action, nullptr);
  ::testing::UnitTest::GetInstance()->listeners().Append(new Switch);
  return true;
}();

void* allocated(std::size_t bytes) noexcept {
  if (counting) ++allocations;
  if (in_test) return Region::instance().lend(bytes, kLeastAlignment);
  return std::malloc(bytes ? bytes : 1);
}
void* or_throw(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

bool guarded() { return guard() != Guard::none; }

void calling(const std::function<std::string()>& what) {
  if (in_test) std::snprintf(next_call, sizeof next_call, "%s", what().c_str());
}

int allocations_in(const std::function<void()>& body) {
  allocations = 0;
  counting = true;
  body();
  counting = false;
  return allocations;
}

}  // namespace sparseloom::testing

using sparseloom::testing::allocated;
using sparseloom::testing::or_throw;

#ifdef SPARSELOOM_GUARD_PAGES
extern "C" void* __wrap_aligned_alloc(std::size_t alignment, std::size_t bytes) {
  using namespace sparseloom::testing;
  return in_test ? Region::instance().lend(bytes, alignment) : __real_aligned_alloc(alignment, bytes);
}
extern "C" void __wrap_free(void* memory) {
  using namespace sparseloom::testing;
  if (guarded() && Region::instance().holds(memory)) return Region::instance().take_back(memory);
  __real_free(memory);
}
#endif

void* operator new(std::size_t bytes) { return or_throw(allocated(bytes)); }
void* operator new[](std::size_t bytes) { return or_throw(allocated(bytes)); }
// The nothrow forms too: under ASan those left alone would come from its allocator and go to std::free.
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return allocated(bytes); }
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept { return allocated(bytes); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
