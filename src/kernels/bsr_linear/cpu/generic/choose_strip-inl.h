// The strips of BSR by dtype and direction, and the register tile alone. Included inside an instruction set's
// region, after panel-inl.h.

template <int kVectors>
cpu::StripFunction strip_of([[maybe_unused]] DType dtype, Direction direction) {
  [[maybe_unused]] const bool forward = direction == Direction::forward;
  if constexpr (kDepthStep == 4)
    return strips<OfBlocks<DirectForward>, kVectors>;  // 8-bit operands have no other direction
  else if constexpr (kDepthStep == 2)
    return strips<OfBlocks<DirectForward>, kVectors>;  // dx: on transposed blocks
  else
    switch (dtype) {
      case DType::f16:
        return forward ? strips<OfBlocks<WidenForward<cpu::F16>>, kVectors>
                       : strips<OfBlocks<WidenDx<cpu::F16>>, kVectors>;
      case DType::bf16:
        return forward ? strips<OfBlocks<WidenForward<cpu::Bf16>>, kVectors>
                       : strips<OfBlocks<WidenDx<cpu::Bf16>>, kVectors>;
      default:
        return forward ? strips<OfBlocks<DirectForward>, kVectors> : strips<OfBlocks<DirectDx>, kVectors>;
    }
}
cpu::StripFunction choose_strip(DType dtype, Direction direction, int vectors) {
  return vectors == 3   ? strip_of<3>(dtype, direction)
         : vectors == 2 ? strip_of<2>(dtype, direction)
                        : strip_of<1>(dtype, direction);
}

// Runs the register tile without loads: every fraction of peak is measured against its rate. Returns the
// flops done.
std::int64_t spin(std::int64_t rounds) {
  constexpr int kVectors = cpu::kMaxVectors;
  static constexpr auto kCells = cpu::spin_cells<(kVectors + 1) * kLanes>();
  const auto* const cells = reinterpret_cast<const cpu::Cell*>(kCells.data());
  Vec acc[kTileOutputs][kVectors], x[kVectors], w = load(cells + kVectors * kLanes);
  unroll<kVectors>(SPARSELOOM_UNROLLED(v) { x[v.value] = load(cells + v.value * kLanes); });
  unroll<kTileOutputs>(SPARSELOOM_UNROLLED(o) {
    unroll<kVectors>(SPARSELOOM_UNROLLED(v) {
      acc[o.value][v.value] = zero();
      asm volatile(""
                   : "+v"(acc[o.value][v.value]));  // hides the value, or gcc would compute one of these
                                                    // equal sums for all
    });
  });
  for (std::int64_t i = 0; i < rounds; ++i) {
    unroll<kTileOutputs>(SPARSELOOM_UNROLLED(o) {
      unroll<kVectors>(SPARSELOOM_UNROLLED(v) {
        acc[o.value][v.value] = Product::step(acc[o.value][v.value], x[v.value], w);
      });
    });
    asm volatile("" : "+v"(w));  // opaque to the compiler, so that it cannot hoist or fold the round
  }
  unroll<kTileOutputs>(SPARSELOOM_UNROLLED(o) {
    unroll<kVectors>(SPARSELOOM_UNROLLED(v) { asm volatile("" : : "v"(acc[o.value][v.value])); });
  });
  return rounds * kTileOutputs * kVectors * kLanes * kDepthStep * 2;
}
