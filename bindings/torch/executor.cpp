#include "executor.h"

#include <dlfcn.h>

#include <array>

#include "convert.h"
#include "core/check.h"

namespace sparseloom::binding {
namespace {

void parallel_for(void*, std::int64_t count, RangeBody body) {
  torch::stable::parallel_for(0, count, 1, [body](std::int64_t begin, std::int64_t end) { body(begin, end); });
}

// libtorch_cuda is reached when it is in the process, never linked: one shared object serves CPU-only torch too. A weak symbol
// would be null also under CUDA torch, whose libraries are loaded RTLD_LOCAL.
void* torch_stream(int device) {
  using Current = std::int32_t (*)(std::int32_t, void**);
  static const Current current = [] {
    void* library = dlopen("libtorch_cuda.so", RTLD_NOLOAD | RTLD_LAZY);
    return library ? reinterpret_cast<Current>(dlsym(library, "aoti_torch_get_current_cuda_stream")) : nullptr;
  }();
  void* stream = nullptr;
  if (current == nullptr || current(device, &stream) != 0)
    core::fail("linear", "a PyTorch with CUDA for operands on cuda:" + std::to_string(device), "none, or no stream of that device",
               "install a CUDA build of torch");
  return stream;
}

Tensor borrow(const ConstMatrixView& m, int device, bool transposed = false) {
  std::array<std::int64_t, 2> sizes{m.rows, m.cols}, strides{m.stride, 1};
  if (transposed) std::swap(sizes[0], sizes[1]), std::swap(strides[0], strides[1]);
  return torch::stable::from_blob(const_cast<void*>(m.data), sizes, strides, torch_device(device), scalar_type_of(m.dtype));
}

// On CUDA torch's own stream is the one the executor names, so nothing more is said of it.
// aten::linear.out adds the bias before rounding, which aten::mm.out followed by an addition would not. aten::mm.dtype_out, CUDA's
// alone, leaves the sums of 16-bit operands unrounded.
void gemm(void*, const Gemm& product) {
  using torch::stable::detail::from;
  Tensor a = borrow(product.a, product.device, product.a_transposed), c = borrow(product.c, product.device);
  if (product.bias == nullptr) {
    Tensor b = borrow(product.b, product.device, product.b_transposed);
    if (product.c.dtype != product.a.dtype) {
      std::array<StableIValue, 4> stack{from(a), from(b), from(scalar_type_of(product.c.dtype)), from(c)};
      STABLE_TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::mm", "dtype_out", stack.data(), TORCH_ABI_VERSION));
      torch::stable::detail::to<Tensor>(stack[0]);  // takes ownership of the returned handle
      return;
    }
    std::array<StableIValue, 3> stack{from(a), from(b), from(c)};
    STABLE_TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::mm", "out", stack.data(), TORCH_ABI_VERSION));
    torch::stable::detail::to<Tensor>(stack[0]);  // takes ownership of the returned handle
    return;
  }
  Tensor weight = borrow(product.b, product.device, !product.b_transposed);
  const std::array<std::int64_t, 1> size{product.c.cols}, stride{1};
  std::optional<Tensor> bias = torch::stable::from_blob(const_cast<void*>(product.bias), size, stride, torch_device(product.device),
                                                        scalar_type_of(product.c.dtype));
  std::array<StableIValue, 4> stack{from(a), from(weight), from(bias), from(c)};
  STABLE_TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::linear", "out", stack.data(), TORCH_ABI_VERSION));
  torch::stable::detail::to<Tensor>(stack[0]);
}

}  // namespace

Executor torch_executor(int device) {
  Executor executor;
  executor.gemm = gemm;
  if (device >= 0) {
    executor.device = device;
    executor.stream = torch_stream(device);
    return executor;
  }
  executor.num_threads = static_cast<int>(torch::stable::get_num_threads());
  executor.parallel_for = parallel_for;
  return executor;
}

}  // namespace sparseloom::binding
