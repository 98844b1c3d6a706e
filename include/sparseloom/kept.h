// Memory for small objects that a process keeps for long, apart from the heap.
// || Such an object would pin the heap: a plan is made for each number of tokens, between results that grow
// with that number, and the memory of a freed result below a plan fits no larger one. A sequence that grew by
// one token per call held 1.9 GB that way.
#pragma once

#include <concepts>
#include <cstddef>
#include <ostream>
#include <string>
#include <string_view>

#include "sparseloom/export.h"

namespace sparseloom {

/// `bytes` of memory aligned to 16 bytes. Throws std::bad_alloc when there is none.
SPARSELOOM_API void* keep_bytes(std::size_t bytes);
/// Takes back what keep_bytes(bytes) returned.
SPARSELOOM_API void forget_bytes(void* memory, std::size_t bytes) noexcept;

/// An allocator of that memory, for the standard library's containers.
template <class T>
struct KeptAllocator {
  static_assert(alignof(T) <= 16);
  using value_type = T;
  KeptAllocator() = default;
  template <class U>
  KeptAllocator(const KeptAllocator<U>&) noexcept {}
  T* allocate(std::size_t count) { return static_cast<T*>(keep_bytes(count * sizeof(T))); }
  void deallocate(T* memory, std::size_t count) noexcept { forget_bytes(memory, count * sizeof(T)); }
  template <class U>
  friend bool operator==(const KeptAllocator&, const KeptAllocator<U>&) noexcept {
    return true;
  }
};

/// A text in that memory. It converts from and to std::string, and compares with any text.
class KeptText {
 public:
  KeptText() = default;
  KeptText(std::string_view text) : text_(text) {}
  KeptText(const std::string& text) : text_(text) {}
  KeptText(const char* text) : text_(text) {}

  operator std::string_view() const noexcept { return text_; }
  operator std::string() const { return std::string(text_.data(), text_.size()); }
  bool empty() const noexcept { return text_.empty(); }
  std::size_t size() const noexcept { return text_.size(); }
  const char* c_str() const noexcept { return text_.c_str(); }
  std::size_t find(std::string_view part, std::size_t from = 0) const noexcept {
    return std::string_view(text_).find(part, from);
  }
  bool starts_with(std::string_view start) const noexcept {
    return std::string_view(text_).starts_with(start);
  }
  std::string substr(std::size_t from, std::size_t count = std::string::npos) const {
    return std::string(std::string_view(text_).substr(from, count));
  }

  template <std::convertible_to<std::string_view> Text>
  friend bool operator==(const KeptText& a, const Text& b) noexcept {
    return std::string_view(a.text_) == std::string_view(b);
  }
  friend std::string operator+(const KeptText& a, std::string_view b) { return std::string(a).append(b); }
  friend std::string operator+(std::string a, const KeptText& b) { return a.append(std::string_view(b)); }
  friend std::ostream& operator<<(std::ostream& out, const KeptText& text) {
    return out << std::string_view(text);
  }

 private:
  std::basic_string<char, std::char_traits<char>, KeptAllocator<char>> text_;
};

}  // namespace sparseloom
