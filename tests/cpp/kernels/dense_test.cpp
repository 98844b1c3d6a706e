// The dense candidate's row for 8 bits: what it refuses, and that its prediction counts every pass. Its
// launch is on a GPU's side.
#include <gtest/gtest.h>

#include <string>

#include "kernels/bsr_linear/rows.h"

namespace sparseloom::kernels {
namespace {

const ScaledKernel& dense() {
  static const ScaledKernel kernel = scaled_dense_kernel();
  return kernel;
}

ScaledProblem problem() {
  ScaledProblem p;
  p.dtype = DType::f8e4m3, p.out = DType::bf16, p.device = 0, p.can_gemm = true;
  p.m = 4096, p.rows = 2048, p.cols = 1024, p.block = {32, 32}, p.blocks = 1024;
  return p;
}

plan::Machine machine(int sm) {
  plan::Machine made;
  made.cuda = {sm, 132, 50 << 20, 227 << 10, 1.98e9, 4.8e12};
  return made;
}

void expect_refused(const ScaledProblem& p, const std::string& part, int sm = 90) {
  const std::string why = bsr_linear::ask(dense(), p, machine(sm)).refusal;
  EXPECT_NE(why.find(part), std::string::npos) << "'" << why << "' has no '" << part << "'";
}

TEST(DenseOf8Bits, IsRefusedWhereNobodyMultipliesThem) {
  ScaledProblem p = problem();
  EXPECT_EQ(bsr_linear::ask(dense(), p, machine(90)).refusal, "");
  EXPECT_EQ(bsr_linear::ask(dense(), p, machine(89)).refusal, "");
  expect_refused(p, "8.9 or newer for float8_e4m3fn, the device has 8.6", 86);
  p.strict = true;
  expect_refused(p, "strict forbids going dense");
  p = problem(), p.can_gemm = false;
  expect_refused(p, "no GEMM with scales");
  p = problem(), p.rows = 2056;
  expect_refused(p, "multiples of 16 only, W is [2056, 1024]");
  p = problem(), p.cols = 1000;
  expect_refused(p, "multiples of 16 only, W is [2048, 1000]");
  p = problem(), p.m = 0;
  expect_refused(p, "nothing to multiply");
  p = problem(), p.device = -1;
  expect_refused(p, "CUDA devices only, the operands are on the CPU");
  p.dtype = DType::i8, p.device = 0;
  expect_refused(p, "the dtype is int8");
}

TEST(DenseOf8Bits, TakesOneByteForEachElementOfW) {
  EXPECT_EQ(bsr_linear::ask(dense(), problem(), machine(90)).workspace_bytes, 2048u * 1024);
}

TEST(DenseOf8Bits, EveryPassBehindTheProductIsInItsPrediction) {
  const auto predicted = [](const ScaledProblem& p) {
    return bsr_linear::ask(dense(), p, machine(90)).predicted_us;
  };
  ScaledProblem p = problem();
  const double plain = predicted(p), peak = 2.0 * 4096 * 2048 * 1024 / (2 * 8192 / 2.0 * 132 * 1.98e9) * 1e6;
  EXPECT_GT(plain, peak);
  p.bias = true;
  EXPECT_EQ(predicted(p), plain);  // cuBLAS adds it before it rounds
  p.activation = Activation::relu;
  const double pass = predicted(p) - plain;
  EXPECT_GT(pass, 2.0 * 2 * 4096 * 2048 / 4.8e12 * 1e6);
  p.out = DType::f32;
  const double f32 = predicted(p);
  EXPECT_GT(f32, plain + 4 * pass);  // factors of both operands, bias, activation, each of twice the bytes
  p.bias = false;
  EXPECT_LT(predicted(p), f32);
}

}  // namespace
}  // namespace sparseloom::kernels
