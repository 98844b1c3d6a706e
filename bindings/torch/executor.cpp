#include "executor.h"

#include <array>

#include "convert.h"

namespace sparseloom::binding {
namespace {

void parallel_for(void*, std::int64_t count, RangeBody body) {
  torch::stable::parallel_for(0, count, 1, [body](std::int64_t begin, std::int64_t end) { body(begin, end); });
}

Tensor borrow(const ConstMatrixView& m, bool transposed = false) {
  std::array<std::int64_t, 2> sizes{m.rows, m.cols}, strides{m.stride, 1};
  if (transposed) std::swap(sizes[0], sizes[1]), std::swap(strides[0], strides[1]);
  return torch::stable::from_blob(const_cast<void*>(m.data), sizes, strides,
                                  torch::stable::Device(torch::headeronly::DeviceType::CPU), scalar_type_of(m.dtype));
}

// aten::linear.out adds the bias before rounding, which aten::mm.out followed by an addition would not.
void gemm(void*, const Gemm& product) {
  using torch::stable::detail::from;
  Tensor a = borrow(product.a, product.a_transposed), c = borrow(product.c);
  if (product.bias == nullptr) {
    Tensor b = borrow(product.b, product.b_transposed);
    std::array<StableIValue, 3> stack{from(a), from(b), from(c)};
    STABLE_TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::mm", "out", stack.data(), TORCH_ABI_VERSION));
    torch::stable::detail::to<Tensor>(stack[0]);  // takes ownership of the returned handle
    return;
  }
  Tensor weight = borrow(product.b, !product.b_transposed);
  const std::array<std::int64_t, 1> size{product.c.cols}, stride{1};
  std::optional<Tensor> bias =
      torch::stable::from_blob(const_cast<void*>(product.bias), size, stride,
                               torch::stable::Device(torch::headeronly::DeviceType::CPU), scalar_type_of(product.c.dtype));
  std::array<StableIValue, 4> stack{from(a), from(weight), from(bias), from(c)};
  STABLE_TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::linear", "out", stack.data(), TORCH_ABI_VERSION));
  torch::stable::detail::to<Tensor>(stack[0]);
}

}  // namespace

Executor torch_executor() {
  Executor executor;
  executor.num_threads = static_cast<int>(torch::stable::get_num_threads());
  executor.parallel_for = parallel_for;
  executor.gemm = gemm;
  return executor;
}

}  // namespace sparseloom::binding
