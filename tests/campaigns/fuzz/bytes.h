// What libFuzzer gives a target, read as numbers, lists and text.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace sparseloom {

/// The fuzzer's bytes, taken from the front; zeros when they are used up.
class Bytes {
 public:
  Bytes(const std::uint8_t* data, std::size_t size) : data_(data), left_(size) {}
  template <class T>
  T take() {
    T value{};
    const std::size_t size = std::min(sizeof value, left_);
    if (size) std::memcpy(&value, data_, size);
    data_ += size, left_ -= size;
    return value;
  }
  /// 0 to `most`, mostly; any number where the fuzzer asks for one.
  std::int64_t size(std::int64_t most) {
    const auto kind = take<std::uint8_t>();
    return kind == 255 ? take<std::int64_t>() : kind % (most + 1);
  }
  /// At most so many entries, each of a byte or, after an odd one, of a whole T.
  template <class T>
  std::vector<T> list(std::int64_t length) {
    std::vector<T> entries(static_cast<std::size_t>(std::clamp<std::int64_t>(length, 0, 1024)));
    for (T& entry : entries) {
      const auto small = take<std::uint8_t>();
      entry = small == 255 ? take<T>() : static_cast<T>(small);
    }
    return entries;
  }
  std::string rest() {
    std::string text(reinterpret_cast<const char*>(data_), left_);
    left_ = 0;
    return text;
  }

 private:
  const std::uint8_t* data_;
  std::size_t left_;
};

}  // namespace sparseloom
