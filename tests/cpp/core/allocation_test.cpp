// A byte too many ends a guarded test program, which names the call.
#include "core/allocation.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

namespace sparseloom::testing {
namespace {

class GuardPages : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!guarded()) GTEST_SKIP() << "SPARSELOOM_TEST_GUARD asks for no guard pages";
    behind_ = std::string(std::getenv("SPARSELOOM_TEST_GUARD")) == "behind";
  }

  /// The first element beyond a list on the side of the guard page.
  template <class T>
  const T* beyond(const std::vector<T>& list) const {
    return behind_ ? list.data() + list.size() : list.data() - 1;
  }
  template <class T>
  static T read(const T* at) {
    return *static_cast<const volatile T*>(at);
  }
  std::string message(const char* byte) const {
    return std::string("the product of three .*byte ") + byte + (behind_ ? " behind" : " before");
  }

  bool behind_ = false;
};

TEST_F(GuardPages, EndTheProcessThatReadsAnElementTooMany) {
  calling([] { return "the product of three"; });
  for (const std::size_t size : {1, 3, 1024, 1025, 5000}) {
    const std::vector<float> list(size, 1.0f);
    EXPECT_EXIT(read(beyond(list)), ::testing::ExitedWithCode(kStrayExit), message(behind_ ? "1" : "4"));
    EXPECT_EQ(read(&list.front()) + read(&list.back()), 2);
  }
  const std::vector<std::uint16_t> odd(7);
  EXPECT_EXIT(read(beyond(odd)), ::testing::ExitedWithCode(kStrayExit), message(behind_ ? "1" : "2"));
}

TEST_F(GuardPages, LieBesideAlignedMemoryToo) {
  calling([] { return "the product of three"; });
  volatile std::size_t bytes = 192;  // which the compiler would count
  const std::unique_ptr<std::byte, decltype(&std::free)> memory(
      static_cast<std::byte*>(std::aligned_alloc(64, bytes)), &std::free);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.get()) % 64, 0);
  EXPECT_EXIT(read(behind_ ? memory.get() + bytes : memory.get() - 1), ::testing::ExitedWithCode(kStrayExit),
              message("1"));
}

TEST_F(GuardPages, StayWhereMemoryWasFreed) {
  volatile std::uintptr_t at = 0;  // no pointer, of whose use the compiler would warn
  {
    const std::vector<int> list(10, 5);
    at = reinterpret_cast<std::uintptr_t>(list.data());
  }
  EXPECT_EXIT(read(reinterpret_cast<const int*>(at)), ::testing::ExitedWithCode(kStrayExit),
              "which was freed");
}

}  // namespace
}  // namespace sparseloom::testing
