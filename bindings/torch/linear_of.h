// The operators of a linear layer on a layout, for verbs like LinearOf's: forward, dX and the answer of the
// operator plan. The operator of a family makes the view `w` of its index, with valid content, and its
// values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "convert.h"
#include "core/check.h"
#include "operands.h"
#include "plan.h"
#include "product_call.h"
#include "sparseloom/direction.h"

namespace sparseloom::binding {

/// Throws Error unless the values are a vector with one for each stored element.
inline void require_stored(const char* op, const Tensor& values, std::int64_t stored) {
  if (values.dim() != 1 || values.size(0) != stored)
    core::fail(op, "values [" + std::to_string(stored) + "]", shape_of(values),
               "pass values and index of one weight");
}

/// The rows of crow [rows + 1]. Throws Error for an empty one.
inline std::int64_t rows_of(const char* op, const Tensor& crow) {
  if (crow.size(0) < 1) core::fail(op, "crow [rows + 1]", shape_of(crow), "pass the index of one weight");
  return crow.size(0) - 1;
}

/// Throws Error for a negative number of input features.
inline void require_cols(const char* op, std::int64_t cols) {
  if (cols < 0) core::fail(op, "cols of 0 and more", std::to_string(cols), "pass the weight's in features");
}

/// Throws Error unless x has the weight's input features.
inline void require_inputs(const char* op, const Tensor& x, const Matrix& input, std::int64_t cols) {
  if (input.view.cols != cols)
    core::fail(op, "x with " + std::to_string(cols) + " features", shape_of(x), "pass inputs of this layer");
}

/// Throws Error unless dy has the weight's output features.
inline void require_outputs(const char* op, const Tensor& dy, const Matrix& grad, std::int64_t rows) {
  if (grad.view.cols != rows)
    core::fail(op, "dy with " + std::to_string(rows) + " features", shape_of(dy),
               "pass the gradient of this layer's output");
}

/// act(x W^T + bias) + residual as [..., rows]. `input` is x as a matrix, and `values` are contiguous, of x's
/// dtype and on its device.
template <class V, class View>
Tensor linear_of(const char* op, const Tensor& x, const Matrix& input, const Tensor& values, const View& w,
                 const std::optional<Tensor>& bias, std::int64_t activation,
                 const std::optional<Tensor>& residual, int device, std::int64_t row, bool strict) {
  const std::vector<std::int64_t> sizes = with_features(x, w.rows);
  const Epilogue epilogue(op, bias, activation, residual, x, sizes, input.view.dtype, device);
  typename V::Problem problem = V::describe(w, Direction::forward, input.view.dtype, input.view.rows);
  epilogue.describe(problem), problem.strict = strict;
  const Tensor y = new_like(op, x, sizes);
  if (input.view.rows == 0 || w.rows == 0) return y;
  MatmulArgs args;
  args.a = input.view.data, args.a_stride = input.view.stride;
  args.values = values.const_data_ptr();
  epilogue.fill(args);
  args.out = y.mutable_data_ptr(), args.out_stride = w.rows;
  run<V>(op, problem, args, w, device, row);
  return y;
}

/// dY W as [..., cols]; `grad` is dy as a matrix, the values are as above. Throws Error for a dy of other
/// features.
template <class V, class View>
Tensor dx_of(const char* op, const Tensor& dy, const Matrix& grad, const Tensor& values, const View& w,
             int device, std::int64_t row, bool strict) {
  require_outputs(op, dy, grad, w.rows);
  typename V::Problem problem = V::describe(w, Direction::dx, grad.view.dtype, grad.view.rows);
  problem.strict = strict;
  const Tensor out = new_like(op, dy, with_features(dy, w.cols));
  if (grad.view.rows == 0 || w.cols == 0) return out;
  MatmulArgs args;
  args.a = grad.view.data, args.a_stride = grad.view.stride;
  args.values = values.const_data_ptr();
  args.out = out.mutable_data_ptr(), args.out_stride = w.cols;
  run<V>(op, problem, args, w, device, row);
  return out;
}

/// dY^T X at the stored elements, in the shape of the values; dy and x as matrices. Throws Error for features
/// that are not the weight's, and for another number of tokens.
template <class V, class View>
Tensor dw_of(const char* op, const Tensor& dy, const Matrix& grad, const Tensor& x, const Matrix& input,
             const std::vector<std::int64_t>& values, const View& w, std::int64_t row, bool strict) {
  require_same_dtype(op, input.view.dtype, "dy", dy);
  require_outputs(op, dy, grad, w.rows), require_inputs(op, x, input, w.cols);
  if (grad.view.rows != input.view.rows)
    core::fail(op, "dy and x of the same tokens", shape_of(dy) + " and " + shape_of(x),
               "pass the gradient and the input of one call");
  typename V::Problem problem = V::describe(w, Direction::dw, grad.view.dtype, grad.view.rows);
  problem.strict = strict;
  const Tensor out = new_like(op, dy, values);
  if (out.numel() == 0) return out;
  MatmulArgs args;
  args.a = grad.view.data, args.a_stride = grad.view.stride;
  args.b = input.view.data, args.b_stride = input.view.stride;
  args.out = out.mutable_data_ptr();
  run<V>(op, problem, args, w, -1, row);
  return out;
}

/// The answer of the operator plan for a weight of which `w` has the sizes alone.
template <class V, class View>
std::string plan_of(const PlanCall& call, const View& w) {
  typename V::Problem problem = V::describe(w, call.direction, call.dtype, call.m);
  call.describe(problem);
  const auto chosen = V::plan(problem, call.executor(), call.row);
  return json_of(*chosen, {}, chosen->describe());
}

}  // namespace sparseloom::binding
