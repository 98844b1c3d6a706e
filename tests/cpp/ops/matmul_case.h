// One small product for the tests of the public calls, with a lent GEMM and scratch memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sparseloom/generic/scalar.h"
#include "sparseloom/sparseloom.h"

namespace sparseloom {

// A GEMM as a host would lend it, in obvious loops.
inline void plain_gemm(void* calls, const Gemm& g) {
  ++*static_cast<int*>(calls);
  const std::int64_t depth = g.a_transposed ? g.a.rows : g.a.cols;
  for (std::int64_t i = 0; i < g.c.rows; ++i)
    for (std::int64_t j = 0; j < g.c.cols; ++j) {
      double sum = g.bias ? kernels::load(g.c.dtype, g.bias, j) : 0;
      for (std::int64_t k = 0; k < depth; ++k)
        sum += kernels::load(g.a.dtype, g.a.data, g.a_transposed ? k * g.a.stride + i : i * g.a.stride + k) *
               kernels::load(g.b.dtype, g.b.data, g.b_transposed ? j * g.b.stride + k : k * g.b.stride + j);
      kernels::store(g.c.dtype, g.c.data, i * g.c.stride + j, sum);
    }
}

inline std::vector<float> integers(std::size_t count, int seed) {
  std::vector<float> data(count);
  for (std::size_t i = 0; i < count; ++i)
    data[i] = static_cast<float>((static_cast<int>(i) * 7 + seed) % 5 - 2);
  return data;
}

struct Case {
  std::int64_t m = 5, rows = 40, cols = 24;
  BlockIndex index{pattern::random(40, 24, {16, 8}, 0.5, 3)};
  std::vector<float> values = integers(static_cast<std::size_t>(index.view().blocks) * 128, 1);
  std::vector<float> dense = std::vector<float>(40 * 24);
  std::vector<float> x = integers(5 * 24, 2), dy = integers(5 * 40, 3), bias = integers(40, 4);
  int gemm_calls = 0;
  Executor executor;

  Case() {
    MatrixView w{dense.data(), DType::f32, rows, cols, cols};
    unpack(index.view(), values.data(), w);
    pack(w, index.view(), values.data());  // zeroes the padding
    executor = Executor::pool(2);
    executor.context = &gemm_calls;
    executor.parallel_for = nullptr;
    executor.gemm = plain_gemm;
  }

  Problem problem(Direction direction, bool with_bias = false,
                  Activation activation = Activation::none) const {
    Problem p;
    p.direction = direction;
    p.m = m;
    p.rows = rows;
    p.cols = cols;
    p.block = {16, 8};
    p.blocks = index.view().blocks;
    p.bias = with_bias;
    p.activation = activation;
    return p;
  }
  std::shared_ptr<const Plan> plan(const Problem& p, const std::string& kernel) {
    return make_plan(p, index.view(), executor, kernel);
  }
};

struct Scratch {
  explicit Scratch(std::size_t bytes)
      : memory(static_cast<std::byte*>(std::aligned_alloc(64, (bytes + 127) / 64 * 64)), std::free),
        size(bytes) {}
  std::span<std::byte> span() { return {memory.get(), size}; }
  std::unique_ptr<std::byte, decltype(&std::free)> memory;
  std::size_t size;
};

template <class Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace sparseloom
