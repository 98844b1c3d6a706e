#include "core/fingerprint.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <utility>
#include <vector>

namespace sparseloom {

TEST(Fingerprint, TellsEveryByteOfMemoryOfEverySize) {
  for (const std::size_t size : {1, 3, 4, 7, 8, 9, 63, 64, 65, 200}) {
    for (const std::uint64_t seed : {std::uint64_t{0}, ~std::uint64_t{0}, std::uint64_t{size}}) {
      std::vector<unsigned char> memory(size);
      std::set<std::uint64_t> seen{core::fingerprint(memory.data(), size, seed)};
      for (std::size_t i = 0; i < size; ++i)
        for (const int bit : {1, 4, 128}) {
          memory[i] = static_cast<unsigned char>(bit);
          EXPECT_TRUE(seen.insert(core::fingerprint(memory.data(), size, seed)).second) << size << " " << i;
          memory[i] = 0;
        }
    }
  }
}

TEST(Fingerprint, TellsWordsThatChangedPlaces) {
  std::vector<std::uint64_t> words(32);
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = i;
  const auto print = [&] { return core::fingerprint(words.data(), 8 * words.size(), 0); };
  std::set<std::uint64_t> seen{print()};
  for (std::size_t a = 0; a < words.size(); ++a)
    for (std::size_t b = 0; b < a; ++b) {
      std::swap(words[a], words[b]);
      EXPECT_TRUE(seen.insert(print()).second) << a << " " << b;
      std::swap(words[a], words[b]);
    }
}

}  // namespace sparseloom
