// The norms between steps, row by row. A row has eight sums, which the compiler turns into a vector.
#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "kernels/recurrent/cpu/cells.h"
#include "sparseloom/generic/half.h"

namespace sparseloom::kernels::cpu {
namespace {

#define SPARSELOOM_NORM inline
#include "kernels/recurrent/norm-inl.h"
#undef SPARSELOOM_NORM

constexpr std::int64_t kLanes = 8;

template <class T>
using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <class T>
Wide<T> read(const T* p) {
  if constexpr (std::is_arithmetic_v<T>)
    return *p;
  else
    return core::to_f32(*p);
}
template <class T>
void write(T* p, Wide<T> x) {
  if constexpr (std::is_arithmetic_v<T>)
    *p = x;
  else if constexpr (std::is_same_v<T, core::F16>)
    *p = core::to_f16(x);
  else
    *p = core::to_bf16(x);
}

template <class T>
void widen(const T* __restrict__ from, Wide<T>* __restrict__ to, std::int64_t n) {
  for (std::int64_t j = 0; j < n; ++j) to[j] = read(from + j);
}

/// norm_value and norm_slope of a whole row without extra numbers: loops that the compiler vectorises.
template <class T>
void values_of(const Wide<T>* __restrict__ unit, const T* __restrict__ weight, const T* __restrict__ bias,
               Wide<T> mean, Wide<T> inverse, bool relu, T* __restrict__ y, std::int64_t n) {
  using V = Wide<T>;
  for (std::int64_t j = 0; j < n; ++j) {
    const V value =
        norm_value<V>((unit[j] - mean) * inverse, read(weight + j), read(bias + j), false, false, V(0));
    write(y + j, relu && value < 0 ? V(0) : value);
  }
}
template <bool kSums, class T>
void slopes_of(const Wide<T>* __restrict__ unit, const T* __restrict__ dy, const T* __restrict__ weight,
               const T* __restrict__ bias, Wide<T> mean, Wide<T> inverse, bool relu,
               Wide<T>* __restrict__ before, Wide<T>* __restrict__ dweight, Wide<T>* __restrict__ dbias,
               std::int64_t n) {
  using V = Wide<T>;
  for (std::int64_t j = 0; j < n; ++j) {
    const V normal = (unit[j] - mean) * inverse, w = read(weight + j);
    const V slope = norm_slope<V>(read(dy + j), normal, w, read(bias + j), false, false, V(0), relu).before;
    if constexpr (kSums) dweight[j] += slope * normal, dbias[j] += slope;
    before[j] = slope * w;
  }
}

/// The two sums over a row of the numbers that body(j, first, second) adds.
template <class V, class Body>
void sums_of(std::int64_t n, V (&sums)[2], Body body) {
  V lanes[2][kLanes] = {};
  std::int64_t j = 0;
  for (; j + kLanes <= n; j += kLanes)
    for (std::int64_t lane = 0; lane < kLanes; ++lane) body(j + lane, lanes[0][lane], lanes[1][lane]);
  for (; j < n; ++j) body(j, lanes[0][0], lanes[1][0]);
  for (int k = 0; k < 2; ++k) {
    sums[k] = 0;
    for (const V lane : lanes[k]) sums[k] += lane;
  }
}

/// One group of one row: its offset, and its weight, bias and extra numbers.
template <class T>
struct Group {
  using V = Wide<T>;
  std::int64_t at, slots;                   // units before the group, and extra numbers before the row
  std::int64_t from, side, groups, hidden;  // of z: see each_place
  const T *z, *weight, *bias, *extra;
  V* statistics;
  V scale;

  Group(const UnitNorm& norm, std::int64_t row, std::int64_t group)
      : at((row * norm.groups + group) * norm.hidden),
        slots(row * ((norm.hidden + norm.stride - 1) / norm.stride)),
        from(row * norm.groups * norm.hidden + group * (norm.side == 0 ? norm.hidden : norm.side)),
        side(norm.side == 0 ? norm.hidden : norm.side),
        groups(norm.groups),
        hidden(norm.hidden),
        z(static_cast<const T*>(norm.z) + from),
        weight(static_cast<const T*>(norm.weight) + group * norm.hidden),
        bias(static_cast<const T*>(norm.bias) + group * norm.hidden),
        extra(norm.extra == nullptr || group != norm.group ? nullptr
                                                           : static_cast<const T*>(norm.extra) + slots),
        statistics(norm.statistics == nullptr
                       ? nullptr
                       : static_cast<V*>(norm.statistics) + 2 * (row * norm.groups + group)),
        scale(static_cast<V>(norm.scale)) {}

