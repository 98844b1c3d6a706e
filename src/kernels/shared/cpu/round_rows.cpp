// Divides the rows among threads; and has the form for CPUs without AVX2.
#include "kernels/shared/cpu/round_rows.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "kernels/shared/cpu/share.h"
#include "runtime/cpu.h"
#include "sparseloom/generic/parallel.h"

namespace sparseloom::kernels::cpu {
namespace {

// Elements that take as long as a thread takes to wake (kTaskUs), from beyond L2.
constexpr double kTaskElementsOfRows = 30e3;

float at(const ConstMatrixView& x, std::int64_t i) {
  switch (x.dtype) {
    case DType::f32: return static_cast<const Cell*>(x.data)[i];
    case DType::f16: return as_f32(static_cast<const F16*>(x.data)[i]);
    default: return as_f32(static_cast<const Bf16*>(x.data)[i]);
  }
}

void scalar_rows(const RoundRows& call, std::int64_t begin, std::int64_t end) {
  const ConstMatrixView& x = call.x;
  for (std::int64_t r = begin; r < end; ++r) {
    float largest = 0;
    for (std::int64_t c = 0; c < x.cols && !std::isnan(largest); ++c) {
      const float magnitude = std::abs(at(x, r * x.stride + c));
      if (!(magnitude <= largest)) largest = magnitude;
    }
    const float scale = call.given ? *call.given : largest / kMostInt8, inverse = inverse_of(scale);
    if (!call.given) call.out.scale[r] = scale;
    for (std::int64_t c = 0; c < x.cols; ++c) {
      const float quotient = inverse == 0 ? 0 : at(x, r * x.stride + c) * inverse;
      const float clipped = std::clamp(std::isnan(quotient) ? 0 : quotient, -kMostInt8, kMostInt8);
      call.out.values[r * x.cols + c] = static_cast<std::int8_t>(std::nearbyint(clipped));
    }
  }
}

void rows(const RoundRows& call, std::int64_t begin, std::int64_t end) {
#if defined(__x86_64__)
  if (runtime::active_isa().has(runtime::Isa::avx512)) return round_rows_avx512(call, begin, end);
  if (runtime::active_isa().has(runtime::Isa::avx2)) return round_rows_avx2(call, begin, end);
#endif
  scalar_rows(call, begin, end);
}

}  // namespace

void round_rows(const RoundRows& call, const Executor& executor) {
  const double elements = static_cast<double>(call.x.rows) * static_cast<double>(call.x.cols);
  const std::int64_t tasks = std::min(call.x.rows, tasks_of(elements / kTaskElementsOfRows, executor));
  runtime::parallel_tasks(executor, tasks, [&](std::int64_t task) {
    const Range part = share(call.x.rows, task, tasks);
    rows(call, part.begin, part.end);
  });
}

}  // namespace sparseloom::kernels::cpu
