// All operator schemas, on one page. Every tensor is an ordinary strided one; index tensors are int32; masks
// are bool [block rows, block cols]. `activation`: 0 none, 1 relu, 2 gelu_erf, 3 gelu_tanh, 4 silu.
// `version`: the pattern's content hash from validate_index, the key of its plans. `tf32`: whether float32 on
// CUDA may round its operands to TF32. `device` of plan: a CUDA ordinal, or -1 for the CPU. `kernel`: a row
// of info's "kernels", or -1 for the plan's own choice. Fake kernels and the route for gradients are in
// python/sparseloom: _fakes.py, _autograd.py.
#include <torch/csrc/stable/library.h>

STABLE_TORCH_LIBRARY(sparseloom, m) {
  // linear: act(x W^T + bias) + residual, which has the result's shape and dtype.
  m.def(
      "linear(Tensor x, Tensor values, Tensor crow, Tensor col, Tensor? bias, SymInt out_features, int "
      "activation, int version, "
      "bool strict, bool tf32, int kernel, Tensor? residual=None) -> Tensor");
  m.def(
      "linear_dx(Tensor dy, Tensor values, Tensor crow, Tensor col, Tensor ccol, Tensor row, Tensor slot, "
      "SymInt in_features, "
      "int version, bool strict, bool tf32, int kernel) -> Tensor");
  m.def(
      "linear_dw(Tensor dy, Tensor x, Tensor crow, Tensor col, int block_rows, int block_cols, int version, "
      "bool strict, bool "
      "tf32, int kernel) -> Tensor");
  // dvalues += dW: float32 whatever the operands are, which are not rounded on their way there.
  m.def(
      "linear_dw_add(Tensor(a!) dvalues, Tensor dy, Tensor x, Tensor crow, Tensor col, int version, bool "
      "strict, bool tf32, "
      "int kernel) -> ()");

  // A training step's two calls. linear_train: y = act(z) + residual, z = x W^T + bias, with an activation.
  // linear_backward: dx when values are given, dvalues when x is, dbias when it is needed; what is not asked
  // for comes empty, and dvalues too where there is a main_grad, which dW is then added to as by
  // linear_dw_add. `saved`: relu's y (or z), the others' z, or none without activation.
  m.def(
      "linear_train(Tensor x, Tensor values, Tensor crow, Tensor col, Tensor? bias, SymInt out_features, int "
      "activation, "
      "int version, bool strict, bool tf32, int kernel, Tensor? residual=None) -> (Tensor y, Tensor z)");
  m.def(
      "linear_backward(Tensor dy, Tensor? saved, Tensor? x, Tensor? values, Tensor crow, Tensor col, Tensor "
      "ccol, Tensor row, "
      "Tensor slot, SymInt in_features, int block_rows, int block_cols, int activation, int version, bool "
      "strict, bool tf32, "
      "bool need_bias, Tensor(a!)? main_grad=None) -> (Tensor dx, Tensor dvalues, Tensor dbias)");

  // x and values int8 or float8_e4m3fn, scales float32 with one element or one for each token and output,
  // bias of out_dtype.
  m.def(
      "scaled_linear(Tensor x, Tensor values, Tensor crow, Tensor col, Tensor x_scale, Tensor w_scale, "
      "Tensor? bias, SymInt "
      "out_features, ScalarType out_dtype, int activation, int version, bool strict, int kernel, bool "
      "use_fast_accum=False) -> "
      "Tensor");

  m.def("pack(Tensor dense, Tensor crow, Tensor col, int block_rows, int block_cols) -> Tensor");
  m.def("unpack(Tensor values, Tensor crow, Tensor col, SymInt rows, SymInt cols) -> Tensor");
  m.def("block_scores(Tensor dense, int block_rows, int block_cols, str norm) -> Tensor");
  m.def("validate_index(Tensor crow, Tensor col, int rows, int cols, int block_rows, int block_cols) -> int");
  m.def(
      "transpose_index(Tensor crow, Tensor col, int rows, int cols, int block_rows, int block_cols) -> "
      "(Tensor ccol, Tensor row, "
      "Tensor slot)");
  m.def(
      "mask_to_index(Tensor mask, int rows, int cols, int block_rows, int block_cols) -> (Tensor crow, "
      "Tensor col)");
  m.def(
      "index_to_mask(Tensor crow, Tensor col, int rows, int cols, int block_rows, int block_cols) -> Tensor");

  m.def(
      "set_topology(Tensor mask, Tensor(a!) crow, Tensor(b!) col, Tensor(c!) ccol, Tensor(d!) row, "
      "Tensor(e!) slot, Tensor(f!) "
      "moved, Tensor(g!) requested) -> ()");
  m.def("move_blocks(Tensor(a!) values, Tensor moved) -> ()");

  m.def(
      "pattern_random(int rows, int cols, int block_rows, int block_cols, float density, int seed) -> "
      "Tensor");
  m.def(
      "pattern_balanced(int rows, int cols, int block_rows, int block_cols, float density, int seed) -> "
      "Tensor");
  m.def(
      "pattern_biregular(int rows, int cols, int block_rows, int block_cols, float density, int seed) -> "
      "Tensor");
  m.def("pattern_banded(int rows, int cols, int block_rows, int block_cols, int bandwidth) -> Tensor");
  m.def("pattern_block_diagonal(int rows, int cols, int block_rows, int block_cols, int groups) -> Tensor");
  m.def(
      "pattern_top_k(Tensor scores, int rows, int cols, int block_rows, int block_cols, int count) -> "
      "Tensor");
  m.def(
      "pattern_top_k_by_row(Tensor scores, int rows, int cols, int block_rows, int block_cols, int count) -> "
      "Tensor");
  m.def("pattern_stats(Tensor mask, int rows, int cols, int block_rows, int block_cols) -> str");
  m.def(
      "pattern_ascii(Tensor mask, int rows, int cols, int block_rows, int block_cols, int max_side) -> str");
  m.def("pattern_svg(Tensor mask, int rows, int cols, int block_rows, int block_cols, int pixels) -> str");

  m.def(
      "plan(Tensor crow, Tensor col, int rows, int cols, int block_rows, int block_cols, str direction, str "
      "dtype, int m, "
      "bool bias, int activation, int version, bool strict, bool tf32, int device, int kernel, bool "
      "residual=False, "
      "bool accumulate=False, bool use_fast_accum=False) -> str");
  m.def("info() -> str");
  // Flops done on torch's threads in registers alone; `rate`: one of info's "rates".
  m.def("spin_registers(str rate, int rounds) -> int");
}
