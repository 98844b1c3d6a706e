// write_tile past the caches: the bytes that it writes through them, of every dtype, epilogue and number of tokens.
#if defined(__x86_64__)

#include "kernels/cpu/tile.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <vector>

#include "kernels/case.h"
#include "runtime/cpu.h"

namespace sparseloom::testing {
namespace {

constexpr std::int64_t kTokens = 48, kStride = 192;  // of the matrix: lines of every dtype begin in its rows

struct Buffer {
  std::unique_ptr<std::byte, decltype(&std::free)> memory{
      static_cast<std::byte*>(std::aligned_alloc(64, kTokens* kStride * sizeof(float))), &std::free};
  Buffer() { std::fill_n(memory.get(), kTokens * kStride * sizeof(float), kPoison); }
  std::vector<std::byte> bytes() const { return {memory.get(), memory.get() + kTokens * kStride * sizeof(float)}; }
};

TEST(WriteTile, PastTheCachesTheSameBytes) {
  if (runtime::active_isa() < runtime::Isa::avx2) GTEST_SKIP() << "the panel kernels begin with AVX2";
  std::vector<float> tile(32 * kTokens), scale(32);
  for (std::size_t i = 0; i < tile.size(); ++i) tile[i] = static_cast<float>(static_cast<int>(i * 37 % 301) - 150) * 0.031f;
  for (std::size_t i = 0; i < scale.size(); ++i) scale[i] = 0.5f + static_cast<float>(i);
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    const auto line = static_cast<std::int64_t>(64 / size_of(dtype));
    Matrix bias(dtype, 1, line, 0), residual(dtype, kTokens, kStride, 0);
    for (std::int64_t o = 0; o < line; ++o) bias.set(0, o, 0.25 * static_cast<double>(o));
    for (std::int64_t t = 0; t < kTokens; ++t)
      for (std::int64_t o = 0; o < line; ++o) residual.set(t, o, static_cast<double>(t) - static_cast<double>(o) * 0.5);
    for (const Activation activation : {Activation::none, Activation::relu, Activation::gelu_erf})
      for (const std::int64_t tokens : {1, 7, 8, 9, 43, 48})
        for (const std::int64_t outputs : {line, line - 8, line - 3})
          for (const std::int64_t shift : {std::int64_t{0}, line, std::int64_t{8}})  // where rows begin: at a line, or not
            for (const bool all : {false, true}) {
              kernels::cpu::TileOut out{tile.data(), kTokens, tokens, outputs, dtype, activation, all ? bias.data() : nullptr,
                                        nullptr,     kStride};
              if (all) out.scale = scale.data(), out.residual = residual.data(), out.residual_stride = kStride;
              const Buffer through, past;
              out.out = through.memory.get() + shift * static_cast<std::int64_t>(size_of(dtype));
              kernels::cpu::write_tile(out);
              out.out = past.memory.get() + shift * static_cast<std::int64_t>(size_of(dtype));
              out.streams = true;
              kernels::cpu::write_tile(out);
              kernels::cpu::end_streams();
              ASSERT_EQ(past.bytes(), through.bytes()) << name_of(dtype) << " " << tokens << " x " << outputs << " from " << shift;
              ASSERT_EQ(through.bytes()[static_cast<std::size_t>((shift + outputs) * static_cast<std::int64_t>(size_of(dtype)))],
                        kPoison);
            }
  }
}

}  // namespace
}  // namespace sparseloom::testing

#endif
