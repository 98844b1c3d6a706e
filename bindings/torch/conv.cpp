// The operators of block-sparse convolutions. Space and channels are in the kernels' order: [images, *space,
// channels]; python/sparseloom/ops/conv/product.py permutes torch's order into it without a copy.
#include <optional>
#include <string>
#include <vector>

#include "convert.h"
#include "core/check.h"
#include "executor.h"
#include "operands.h"
#include "ops/row_number.h"
#include "plan.h"
#include "product_call.h"
#include "registration.h"
#include "sparseloom/conv_ops.h"

namespace sparseloom::binding {
namespace {

/// `extents`: those of x along the axes of space.
ConvShape shape_of_call(const char* op, std::int64_t images, const Numbers& extents, const Numbers& kernel,
                        const Numbers& stride, const Numbers& padding, const Numbers& dilation) {
  std::vector<ConvWindow> axes;
  for (const Numbers* list : {&kernel, &stride, &padding, &dilation})
    if (list->size() != extents.size())
      core::fail(op, "kernel, stride, padding and dilation of " + std::to_string(extents.size()) + " numbers",
                 std::to_string(list->size()), "pass one number for each axis of space");
  for (std::size_t i = 0; i < extents.size(); ++i)
    axes.push_back({extents[i], kernel[i], stride[i], padding[i], dilation[i]});
  return conv_shape(op, images, axes);
}

/// The sizes of `like` between images and channels.
Numbers space_of(const char* op, const char* name, const Tensor& like) {
  if (like.dim() < 3 || like.dim() > 5)
    core::fail(op, std::string(name) + " [images, *space, channels] with one to three axes of space",
               shape_of(like), "add an axis of images, or of space");
  const Numbers sizes = sizes_of(like);
  return {sizes.begin() + 1, sizes.end() - 1};
}

/// [images, *space, channels] with other extents and channels.
Numbers sizes_with(const ConvShape& shape, std::size_t axes, bool of_x, std::int64_t channels) {
  Numbers sizes{shape.images};
  for (std::size_t i = 3 - axes; i < 3; ++i) sizes.push_back(of_x ? shape.axis[i].in : shape.axis[i].out);
  sizes.push_back(channels);
  return sizes;
}

void require_output(const char* op, const Tensor& dy, const Numbers& expected) {
  if (sizes_of(dy) == expected) return;
  std::string text;
  for (const std::int64_t size : expected) text += (text.empty() ? "[" : ", ") + std::to_string(size);
  core::fail(op, "dy " + text + "]", shape_of(dy), "pass the gradient of this convolution's output");
}

/// Values [blocks, taps, bm, bn], contiguous, and their block.
Tensor values_for(const char* op, const Tensor& values, const ConvShape& shape, DType dtype, int device,
                  const char* first) {
  require_device(op, "values", values, device, first);
  require_same_dtype(op, dtype, "values", values);
  if (values.dim() != 4 || values.size(1) != shape.taps())
    core::fail(op, "values [blocks, " + std::to_string(shape.taps()) + ", bm, bn]", shape_of(values),
               "pass the blocks of every tap of the kernel");
  return as_contiguous(values);
}

Tensor forward(const Tensor& x, const Tensor& given_values, const Tensor& packed, std::int64_t rows,
               Numbers kernel, Numbers stride, Numbers padding, Numbers dilation, std::optional<Tensor> bias,
               std::int64_t activation, std::optional<Tensor> residual, std::int64_t row, bool strict,
               bool tf32, std::int64_t digest) {
  constexpr const char* op = "conv";
  const int device = device_of(op, "x", x);
  const Numbers space = space_of(op, "x", x);
  const ConvShape shape = shape_of_call(op, x.size(0), space, kernel, stride, padding, dilation);
  const Matrix input = matrix_of(op, "x", x);
  const DType dtype = input.view.dtype;
  const Tensor values = values_for(op, given_values, shape, dtype, device, "x");
  const BlockShape block = block_of(op, rows, input.view.cols, values.size(2), values.size(3));
  const IndexView index =
      index_of(op, packed, values.size(0), rows, input.view.cols, block, device, "x", {.digest = digest});
  const Numbers sizes = sizes_with(shape, space.size(), false, rows);
  const Epilogue epilogue(op, bias, activation, residual, x, sizes, dtype, device);
  Executor executor = torch_executor(device);
  bsr_conv::Problem problem = describe_conv(index, shape, dtype, Direction::forward);
  problem.strict = strict, problem.tf32 = tf32;
  problem.facts = Facts::of_digest(digest);
  epilogue.describe(problem);
  problem.aligned =
      is_aligned(input.view) && is_aligned(values.const_data_ptr()) && is_aligned(epilogue.residual.view);
  const auto plan = plan_conv(problem, index, executor, ops::row_name(op, row));
  std::optional<Tensor> y = new_like(op, x, sizes);
  executor.context = &y;  // for torch_conv
  const Scratch workspace(op, plan->workspace_bytes, device);
  conv(*plan, input.view, index, values.const_data_ptr(), epilogue.addends(),
       writable(*y, dtype, problem.m, rows), workspace.span(), executor);
  return *y;
}

Tensor dx(const Tensor& dy, const Tensor& given_values, const Tensor& packed, std::int64_t cols,
          std::int64_t depth, std::int64_t height, std::int64_t width, Numbers kernel, Numbers stride,
          Numbers padding, Numbers dilation, std::optional<Tensor> bias, std::int64_t activation,
          std::optional<Tensor> residual, std::int64_t row, bool strict, bool tf32, std::int64_t digest) {
  constexpr const char* op = "conv_dx";
  const int device = device_of(op, "dy", dy);
  const std::size_t axes = space_of(op, "dy", dy).size();
  const Numbers whole{depth, height, width};
  const Numbers space(whole.end() - static_cast<std::ptrdiff_t>(axes), whole.end());
  const ConvShape shape = shape_of_call(op, dy.size(0), space, kernel, stride, padding, dilation);
  const Matrix grad = matrix_of(op, "dy", dy);
  const DType dtype = grad.view.dtype;
  require_output(op, dy, sizes_with(shape, axes, false, grad.view.cols));
  const Tensor values = values_for(op, given_values, shape, dtype, device, "dy");
  const BlockShape block = block_of(op, grad.view.cols, cols, values.size(2), values.size(3));
  const IndexView index = index_of(op, packed, values.size(0), grad.view.cols, cols, block, device, "dy",
                                   {.columns = true, .digest = digest});
  const Numbers sizes = sizes_with(shape, axes, true, cols);
  const Epilogue epilogue(op, bias, activation, residual, dy, sizes, dtype, device);
  Executor executor = torch_executor(device);
  bsr_conv::Problem problem = describe_conv(index, shape, dtype, Direction::dx);
  epilogue.describe(problem);
  problem.strict = strict, problem.tf32 = tf32;
  problem.facts = Facts::of_digest(digest);
  problem.aligned =
      is_aligned(grad.view) && is_aligned(values.const_data_ptr()) && is_aligned(epilogue.residual.view);
  const auto plan = plan_conv(problem, index, executor, ops::row_name(op, row));
  std::optional<Tensor> out = new_like(op, dy, sizes);
  executor.context = &out;  // for torch_conv
  const Scratch workspace(op, plan->workspace_bytes, device);
  conv_dx(*plan, grad.view, index, column_index(index), values.const_data_ptr(), epilogue.addends(),
          writable(*out, dtype, problem.m, cols), workspace.span(), executor);
  return *out;
}

Tensor dw(const Tensor& dy, const Tensor& x, const Tensor& packed, std::int64_t blocks,
          std::int64_t block_rows, std::int64_t block_cols, Numbers kernel, Numbers stride, Numbers padding,
          Numbers dilation, std::int64_t row, bool strict, bool tf32, std::int64_t digest) {
  constexpr const char* op = "conv_dw";
  const int device = device_of(op, "x", x);
  require_device(op, "dy", dy, device, "x");
  const Numbers space = space_of(op, "x", x);
  const ConvShape shape = shape_of_call(op, x.size(0), space, kernel, stride, padding, dilation);
  const Matrix grad = matrix_of(op, "dy", dy), input = matrix_of(op, "x", x);
  const DType dtype = input.view.dtype;
  require_same_dtype(op, dtype, "dy", dy);
  require_output(op, dy, sizes_with(shape, space.size(), false, grad.view.cols));
  const BlockShape block = block_of(op, grad.view.cols, input.view.cols, block_rows, block_cols);
  const IndexView index =
      index_of(op, packed, blocks, grad.view.cols, input.view.cols, block, device, "x", {.digest = digest});
  Executor executor = torch_executor(device);
  bsr_conv::Problem problem = describe_conv(index, shape, dtype, Direction::dw);
  problem.strict = strict, problem.tf32 = tf32;
  problem.facts = Facts::of_digest(digest);
  problem.aligned = is_aligned(grad.view) && is_aligned(input.view);
  const auto plan = plan_conv(problem, index, executor, ops::row_name(op, row));
  const Tensor out = new_like(op, x, {blocks, shape.taps(), block_rows, block_cols});
  std::optional<Tensor> dense;
  executor.context = &dense;  // for torch_conv
  const Scratch workspace(op, plan->workspace_bytes, device);
  conv_dw(*plan, grad.view, input.view, index, out.mutable_data_ptr(), workspace.span(), executor);
  return out;
}

/// values [blocks, taps, bm, bn] of W [rows, taps, cols].
Tensor pack(const Tensor& given_weight, const Tensor& packed, std::int64_t blocks, std::int64_t bm,
            std::int64_t bn) {
  constexpr const char* op = "conv_pack";
  const DType dtype = dtype_of(op, "weight", given_weight);
  const int device = device_of(op, "weight", given_weight);
  if (given_weight.dim() != 3)
    core::fail(op, "a weight [rows, taps, cols]", shape_of(given_weight), "pass it with the channels last");
  const Tensor weight = as_contiguous(given_weight);
  const std::int64_t rows = weight.size(0), taps = weight.size(1), cols = weight.size(2);
  const BlockShape block = block_of(op, rows, cols, bm, bn);
  const IndexView index = index_of(op, packed, blocks, rows, cols, block, device, "weight");
  const Tensor out = new_like(op, weight, {blocks, taps, bm, bn});
  conv_pack({weight.const_data_ptr(), dtype, rows, taps * cols, taps * cols}, index, taps,
            out.mutable_data_ptr(), torch_executor(device));
  return out;
}

/// The inverse of pack.
Tensor unpack(const Tensor& given_values, const Tensor& packed, std::int64_t rows, std::int64_t cols) {
  constexpr const char* op = "conv_unpack";
  const DType dtype = dtype_of(op, "values", given_values);
  const int device = device_of(op, "values", given_values);
  if (given_values.dim() != 4)
    core::fail(op, "values [blocks, taps, bm, bn]", shape_of(given_values), "pass the blocks of every tap");
  const Tensor values = as_contiguous(given_values);
  const std::int64_t taps = values.size(1);
  const BlockShape block = block_of(op, rows, cols, values.size(2), values.size(3));
  const IndexView index = index_of(op, packed, values.size(0), rows, cols, block, device, "values");
  const Tensor out = new_like(op, values, {rows, taps, cols});
  conv_unpack(index, taps, values.const_data_ptr(),
              {out.mutable_data_ptr(), dtype, rows, taps * cols, taps * cols}, torch_executor(device));
  return out;
}

std::string plan(const PlanCall& call) {
  constexpr const char* op = "plan";
  constexpr std::size_t kOfTheIndex = 5, kListsOfAxes = 5;
  const std::size_t axes =
      call.sizes.size() > kOfTheIndex ? (call.sizes.size() - kOfTheIndex) / kListsOfAxes : 1;
  call.require_sizes(kOfTheIndex + kListsOfAxes * axes,
                     "rows, cols, block_rows, block_cols, blocks, and for each axis of space its extents, "
                     "then kernel, stride, padding and dilation");
  const auto of_axes = [&](std::size_t list) {
    const auto begin = call.sizes.begin() + static_cast<std::ptrdiff_t>(kOfTheIndex + list * axes);
    return Numbers(begin, begin + static_cast<std::ptrdiff_t>(axes));
  };
  const ConvShape shape =
      shape_of_call(op, call.m, of_axes(0), of_axes(1), of_axes(2), of_axes(3), of_axes(4));
  const std::int64_t rows = call.sizes[0], cols = call.sizes[1], blocks = call.sizes[4];
  const IndexView index{rows,   cols,    block_of(op, rows, cols, call.sizes[2], call.sizes[3]),
                        blocks, nullptr, nullptr};
  if (blocks > index.block_rows() * index.block_cols())
    core::fail(op, "at most as many blocks as the grid has cells", std::to_string(blocks),
               "pass the number of stored blocks");
  bsr_conv::Problem problem = describe_conv(index, shape, call.dtype, call.direction);
  problem.tf32 = call.tf32;
  problem.facts = Facts::of_digest(call.digest);
  call.describe(problem);
  const Executor executor = call.executor();
  const auto chosen = plan_conv(problem, executor, call.row);
  const double copy_us =
      call.strict || call.direction == Direction::dw ? 0 : dense_conv_time(problem, executor).product_us;
  return json_of(*chosen, copy_us > 0 ? std::optional(copy_us) : std::nullopt, chosen->describe());
}

const FamilyPlan kPlan("bsr_conv", plan, plan);

}  // namespace
}  // namespace sparseloom::binding

SPARSELOOM_TORCH_LIBRARY_IMPL(CompositeExplicitAutograd, m) {
  m.impl("conv_pack", TORCH_BOX(&sparseloom::binding::pack));
  m.impl("conv_unpack", TORCH_BOX(&sparseloom::binding::unpack));
}
SPARSELOOM_TORCH_LIBRARY_IMPL(CPU, m) {
  using namespace sparseloom::binding;
  m.impl("bsr_conv", TORCH_BOX(&forward));
  m.impl("bsr_conv_dx", TORCH_BOX(&dx));
  m.impl("bsr_conv_dw", TORCH_BOX(&dw));
}
SPARSELOOM_TORCH_LIBRARY_IMPL(CUDA, m) {
  using namespace sparseloom::binding;
  m.impl("bsr_conv", TORCH_BOX(&forward));
  m.impl("bsr_conv_dx", TORCH_BOX(&dx));
  m.impl("bsr_conv_dw", TORCH_BOX(&dw));
}
