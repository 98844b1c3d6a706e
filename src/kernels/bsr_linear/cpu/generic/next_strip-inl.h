// Prefetches the weights of the next strip while this one is multiplied: each panel reads the weights once,
// from beyond L2. Included inside an instruction set's region, before panel-inl.h. "Line" is a cache line
// here.
//
//   forward   the next 8 rows of the same block row, or the first 8 of the next block row
//   dx        adjacent strips share cache lines, and together prefetch those of the next such group
//
// At the n-th block of its list a strip prefetches its share of the lines of the n-th block of the next
// strip's list. Measured faster, most of all for AVX2, which otherwise waited for memory half of its time;
// the log has the figures.
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

  /// The number of lines to prefetch per block and pass; they are line_bytes() apart.
  std::int64_t lines_of_pass() const { return lines_; }
  std::int64_t line_bytes() const { return line_bytes_; }
  /// The first of these lines at the n-th block of the strip, or null if the next strip has fewer blocks.
  [[gnu::always_inline]] const char* first_line(std::int64_t n, int pass) const {
    const std::int64_t i = begin_ + n;
    if (i >= end_) return nullptr;
    return from_ + (Weights::kForward ? i : slot_[i]) * block_bytes_ + pass * lines_ * line_bytes_;
  }

 private:
  static constexpr std::int64_t kPasses = cpu::kGroup / kTileOutputs;
  /// Outputs whose weights share cache lines.
  static constexpr std::int64_t kTogether = Weights::kForward ? cpu::kGroup : 64 / sizeof(*Weights::values);
  static constexpr std::int64_t kShares = kTogether / cpu::kGroup * kPasses;

  const std::int32_t* slot_;
  const char* from_;  // the first line of this strip's share in block 0
  // Strides of blocks and of lines, in bytes; lines per pass.
  std::int64_t block_bytes_, line_bytes_, lines_;
  std::int64_t begin_ = 0, end_ = 0;  // the next strip's blocks
};
