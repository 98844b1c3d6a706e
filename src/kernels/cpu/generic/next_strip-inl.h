// Weights are read once for each panel, from beyond L2: those of the next strip are asked for while this one
// is multiplied. Included inside an instruction set's region, in front of panel-inl.h.
//
//   forward   the next 8 rows of the block row, or the next block row's first
//   dx        strips side by side lie in the same cache lines, and together ask for those of the next such
//   strips
//
// At each block it asks for its share of a block's lines; the n-th of one list for the n-th of the other.
// Without it AVX2 waited for memory half of its time: forward, fp32, density .8, blocks of 32, 2 threads, 270
// to 175 ms. Dx by AVX-512, fp32, blocks of 32 and 64 at .2 / .8: 45 / 185 to 40 / 176 ms, 44 / 172 to 39 /
// 154.
template <class Weights>
class NextStrip {
 public:
  [[gnu::always_inline]] NextStrip(const Weights& weights, const cpu::PanelJob& job, const cpu::Strip& strip)
      : slot_(job.slot),
        line_bytes_(Weights::kForward ? 64 : weights.line_stride),
        lines_((Weights::kForward ? weights.lines : job.depth_block) / kShares) {
    const std::int64_t block = strip.output / job.output_block, within = strip.output % job.output_block;
    const std::int64_t output = (within / kTogether + 1) * kTogether;
    const bool same_list = output < job.output_block;
    const std::int64_t list = same_list ? block : block + 1;
    if (strip.leads && list < job.output_blocks) begin_ = job.begin[list], end_ = job.end[list];
    const std::int64_t share = within % kTogether / cpu::kGroup * kPasses;
    const auto* const block0 = weights.source(0) - weights.offset;
    block_bytes_ =
        reinterpret_cast<const char*>(weights.source(1)) - reinterpret_cast<const char*>(weights.source(0));
    from_ = reinterpret_cast<const char*>(block0 + (same_list ? output * weights.output_stride : 0)) +
            share * lines_ * line_bytes_;
  }

  /// Lines to ask for at a block and pass, line_bytes() apart.
  std::int64_t lines_of_pass() const { return lines_; }
  std::int64_t line_bytes() const { return line_bytes_; }
  /// The first of them at the n-th of the strip's blocks, or null: the next strip has fewer.
  [[gnu::always_inline]] const char* first_line(std::int64_t n, int pass) const {
    const std::int64_t i = begin_ + n;
    if (i >= end_) return nullptr;
    return from_ + (Weights::kForward ? i : slot_[i]) * block_bytes_ + pass * lines_ * line_bytes_;
  }

 private:
  static constexpr std::int64_t kPasses = cpu::kGroup / kTileOutputs;
  /// Outputs whose weights lie in the same lines.
  static constexpr std::int64_t kTogether = Weights::kForward ? cpu::kGroup : 64 / sizeof(*Weights::values);
  static constexpr std::int64_t kShares = kTogether / cpu::kGroup * kPasses;

  const std::int32_t* slot_;
  const char* from_;                               // the first line of this strip's share, of block 0
  std::int64_t block_bytes_, line_bytes_, lines_;  // from block to block and line to line; lines of a pass
  std::int64_t begin_ = 0, end_ = 0;               // its blocks
};
