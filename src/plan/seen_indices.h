// The indices that a thread has validated.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>

#include "core/fingerprint.h"
#include "sparseloom/layout.h"

namespace sparseloom::plan {

/// An index that is one list, of another layout than BSR: `shape` has the layout's own numbers.
template <class T>
struct ListIndex {
  std::int64_t rows = 0, cols = 0, shape = 0;
  std::span<const T> list;
};

/// One whose owner counts the writes to it.
template <class T>
struct CountedList {
  ListIndex<T> list;
  std::uint64_t writes = 0;
};

/// An index with one entry per element, whose owner counts the writes to it.
struct CountedIndex {
  IndexView index;
  std::uint64_t writes = 0;
};

/// A list with the bounds of its rows [rows + 1]. If the owner counts the writes to both, `writes` is their
/// number, and not null.
template <class T>
struct BoundedList {
  ListIndex<T> list;
  const std::int32_t* bounds = nullptr;
  const std::uint64_t* writes = nullptr;
};

/// The indices that were validated last, by address, shape and content. It belongs to one thread, so it needs
/// no lock. The fingerprint covers the whole content: 1024 entries take .1 to .3 us (a Xeon), and a block has
/// 64 values or more per entry. An index of single elements has one entry per value: for a CountedIndex with
/// more than kReadWhole entries in a list, the number of writes and some samples stand for the content, since
/// 1.6 million entries would take 170 us in each product of one token.
class SeenIndices {
 public:
  /// `index`: an IndexView, a ListIndex, a CountedList, a CountedIndex or a BoundedList; `transposed`: its
  /// column index, if that is read.
  bool contains(const auto& index, const TransposedView& transposed = {}) const {
    const Entry entry(index, transposed);
    const Set& set = sets_[set_of(entry)];
    return std::find(set.seen.begin(), set.seen.end(), entry) != set.seen.end();
  }
  void add(const auto& index, const TransposedView& transposed = {}) {
    const Entry entry(index, transposed);
    Set& set = sets_[set_of(entry)];
    set.seen[set.next++ % kWays] = entry;
  }

 private:
  // Eight to a set: of 48 layers one for each of 512 slots, two pairs met in every step of a model and were
  // validated again each time, which took a fifth of it (bitmaps of 295 KB, 700 us each).
  static constexpr std::size_t kSets = 256, kWays = 8;
  static constexpr std::int64_t kReadWhole = 4096, kSamples = 8;

  struct Entry {
    std::int64_t rows = -1, cols = 0, count = 0;
    std::uint64_t shape = 0;
    const void *first = nullptr, *second = nullptr, *third = nullptr;
    std::uint64_t content = 0;

    Entry() = default;
    Entry(const IndexView& index, const TransposedView& transposed) : Entry(index) {
      third = transposed.ccol;
      whole(index.crow, index.block_rows() + 1);
      whole(index.col, index.blocks);
      if (third == nullptr) return;
      whole(transposed.ccol, index.block_cols() + 1);
      whole(transposed.row, index.blocks);
      whole(transposed.slot, index.blocks);
    }
    template <class T>
    Entry(const ListIndex<T>& index, const TransposedView&) : Entry(index) {
      whole(index.list.data(), count);
    }
    template <class T>
    Entry(const CountedList<T>& index, const TransposedView&) : Entry(index.list) {
      content = index.writes;
      some(index.list.list.data(), count);
    }
    template <class T>
    Entry(const BoundedList<T>& index, const TransposedView&) : Entry(index.list) {
      second = index.bounds;
      if (index.writes == nullptr) {
        whole(index.list.list.data(), count);
        whole(index.bounds, rows + 1);
      } else {
        content = *index.writes;
        some(index.list.list.data(), count);
        some(index.bounds, rows + 1);
      }
    }
    Entry(const CountedIndex& counted, const TransposedView&) : Entry(counted.index) {
      const IndexView& index = counted.index;
      content = counted.writes;
      some(index.crow, index.block_rows() + 1);
      some(index.col, index.blocks);
    }
    friend bool operator==(const Entry&, const Entry&) = default;

   private:
    explicit Entry(const IndexView& index)
        : rows(index.rows),
          cols(index.cols),
          count(index.blocks),
          shape(std::bit_cast<std::uint64_t>(index.block)),
          first(index.crow),
          second(index.col) {}
    template <class T>
    explicit Entry(const ListIndex<T>& index)
        : rows(index.rows),
          cols(index.cols),
          count(std::ssize(index.list)),
          shape(static_cast<std::uint64_t>(index.shape)),
          first(index.list.data()) {}
    template <class T>
    void whole(const T* values, std::int64_t of) {
      content = core::fingerprint(values, static_cast<std::size_t>(of) * sizeof(T), content);
    }
    template <class T>
    void some(const T* values, std::int64_t of) {
      if (of <= kReadWhole) return whole(values, of);
      for (std::int64_t i = 0; i < of; i += (of + kSamples - 1) / kSamples) whole(values + i, 1);
      whole(values + of - 1, 1);
    }
  };

  struct Set {
    std::array<Entry, kWays> seen;
    std::uint32_t next = 0;
  };

  static std::size_t set_of(const Entry& entry) {
    const auto address = reinterpret_cast<std::uintptr_t>(entry.first);
    return (address >> 6 ^ address >> 15) % kSets;
  }

  std::array<Set, kSets> sets_;
};

}  // namespace sparseloom::plan
