// Which indices a thread has validated.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "sparseloom/layout.h"

namespace sparseloom::plan {

/// The indices that were validated last, by address, shape and a few samples of their content. It is meant
/// for one thread, so it needs no lock. An index that was rewritten in place, or that lies where another one
/// was freed, differs in the samples nearly always and is validated again. (A hash of all its content would
/// cost as much as validating.)
class SeenIndices {
 public:
  bool contains(const IndexView& index) const { return seen_[slot_of(index)] == Entry(index); }
  void add(const IndexView& index) { seen_[slot_of(index)] = Entry(index); }

 private:
  static constexpr std::size_t kSlots = 512;
  static constexpr std::int64_t kSamples = 8;

  struct Entry {
    std::int64_t rows = -1, cols = 0, blocks = 0;
    BlockShape block;
    const std::int32_t *crow = nullptr, *col = nullptr;
    std::uint64_t content = 0;

    Entry() = default;
    explicit Entry(const IndexView& index)
        : rows(index.rows),
          cols(index.cols),
          blocks(index.blocks),
          block(index.block),
          crow(index.crow),
          col(index.col) {
      sample(index.crow, index.block_rows() + 1);
      sample(index.col, index.blocks);
    }
    void sample(const std::int32_t* values, std::int64_t count) {
      const auto add = [&](std::int64_t i) {
        content = (content ^ static_cast<std::uint32_t>(values[i])) * 0x9e3779b97f4a7c15u;
      };
      for (std::int64_t i = 0; i < count; i += (count + kSamples - 1) / kSamples) add(i);
      if (count > 0) add(count - 1);
    }
    friend bool operator==(const Entry&, const Entry&) = default;
  };

  static std::size_t slot_of(const IndexView& index) {
    const auto address = reinterpret_cast<std::uintptr_t>(index.crow);
    return (address >> 6 ^ address >> 15) % kSlots;
  }

  std::array<Entry, kSlots> seen_;
};

}  // namespace sparseloom::plan
