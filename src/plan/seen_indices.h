// Which indices a thread has validated.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>

#include "sparseloom/layout.h"

namespace sparseloom::plan {

/// An index that is one list, of a layout that is no BSR: `shape` are numbers of the layout's own.
template <class T>
struct ListIndex {
  std::int64_t rows = 0, cols = 0, shape = 0;
  std::span<const T> list;
};

/// The indices that were validated last, by address, shape and a few samples of their content. It is meant
/// for one thread, so it needs no lock. An index that was rewritten in place, or that lies where another one
/// was freed, differs in the samples nearly always and is validated again. (A hash of all its content would
/// cost as much as validating.)
class SeenIndices {
 public:
  /// `index`: an IndexView or a ListIndex.
  bool contains(const auto& index) const {
    const Entry entry(index);
    return seen_[slot_of(entry)] == entry;
  }
  void add(const auto& index) {
    const Entry entry(index);
    seen_[slot_of(entry)] = entry;
  }

 private:
  static constexpr std::size_t kSlots = 512;
  static constexpr std::int64_t kSamples = 8;

  struct Entry {
    std::int64_t rows = -1, cols = 0, count = 0;
    std::uint64_t shape = 0;
    const void *first = nullptr, *second = nullptr;
    std::uint64_t content = 0;

    Entry() = default;
    explicit Entry(const IndexView& index)
        : rows(index.rows),
          cols(index.cols),
          count(index.blocks),
          shape(std::bit_cast<std::uint64_t>(index.block)),
          first(index.crow),
          second(index.col) {
      sample(index.crow, index.block_rows() + 1);
      sample(index.col, index.blocks);
    }
    template <class T>
    explicit Entry(const ListIndex<T>& index)
        : rows(index.rows),
          cols(index.cols),
          count(std::ssize(index.list)),
          shape(static_cast<std::uint64_t>(index.shape)),
          first(index.list.data()) {
      sample(index.list.data(), std::ssize(index.list));
    }
    template <class T>
    void sample(const T* values, std::int64_t count) {
      const auto add = [&](std::int64_t i) {
        content = (content ^ static_cast<std::uint32_t>(values[i])) * 0x9e3779b97f4a7c15u;
      };
      for (std::int64_t i = 0; i < count; i += (count + kSamples - 1) / kSamples) add(i);
      if (count > 0) add(count - 1);
    }
    friend bool operator==(const Entry&, const Entry&) = default;
  };

  static std::size_t slot_of(const Entry& entry) {
    const auto address = reinterpret_cast<std::uintptr_t>(entry.first);
    return (address >> 6 ^ address >> 15) % kSlots;
  }

  std::array<Entry, kSlots> seen_;
};

}  // namespace sparseloom::plan
