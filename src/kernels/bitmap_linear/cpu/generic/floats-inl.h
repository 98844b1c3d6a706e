// Forward and dX of every dtype of floats in fp32 lanes. Included after lanes-inl.h and dx-inl.h.

void forward_bitmap(const cpu::BitmapJob& job, std::int64_t begin, std::int64_t end) {
  switch (job.args.dtype) {
    case DType::f16: return forward_expand<Lanes<cpu::F16>>(job, begin, end);
    case DType::bf16: return forward_expand<Lanes<cpu::Bf16>>(job, begin, end);
    default: return forward_expand<Lanes<float>>(job, begin, end);
  }
}
void dx_bitmap(const cpu::BitmapJob& job, std::int64_t begin, std::int64_t end, const cpu::BitmapRoom& room) {
  switch (job.args.dtype) {
    case DType::f16: return dx_expand<Lanes<cpu::F16>>(job, begin, end, room);
    case DType::bf16: return dx_expand<Lanes<cpu::Bf16>>(job, begin, end, room);
    default: return dx_expand<Lanes<float>>(job, begin, end, room);
  }
}
