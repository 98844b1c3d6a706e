#include "lent_conv.h"

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "convert.h"
#include "operands.h"

namespace sparseloom::binding {
namespace {

using torch::stable::detail::from;
using Numbers = std::vector<std::int64_t>;

/// The window of a convolution over its last two or three axes, as aten takes it. One axis of space is
/// computed as a plane: with one axis, torch copies channels-last operands (300 us on an H100, where the
/// product takes 64).
struct Axes {
  Numbers in, out, kernel, stride, padding, dilation, output_padding;

  explicit Axes(const ConvShape& shape) {
    const bool flat = shape.axis[0] == ConvAxis{};
    for (int i = flat ? 1 : 0; i < 3; ++i) {
      const ConvAxis& axis = shape.axis[i];
      in.push_back(axis.in), out.push_back(axis.out), kernel.push_back(axis.kernel);
      stride.push_back(axis.stride), padding.push_back(axis.padding), dilation.push_back(axis.dilation);
      const std::int64_t least = std::int64_t{axis.out - 1} * axis.stride - 2 * std::int64_t{axis.padding} +
                                 std::int64_t{axis.dilation} * (axis.kernel - 1) + 1;
      output_padding.push_back(axis.in - least);
    }
  }
  std::size_t count() const { return in.size(); }
};

/// Memory [outer, *space, channels] as a borrowed tensor [outer, channels, *space]; `stride`: the distance
/// between two pixels.
Tensor borrow(const void* data, DType dtype, std::int64_t outer, const Numbers& space, std::int64_t channels,
              std::int64_t stride, std::int64_t outer_stride, int device) {
  Numbers sizes{outer, channels}, strides(space.size() + 2, 1);
  sizes.insert(sizes.end(), space.begin(), space.end());
  std::int64_t step = stride;
  for (std::size_t i = space.size(); i-- > 0;) strides[i + 2] = step, step *= space[i];
  strides[0] = outer_stride, strides[1] = 1;
  return torch::stable::from_blob(const_cast<void*>(data), sizes, strides, torch_device(device),
                                  scalar_type_of(dtype));
}

Tensor images_of(const ConstMatrixView& pixels, std::int64_t images, const Numbers& space, int device) {
  return borrow(pixels.data, pixels.dtype, images, space, pixels.cols, pixels.stride,
                pixels.stride * (pixels.rows / std::max<std::int64_t>(images, 1)), device);
}

/// W [rows, taps * cols] as [rows, cols, *kernel]; on the CPU contiguous, since torch would choose slower
/// kernels for some dtypes by channels-last memory of W.
Tensor weight_of(const ConstMatrixView& w, const Numbers& kernel, std::int64_t cols, int device) {
  Tensor weight = borrow(w.data, w.dtype, w.rows, kernel, cols, cols, w.stride, device);
  return device < 0 && w.cols > cols ? torch::stable::contiguous(weight) : weight;
}

Tensor convolution(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias, const Axes& axes,
                   bool transposed) {
  const Numbers none(axes.count(), 0);
  std::array<StableIValue, 9> stack{from(x),
                                    from(weight),
                                    from(bias),
                                    from(axes.stride),
                                    from(axes.padding),
                                    from(axes.dilation),
                                    from(transposed),
                                    from(transposed ? axes.output_padding : none),
                                    from(std::int64_t{1})};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::convolution", "", stack.data(), TORCH_ABI_VERSION));
  return torch::stable::detail::to<Tensor>(stack[0]);
}

/// dX (wanted = 0) or dW (1) of y = convolution(x, weight); of the operand that is differentiated only the
/// sizes are read.
Tensor gradient(const Tensor& dy, const Tensor& x, const Tensor& weight, const Axes& axes,
                std::size_t wanted) {
  const Numbers none(axes.count(), 0);
  const std::array<bool, 3> mask{wanted == 0, wanted == 1, false};
  std::array<StableIValue, 11> stack{from(dy),
                                     from(x),
                                     from(weight),
                                     from(std::optional<Numbers>()),
                                     from(axes.stride),
                                     from(axes.padding),
                                     from(axes.dilation),
                                     from(false),
                                     from(none),
                                     from(std::int64_t{1}),
                                     from(torch::headeronly::HeaderOnlyArrayRef<bool>(mask))};
  TORCH_ERROR_CODE_CHECK(
      torch_call_dispatcher("aten::convolution_backward", "", stack.data(), TORCH_ABI_VERSION));
  std::array<Tensor, 3> gradients;  // takes ownership of all three handles
  for (std::size_t i = 0; i < gradients.size(); ++i)
    gradients[i] = torch::stable::detail::to<Tensor>(stack[i]);
  return gradients[wanted];
}

/// A tensor of these sizes for which no memory is read: one element of `like`, expanded.
Tensor sizes_alone(const Tensor& like, const Numbers& sizes, int device) {
  const Numbers strides(sizes.size(), 0);
  return torch::stable::from_blob(like.mutable_data_ptr(), sizes, strides, torch_device(device),
                                  like.scalar_type());
}

Tensor result_of(const DenseConv& conv, const Axes& axes) {
  const std::int64_t images = conv.shape.images, taps = conv.shape.taps();
  const int device = conv.device;
  std::optional<Tensor> bias;
  if (conv.bias != nullptr)
    bias = torch::stable::from_blob(const_cast<void*>(conv.bias), Numbers{conv.out.cols}, Numbers{1},
                                    torch_device(device), scalar_type_of(conv.out.dtype));
  if (conv.direction == Direction::forward) {
    const Tensor weight = weight_of(conv.b, axes.kernel, conv.b.cols / taps, device);
    return convolution(images_of(conv.a, images, axes.in, device), weight, bias, axes, false);
  }
  const Tensor dy = images_of(conv.a, images, axes.out, device);
  Numbers sizes{conv.a.cols, conv.direction == Direction::dx ? conv.b.cols / taps : conv.b.cols};
  if (conv.direction == Direction::dw) {
    sizes.insert(sizes.end(), axes.kernel.begin(), axes.kernel.end());
    return gradient(dy, images_of(conv.b, images, axes.in, device), sizes_alone(dy, sizes, device), axes, 1);
  }
  const Tensor weight = weight_of(conv.b, axes.kernel, sizes[1], device);
  // On CUDA a transposed convolution: for torch's gradient with an expanded x, torch copies dy to another
  // layout twice (195 us on an H200 for dX of 31 x 3200 tokens from 128 to 512 channels, where the product
  // takes 42). On a CPU with AVX2 only, the transposed convolution is less accurate in bf16, by six units in
  // the last place for sums of 2304 products; it runs where a bias makes this a layer's forward product.
  if (device >= 0 || bias) return convolution(dy, weight, bias, axes, true);
  Numbers x_sizes{images, sizes[1]};
  x_sizes.insert(x_sizes.end(), axes.in.begin(), axes.in.end());
  return gradient(dy, sizes_alone(dy, x_sizes, device), weight, axes, 0);
}

/// [outer, channels, *space] as contiguous memory [outer, *space, channels]: a view where torch's result is
/// channels-last.
Tensor channels_last(const Tensor& result) {
  Numbers order{0};
  for (std::int64_t axis = 2; axis < result.dim(); ++axis) order.push_back(axis);
  order.push_back(1);
  std::array<StableIValue, 2> stack{from(result), from(order)};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::permute", "", stack.data(), TORCH_ABI_VERSION));
  return torch::stable::contiguous(torch::stable::detail::to<Tensor>(stack[0]));
}

/// A tensor of the same memory that autograd does not take for a view. It would refuse to write in place into
/// a view that was made inside of a custom Function, which an activation behind the layer may do.
Tensor no_view(const Tensor& result) {
  std::array<StableIValue, 1> stack{from(result)};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::detach", "", stack.data(), TORCH_ABI_VERSION));
  return torch::stable::detail::to<Tensor>(stack[0]);
}

}  // namespace

void torch_conv(void* context, DenseConv& conv) {
  auto* const kept = static_cast<std::optional<Tensor>*>(context);
  std::optional<Numbers> sizes;
  if (kept != nullptr && kept->has_value()) {
    sizes = sizes_of(**kept);
    kept->reset();  // its memory may serve the result
  }
  const Axes axes(conv.shape);
  const ScalarType dtype = scalar_type_of(conv.out.dtype);
  Tensor result = channels_last(result_of(conv, axes));
  if (result.scalar_type() != dtype)  // a direct call under autocast
    result = torch::stable::to(result, dtype);
  if (kept == nullptr) {
    const Numbers shape{conv.out.rows, conv.out.cols};
    Tensor out = torch::stable::from_blob(conv.out.data, shape, Numbers{conv.out.stride, 1},
                                          torch_device(conv.device), dtype);
    torch::stable::copy_(out, torch::stable::reshape(result, shape));
    return;
  }
  conv.out.data = result.mutable_data_ptr(), conv.out.stride = conv.out.cols;
  *kept = no_view(sizes ? torch::stable::view(result, *sizes) : result);
}

}  // namespace sparseloom::binding
