// What the reference's passes share: elements in its sums' type, tiles of keys, and the probabilities of one
// query.
#pragma once

#include <cmath>
#include <limits>
#include <type_traits>

#include "kernels/block_attention/walk.h"
#include "sparseloom/generic/half.h"

namespace sparseloom::kernels::attention {

// Tiles lie on the stack: four of them in fp64 are 512 KB, of the 8 MB that threads have.
inline constexpr std::int64_t kTile = 64, kMostDim = 256;

/// fp64 sums in fp64, everything else in fp32.
template <class T>
using Sum = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <class T>
Sum<T> read(T x) {
  if constexpr (std::is_floating_point_v<T>)
    return x;
  else
    return core::to_f32(x);
}
inline void write(double& to, double x) { to = x; }
inline void write(float& to, float x) { to = x; }
inline void write(core::F16& to, float x) { to = core::to_f16(x); }
inline void write(core::Bf16& to, float x) { to = core::to_bf16(x); }

template <class S>
using Row = S[kMostDim];

/// At most kTile rows from `begin`, as sums.
template <class T>
void load(Row<Sum<T>> (&to)[kTile], const Rows<const T>& from, std::int64_t begin, std::int64_t count,
          std::int64_t dim) {
  for (std::int64_t i = 0; i < count; ++i)
    for (std::int64_t c = 0; c < dim; ++c) to[i][c] = read(from[begin + i][c]);
}

/// The same transposed, so that a loop over keys is one over neighbours.
template <class T>
void load_transposed(Sum<T> (&to)[kMostDim][kTile], const Rows<const T>& from, std::int64_t begin,
                     std::int64_t count, std::int64_t dim) {
  for (std::int64_t i = 0; i < count; ++i)
    for (std::int64_t c = 0; c < dim; ++c) to[c][i] = read(from[begin + i][c]);
}

/// to[i] = scale sum of x[c] columns[c][i].
template <class S>
void products(S (&to)[kTile], const S (&x)[kMostDim], const S (&columns)[kMostDim][kTile], std::int64_t count,
              std::int64_t dim, S scale) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = 0;
  for (std::int64_t c = 0; c < dim; ++c)
    for (std::int64_t i = 0; i < count; ++i) to[i] += x[c] * columns[c][i];
  for (std::int64_t i = 0; i < count; ++i) to[i] *= scale;
}

/// Which of the keys from `begin` a query keeps; the number of them that it does.
struct Mask {
  const Problem& problem;
  const Sequence& sequence;
  const std::int32_t *q_documents, *kv_documents;

  std::int64_t operator()(bool (&kept)[kTile], std::int64_t query, std::int64_t begin, std::int64_t count,
                          bool partial) const {
    const std::int64_t end = sequence.key_end(problem, query);
    std::int64_t all = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      kept[i] = begin + i < end && (!partial || q_documents[query] == kv_documents[begin + i]);
      all += kept[i];
    }
    return all;
  }
};

inline Mask mask_of(const Args& args, const Sequence& s, std::int64_t batch) {
  return {args.problem, s, documents_of(args, args.q_documents, batch, s.q_first, args.problem.q_tokens),
          documents_of(args, args.kv_documents, batch, s.kv_first, args.problem.kv_tokens)};
}

template <class T>
void forward_block(const Args& args, std::int64_t batch, std::int64_t head, std::int64_t block);
template <class T>
void gradient_of_queries(const Args& args, std::int64_t batch, std::int64_t head, std::int64_t block);
template <class T>
void gradient_of_keys(const Args& args, std::int64_t batch, std::int64_t kv_head, std::int64_t block);

}  // namespace sparseloom::kernels::attention
