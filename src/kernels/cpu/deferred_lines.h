// Outputs that outgrow L2 are written past the caches: they are read again much later, and the line of a
// store that stays is read first. AMX, 1024 x 4096 x 4096, bf16, 2 threads of an Emerald Rapids, at .05 / .1
// / .2 / .5: 2.0 / 3.1 / 5.1 / 9.0 to 1.65 / 2.65 / 4.5 / 8.6 ms. Stored all at once, though, a strip's lines
// are more than a core's store queue and write-combining buffers hold, and all that is behind them waits for
// memory: a quarter of the panel kernels' time at density .05 (bf16, Zen 5). So they wait here, and leave a
// few at a time among the products of the next strips, where nobody waits for them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace sparseloom::kernels::cpu {

/// Finished outputs of one task: rows of whole cache lines, one for each token of a strip.
class DeferredLines {
 public:
  static constexpr std::int64_t kLine = 64, kMost = 128;  // AMX: 64 tokens of 32 fp32

  struct Rows {
    std::byte* out;
    std::int64_t stride;  // bytes
  };
  /// Where a strip writes `count` rows of `bytes` that belong to `rows`: there, or, if they are whole lines,
  /// here: what was here has left. `lines` may be null: all stay in the caches.
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

  /// Lines to send at each of `times` times, so that none is left behind the last.
  static std::int64_t pace(const DeferredLines* lines, std::int64_t times) {
    times = std::max<std::int64_t>(1, times);
    return lines == nullptr ? 0 : (lines->left() + times - 1) / times;
  }

  /// Stores up to n of them.
  [[gnu::always_inline]] void send(std::int64_t n) {
    for (const std::int64_t end = std::min(sent_ + n, count_); sent_ < end; ++sent_) {
      stream(rows_.out + column_, held_ + sent_ * kLine);
      column_ += kLine;
      if (column_ == width_) column_ = 0, rows_.out += rows_.stride;
    }
  }

  /// Stores what is left, and waits until all of it has left this core: before whoever waits for the task
  /// reads the outputs.
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
  Rows rows_ = {};  // where the next line's row goes
  std::int64_t width_ = kLine, column_ = 0, sent_ = 0, count_ = 0;
};

}  // namespace sparseloom::kernels::cpu
