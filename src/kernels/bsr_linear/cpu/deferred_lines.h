// Deferred stores past the caches ("line" is a cache line). Outputs of calls too large for the caches
// (passes_caches) are written by non-temporal stores: an ordinary store would first read its cache line from
// DRAM. A strip's lines stored all at once, though, exceed a core's store queue and write-combining
// buffers, and everything after them would wait for DRAM. So the lines wait in a buffer and are stored a few
// at a time among the products of the next strips, where nothing waits for them. Both choices measured
// faster; the log has the figures.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace sparseloom::kernels::cpu {

/// The buffer of one task's finished outputs: rows of whole cache lines, one row per token of a strip.
class DeferredLines {
 public:
  /// Bytes of a line, and capacity of the buffer in lines: AMX writes 64 tokens of 32 fp32.
  static constexpr std::int64_t kLine = 64, kMost = 128;

  struct Rows {
    std::byte* out;
    std::int64_t stride;  // bytes
  };
  /// Returns where a strip writes its `count` rows of `bytes` each, whose destination is `rows`: the buffer,
  /// if they are whole lines and fit (its old content is stored first), otherwise `rows` itself. `lines` may
  /// be null: then outputs are stored through the caches.
  static Rows rows_of(DeferredLines* lines, Rows rows, std::int64_t bytes, std::int64_t count) {
    if (lines == nullptr || bytes % kLine != 0 || bytes / kLine * count > kMost || rows.stride % kLine != 0 ||
        reinterpret_cast<std::uintptr_t>(rows.out) % kLine != 0)
      return rows;
    lines->send(lines->left());
    lines->rows_ = rows, lines->width_ = bytes, lines->column_ = 0, lines->sent_ = 0,
    lines->count_ = bytes / kLine * count;
    return {lines->held_, bytes};
  }
  std::int64_t left() const { return count_ - sent_; }

  /// Lines per call of send() such that none is left after `times` calls.
  static std::int64_t pace(const DeferredLines* lines, std::int64_t times) {
    times = std::max<std::int64_t>(1, times);
    return lines == nullptr ? 0 : (lines->left() + times - 1) / times;
  }

  /// Stores up to n lines.
  [[gnu::always_inline]] void send(std::int64_t n) {
    for (const std::int64_t end = std::min(sent_ + n, count_); sent_ < end; ++sent_) {
      stream(rows_.out + column_, held_ + sent_ * kLine);
      column_ += kLine;
      if (column_ == width_) column_ = 0, rows_.out += rows_.stride;
    }
  }

  /// Stores the remaining lines and waits until they have left this core. A task calls this before it reports
  /// completion, so that the outputs may be read then.
  void finish() {
    send(left());
#if defined(__x86_64__)
    __builtin_ia32_sfence();
#endif
  }

 private:
  [[gnu::always_inline]] static void stream(std::byte* to, const std::byte* from) {
#if defined(__x86_64__)
    using Quarter [[gnu::vector_size(16), gnu::may_alias]] = long long;
    for (int i = 0; i < 4; ++i)
      __builtin_ia32_movntdq(reinterpret_cast<Quarter*>(to) + i,
                             *(reinterpret_cast<const Quarter*>(from) + i));
#else
    std::memcpy(to, from, kLine);
#endif
  }

  alignas(kLine) std::byte held_[kMost * kLine];
  Rows rows_ = {};  // destination of the next line's row
  std::int64_t width_ = kLine, column_ = 0, sent_ = 0, count_ = 0;
};

}  // namespace sparseloom::kernels::cpu