  /// Calls body(j, place) for the units, where place is the offset of j in z and dz from `from`.
  template <class Body>
  void each_place(Body body) const {
    for (std::int64_t begin = 0; begin < hidden; begin += side)
      for (std::int64_t j = begin, place = begin * groups; j < begin + side; ++j, ++place) body(j, place);
  }
  std::vector<V> units() const {
    std::vector<V> values(static_cast<std::size_t>(hidden));
    V* const to = values.data();
    for (std::int64_t begin = 0; begin < hidden; begin += side) widen(z + begin * groups, to + begin, side);
    return values;
  }
};

/// Calls body(j, reached, slot) for the units of a row, of which every stride-th is reached.
template <class Body>
void each_unit(std::int64_t hidden, std::int64_t stride, Body body) {
  for (std::int64_t slot = 0; slot * stride < hidden; ++slot) {
    body(slot * stride, true, slot);
    const std::int64_t end = std::min(hidden, (slot + 1) * stride);
    for (std::int64_t j = slot * stride + 1; j < end; ++j) body(j, false, std::int64_t{0});
  }
}

template <class T>
void forward(const UnitNorm& norm, std::int64_t row) {
  using V = Wide<T>;
  for (std::int64_t group = 0; group < norm.groups; ++group) {
    const Group<T> of_group(norm, row, group);
    const std::vector<V> z = of_group.units();
    const V* const unit = z.data();
    // Sums around the first unit, so that a mean far from zero loses no precision.
    const V origin = unit[0], count = static_cast<V>(norm.hidden);
    V sums[2];
    sums_of<V>(norm.hidden, sums, [&](std::int64_t j, V& first, V& second) {
      const V x = unit[j] - origin;
      first += x, second += x * x;
    });
    const V shift = sums[0] / count, variance = std::max(V(0), sums[1] / count - shift * shift);
    const V mean = origin + shift, inverse = 1 / std::sqrt(variance + static_cast<V>(norm.eps));
    if (of_group.statistics != nullptr) of_group.statistics[0] = mean, of_group.statistics[1] = inverse;
    T* const y = static_cast<T*>(norm.y) + of_group.at;
    if (of_group.extra == nullptr) {
      values_of<T>(unit, of_group.weight, of_group.bias, mean, inverse, norm.relu, y, norm.hidden);
      continue;
    }
    each_unit(norm.hidden, norm.stride, [&](auto j, bool reached, auto slot) {
      const V extra = reached ? read(of_group.extra + slot) * of_group.scale : V(0);
      const V value = norm_value<V>((unit[j] - mean) * inverse, read(of_group.weight + j),
                                    read(of_group.bias + j), reached, norm.multiply, extra);
      write(y + j, norm.relu && value < 0 ? V(0) : value);
    });
  }
}

template <class T>
void gradient(const UnitNormGradient& of, std::int64_t part) {
  using V = Wide<T>;
  const UnitNorm& norm = of.norm;
  std::vector<V> before(static_cast<std::size_t>(norm.hidden));
  for (std::int64_t row = part; row < norm.n; row += kUnitNormParts)
    for (std::int64_t group = 0; group < norm.groups; ++group) {
      const Group<T> of_group(norm, row, group);
      const std::vector<V> z = of_group.units();
      const V* const unit = z.data();
      const T* const dy = static_cast<const T*>(of.dy) + of_group.at;
      T* const dz = static_cast<T*>(of.dz) + of_group.from;
      const V mean = of_group.statistics[0], inverse = of_group.statistics[1];
      const std::int64_t columns = norm.groups * norm.hidden;
      V* const dweight =
          of.sums == nullptr ? nullptr : static_cast<V*>(of.sums) + part * 2 * columns + group * norm.hidden;
      if (of_group.extra != nullptr) {
        each_unit(norm.hidden, norm.stride, [&](auto j, bool reached, auto slot) {
          const V extra = reached ? read(of_group.extra + slot) * of_group.scale : V(0);
          const V normal = (unit[j] - mean) * inverse;
          const NormSlope<V> slope =
              norm_slope<V>(read(dy + j), normal, read(of_group.weight + j), read(of_group.bias + j), reached,
                            norm.multiply, extra, norm.relu);
          if (dweight != nullptr) dweight[j] += slope.before * normal, dweight[columns + j] += slope.before;
          if (reached && of.dextra != nullptr)
            write(static_cast<T*>(of.dextra) + of_group.slots + slot, slope.extra * of_group.scale);
          before[static_cast<std::size_t>(j)] = slope.before * read(of_group.weight + j);
        });
      } else if (dweight != nullptr) {
        slopes_of<true, T>(unit, dy, of_group.weight, of_group.bias, mean, inverse, norm.relu, before.data(),
                           dweight, dweight + columns, norm.hidden);
      } else {
        slopes_of<false, T>(unit, dy, of_group.weight, of_group.bias, mean, inverse, norm.relu, before.data(),
                            nullptr, nullptr, norm.hidden);
      }
      V sums[2];
      sums_of<V>(norm.hidden, sums, [&](std::int64_t j, V& first, V& second) {
        const V x = before[static_cast<std::size_t>(j)];
        first += x, second += x * (unit[j] - mean) * inverse;
      });
      const V a = sums[0] / static_cast<V>(norm.hidden), b = sums[1] / static_cast<V>(norm.hidden);
      of_group.each_place([&](std::int64_t j, std::int64_t place) {
        write(dz + place,
              inverse * (before[static_cast<std::size_t>(j)] - a - (unit[j] - mean) * inverse * b));
      });
    }
}

}  // namespace

void unit_norm_row(const UnitNorm& norm, std::int64_t row) {
  switch (norm.dtype) {
    case DType::f64: return forward<double>(norm, row);
    case DType::f16: return forward<core::F16>(norm, row);
    case DType::bf16: return forward<core::Bf16>(norm, row);
    default: return forward<float>(norm, row);
  }
}

void unit_norm_gradient_part(const UnitNormGradient& norm, std::int64_t part) {
  switch (norm.norm.dtype) {
    case DType::f64: return gradient<double>(norm, part);
    case DType::f16: return gradient<core::F16>(norm, part);
    case DType::bf16: return gradient<core::Bf16>(norm, part);
    default: return gradient<float>(norm, part);
  }
}

}  // namespace sparseloom::kernels::cpu
