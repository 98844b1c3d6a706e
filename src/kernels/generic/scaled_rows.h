// The rows of 8-bit weights of any layout on the CPU: `expand` and `reference`.
//
// expand places the stored elements of a few outputs at their columns in W, with zeros between them, and
// multiplies those rows by all tokens: int8 as int16 (which compilers turn into multiply-adds of pairs), and
// f8e4m3 as fp32. It has no intrinsics, and runs on every CPU.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/check.h"
#include "kernels/runs.h"
#include "kernels/shared/cpu/claims.h"
#include "sparseloom/generic/parallel.h"
#include "sparseloom/generic/reference.h"
#include "sparseloom/scaled_of.h"

namespace sparseloom::kernels::generic::scaled {

inline constexpr const char* kExpandCaveat =
    "the zeros between stored elements are multiplied too, so a NaN in x spreads to every output of its "
    "token";
inline constexpr std::int64_t kOutputs = 8, kLanes = 16;

inline constinit Runs expand_runs{"expand"};

/// The wide type of an 8-bit one, and its conversion.
struct I8 {
  using Wide = std::int16_t;
  using Sum = std::int32_t;
  static Wide widen(std::uint8_t bits) { return static_cast<std::int8_t>(bits); }
};
struct E4m3 {
  using Wide = float;
  using Sum = float;
  static constexpr std::array<float, 256> kWide = [] {
    std::array<float, 256> all{};
    for (unsigned i = 0; i < 256; ++i) all[i] = core::to_f32(core::F8E4M3{static_cast<std::uint8_t>(i)});
    return all;
  }();
  static Wide widen(std::uint8_t bits) { return kWide[bits]; }
};

/// padded is a multiple of kLanes. The order of the terms does not depend on the threads. No fp32 sum adds
/// more than kLongestChain terms one after another; longer chains lose precision.
template <class Type>
typename Type::Sum dot(const typename Type::Wide* a, const typename Type::Wide* b, std::int64_t padded) {
  constexpr std::int64_t kLongestChain = 512;
  typename Type::Sum sums[kLanes] = {};
  for (std::int64_t first = 0; first < padded; first += kLanes * kLongestChain) {
    typename Type::Sum part[kLanes] = {};
    for (std::int64_t i = first; i < std::min(padded, first + kLanes * kLongestChain); i += kLanes)
      for (std::int64_t lane = 0; lane < kLanes; ++lane)
        part[lane] += static_cast<typename Type::Sum>(a[i + lane]) * b[i + lane];
    for (std::int64_t lane = 0; lane < kLanes; ++lane) sums[lane] += part[lane];
  }
  for (std::int64_t width = kLanes / 2; width > 0; width /= 2)
    for (std::int64_t lane = 0; lane < width; ++lane) sums[lane] += sums[lane + width];
  return sums[0];
}

inline std::int64_t padded_of(std::int64_t cols) { return core::round_up(cols, kLanes); }

inline std::int64_t tasks_of(std::int64_t rows, int threads) {
  return std::clamp<std::int64_t>(core::ceil_div(rows, kOutputs), 1, std::max(1, threads));
}

/// The tokens, and kOutputs rows per task.
inline std::size_t expand_workspace(const LinearProblem& p) {
  const std::int64_t rows = p.m + kOutputs * tasks_of(p.rows, p.threads);
  return static_cast<std::size_t>(rows * padded_of(p.cols)) *
         (p.dtype == DType::i8 ? sizeof(I8::Wide) : sizeof(E4m3::Wide));
}

template <class L, class Type>
void run_expand(const MatmulArgs& args, const typename L::View& w, const Executor& executor) {
  using Wide = typename Type::Wide;
  const std::int64_t padded = padded_of(w.cols), units = core::ceil_div(w.rows, kOutputs),
                     tasks = tasks_of(w.rows, executor.num_threads);
  Wide* const x = reinterpret_cast<Wide*>(args.workspace);
  cpu::Phase widening(args.m);
  const auto* const values = static_cast<const std::uint8_t*>(args.values);
  runtime::parallel_tasks(executor, tasks, [&](std::int64_t task) {
    widening.work([&](std::int64_t t) {
      const auto* const from = static_cast<const std::uint8_t*>(args.a) + t * args.a_stride;
      std::transform(from, from + w.cols, x + t * padded, Type::widen);
      std::fill(x + t * padded + w.cols, x + (t + 1) * padded, Wide{0});
    });
    widening.wait();
    Wide* const expanded = x + (args.m + task * kOutputs) * padded;
    for (std::int64_t unit = task * units / tasks; unit < (task + 1) * units / tasks; ++unit) {
      const std::int64_t first = unit * kOutputs, count = std::min(kOutputs, w.rows - first);
      std::fill_n(expanded, count * padded, Wide{0});
      for (std::int64_t o = 0; o < count; ++o)
        L::for_each_in_row(w, first + o, [&](std::int64_t column, std::int64_t slot) {
          expanded[o * padded + column] = Type::widen(values[slot]);
        });
      for (std::int64_t t = 0; t < args.m; ++t)
        for (std::int64_t o = 0; o < count; ++o) {
          const auto sum = static_cast<float>(dot<Type>(x + t * padded, expanded + o * padded, padded));
          const std::int64_t row = first + o;
          const auto bias =
              args.bias != nullptr ? static_cast<float>(load(args.out_dtype, args.bias, row)) : 0.0f;
          const float y = std::fma(sum * args.a_scale[args.a_scale_each ? t : 0],
                                   args.w_scale[args.w_scale_each ? row : 0], bias);
          store(args.out_dtype, args.out, t * args.out_stride + row, activate(args.activation, y));
        }
    }
  });
}

template <class L>
Row<ScaledOf<L>> expand_row() {
  using V = ScaledOf<L>;
  const auto propose = [](const ScaledLinearProblem& p, const plan::Machine&, Proposals<V>& out) -> Refusal {
    // Nanoseconds of one thread without wide vectors: per element of W, and per product.
    constexpr double kSpread = 0.5, kProduct = 0.15;
    const double elements = static_cast<double>(p.rows) * static_cast<double>(p.cols);
    const double us = 1e-3 * elements * (kSpread + kProduct * static_cast<double>(p.m));
    out.add({{}, 1 + us / static_cast<double>(tasks_of(p.rows, p.threads)), expand_workspace(p)});
    return {};
  };
  const auto launch = [](const typename V::Args& args, const typename V::Schedule&,
                         const Executor& executor) {
    expand_runs.add();
    if (args.product.dtype == DType::i8)
      run_expand<L, I8>(args.product, args.view, executor);
    else
      run_expand<L, E4m3>(args.product, args.view, executor);
    return 0;
  };
  return {"expand", Placement::cpu, propose, launch, kExpandCaveat};
}

template <class L>
Row<ScaledOf<L>> reference_row() {
  using V = ScaledOf<L>;
  const auto propose = [](const ScaledLinearProblem& p, const plan::Machine&, Proposals<V>& out) -> Refusal {
    if (p.strict) return "strict forbids the reference kernel";
    const double madds = static_cast<double>(p.m) * static_cast<double>(p.stored);
    out.add({{}, predict_reference_us(madds, p.threads), 0});
    return {};
  };
  const auto launch = [](const typename V::Args& args, const typename V::Schedule&,
                         const Executor& executor) {
    forward<L>(args.product, args.view, executor);
    return 0;
  };
  return {"reference", Placement::cpu, propose, launch};
}

}  // namespace sparseloom::kernels::generic::scaled
