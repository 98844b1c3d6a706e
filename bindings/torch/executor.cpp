// torch_executor: torch's threads or stream, and torch's dense products as the callbacks.
#include "executor.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>
#include <mutex>
#include <optional>
#include <set>

#include "convert.h"
#include "core/check.h"
#include "lent_conv.h"
#include "sparseloom/deterministic.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace sparseloom::binding {
namespace {

// How late torch's threads came to the regions of the calling thread. Beside busy processes that is a quantum
// of the scheduler, milliseconds, for which every small call would wait.
class Lateness {
 public:
  using Clock = std::chrono::steady_clock;

  // The expected lateness. It is forgotten after kKept times as long and kKeptCalls calls, so that the next
  // call is divided and measures again: that takes at most 1 / kKept of the time if calls follow each other,
  // and one of kKeptCalls if they are rare. A single late thread on a quiet machine disturbs only those
  // calls.
  double us() {
    if (us_ > 0 && --left_ <= 0 && Clock::now() >= until_) us_ = 0;
    return us_;
  }

  // Whether threads came late; does not count as a call.
  bool late() const { return us_ > 0; }

  // The last thread of a region that began at `start` arrived at `last`.
  void saw(Clock::time_point start, Clock::time_point last) {
    us_ = std::chrono::duration<double, std::micro>(last - start).count();
    if (us_ < kPunctualUs)
      us_ = 0;
    else
      until_ = Clock::now() + kKept * (last - start), left_ = kKeptCalls;
  }

 private:
  static constexpr int kKept = 16, kKeptCalls = 8;
  // A sleeping thread of an idle core arrives within 50 us, on a virtual machine within 450 (two cores of a
  // Zen 4): with a bound of 200, calls ran alone for 5 ms although the thread was awake by then.
  static constexpr double kPunctualUs = 1000;
  double us_ = 0;
  int left_ = 0;
  Clock::time_point until_{};
};

// torch's OpenMP has a pool per thread that opens regions.
thread_local Lateness lateness;

// What a second thread of that pool must save: waking one takes some 50 us on a virtual machine.
constexpr double kWakeUs = 50;

// A region of torch's ends when every thread has come, if only to find that nothing is left; so while they
// come late the call runs on the library's own pool, which waits for no thread without work. That pool's
// threads sleep between calls; torch's may still spin there, so it has the regions where threads are
// punctual.
void parallel_for(void*, std::int64_t count, RangeBody body) {
  using Clock = Lateness::Clock;
  if (lateness.late()) {
    const Executor own = Executor::pool(num_threads());
    return own.parallel_for(own.context, count, body);
  }
  // One range a thread of the call: torch would divide `count` among all of its own.
  const std::int64_t ranges = std::min<std::int64_t>(count, num_threads());
  const auto cut = [count, ranges](std::int64_t range) {
    return count / ranges * range + count % ranges * range / ranges;
  };
  std::atomic<Clock::rep> last{0};
  const Clock::time_point start = Clock::now();
  torch::stable::parallel_for(0, ranges, 1, [=, &last](std::int64_t begin, std::int64_t end) {
    const Clock::rep now = Clock::now().time_since_epoch().count();
    Clock::rep before = last.load(std::memory_order_relaxed);
    while (before < now && !last.compare_exchange_weak(before, now, std::memory_order_relaxed)) {
    }
    body(cut(begin), cut(end));
  });
  lateness.saw(start, Clock::time_point(Clock::duration(last.load(std::memory_order_relaxed))));
}

// torch's current stream on `device`. libtorch_cuda is looked up in the process if it is loaded, and never
// linked, so one shared object serves CPU-only torch too. A weak symbol would be null also under CUDA torch,
// whose libraries are loaded RTLD_LOCAL.
void* torch_stream(int device) {
  using Current = std::int32_t (*)(std::int32_t, void**);
  static const Current current = [] {
    void* library = dlopen("libtorch_cuda.so", RTLD_NOLOAD | RTLD_LAZY);
    return library ? reinterpret_cast<Current>(dlsym(library, "aoti_torch_get_current_cuda_stream"))
                   : nullptr;
  }();
  void* stream = nullptr;
  if (current == nullptr || current(device, &stream) != 0)
    core::fail("linear", "a PyTorch with CUDA for operands on cuda:" + std::to_string(device),
               "none, or no stream of that device", "install a CUDA build of torch");
  return stream;
}

// The view (transposed if requested) as a torch tensor that does not own its memory.
Tensor borrow(const ConstMatrixView& m, int device, bool transposed = false) {
  std::array<std::int64_t, 2> sizes{m.rows, m.cols}, strides{m.stride, 1};
  if (transposed) std::swap(sizes[0], sizes[1]), std::swap(strides[0], strides[1]);
  return torch::stable::from_blob(const_cast<void*>(m.data), sizes, strides, torch_device(device),
                                  scalar_type_of(m.dtype));
}

// Whether the CPU has tiles, whatever SPARSELOOM_ISA says: oneDNN does not read it.
bool has_amx() {
  static const bool has = [] {
#if defined(__x86_64__)
    constexpr unsigned kAmxTile = 1u << 24;
    unsigned eax, ebx, ecx, edx;
    return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && (edx & kAmxTile) != 0;
#else
    return false;
#endif
  }();
  return has;
}

// bf16 rows of A on the CPU, copied if necessary so that zeros follow each up to the next multiple of 32
// columns: oneDNN on AMX (torch 2.13) multiplies the memory there by zero, and a NaN after a row (in the
// padding of a wider matrix, or in the next token) makes that row NaN. On a Zen 5 without AMX no NaN spread,
// and the copy took as long as the product, since its pages were new.
Tensor with_zeros_behind(const ConstMatrixView& m) {
  constexpr std::int64_t kTileColumns = 32;  // bf16 in one row of a tile
  Tensor borrowed = borrow(m, -1);
  if (m.dtype != DType::bf16 || m.cols % kTileColumns == 0 || !has_amx()) return borrowed;
  const std::int64_t stride = (m.cols / kTileColumns + 1) * kTileColumns;
  Tensor wide = new_tensor("linear", {m.rows, stride}, borrowed.scalar_type(), -1);
  Tensor padding = torch::stable::narrow(wide, 1, m.cols, stride - m.cols);
  torch::stable::zero_(padding);
  Tensor copy = torch::stable::narrow(wide, 1, 0, m.cols);
  return torch::stable::copy_(copy, borrowed);
}

// Executor::gemm. On CUDA, torch's current stream is the executor's stream, so it need not be passed.
// aten::linear.out adds the bias before rounding; aten::mm.out followed by an addition would not.
// aten::mm.dtype_out, which exists on CUDA only, returns unrounded sums of 16-bit operands.
void gemm(void*, const Gemm& product) {
  using torch::stable::detail::from;
  Tensor a = product.device >= 0 || product.a_transposed
                 ? borrow(product.a, product.device, product.a_transposed)
                 : with_zeros_behind(product.a);
  Tensor c = borrow(product.c, product.device);
  if (product.bias == nullptr) {
    Tensor b = borrow(product.b, product.device, product.b_transposed);
    if (product.c.dtype != product.a.dtype) {
      std::array<StableIValue, 4> stack{from(a), from(b), from(scalar_type_of(product.c.dtype)), from(c)};
      TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::mm", "dtype_out", stack.data(), TORCH_ABI_VERSION));
      torch::stable::detail::to<Tensor>(stack[0]);  // takes ownership of the returned handle
      return;
    }
    std::array<StableIValue, 3> stack{from(a), from(b), from(c)};
    TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::mm", "out", stack.data(), TORCH_ABI_VERSION));
    torch::stable::detail::to<Tensor>(stack[0]);  // takes ownership of the returned handle
    return;
  }
  Tensor weight = borrow(product.b, product.device, !product.b_transposed);
  const std::array<std::int64_t, 1> size{product.c.cols}, stride{1};
  std::optional<Tensor> bias =
      torch::stable::from_blob(const_cast<void*>(product.bias), size, stride, torch_device(product.device),
                               scalar_type_of(product.c.dtype));
  std::array<StableIValue, 4> stack{from(a), from(weight), from(bias), from(c)};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::linear", "out", stack.data(), TORCH_ABI_VERSION));
  torch::stable::detail::to<Tensor>(stack[0]);
}

bool at_16_bytes(const void* data) { return reinterpret_cast<std::uintptr_t>(data) % 16 == 0; }

// The matrix, copied if necessary, with rows that begin at multiples of 16 bytes, as cuBLAS's 8-bit products
// require.
Tensor in_aligned_rows(ConstMatrixView m, int device) {
  if (m.rows == 1) m.stride = m.cols;  // the stride of a single row is arbitrary
  Tensor borrowed = borrow(m, device);
  return at_16_bytes(m.data) && m.stride % 16 == 0 ? borrowed : torch::stable::clone(borrowed);
}

// Factors as a tensor [rows, cols], one side of which is 1: one factor per entry, or the same for all (stride
// 0).
Tensor factors(const float* data, std::int64_t rows, std::int64_t cols, bool per_entry, int device) {
  const std::array<std::int64_t, 2> sizes{rows, cols}, strides{per_entry ? cols : 0, per_entry ? 1 : 0};
  Tensor borrowed = torch::stable::from_blob(const_cast<float*>(data), sizes, strides, torch_device(device),
                                             scalar_type_of(DType::f32));
  return rows * cols == 1 || (per_entry && at_16_bytes(data)) ? borrowed : torch::stable::clone(borrowed);
}

// c *= by, in place.
void multiply(const Tensor& c, const Tensor& by) {
  using torch::stable::detail::from;
  std::array<StableIValue, 2> stack{from(c), from(by)};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::mul_", "Tensor", stack.data(), TORCH_ABI_VERSION));
  torch::stable::detail::to<Tensor>(stack[0]);
}

// aten::_scaled_mm into c. Returns whether torch accepted the product.
bool scaled_mm(const Tensor& a, const Tensor& w, const Tensor& a_scale, const Tensor& w_scale,
               const std::optional<Tensor>& bias, const Tensor& c, bool fast_accum) {
  using torch::stable::detail::from;
  const std::optional<Tensor> no_result_scale;
  std::array<StableIValue, 9> stack{from(a),
                                    from(w),
                                    from(a_scale),
                                    from(w_scale),
                                    from(bias),
                                    from(no_result_scale),
                                    from(std::optional(c.scalar_type())),
                                    from(fast_accum),
                                    from(c)};
  if (torch_call_dispatcher("aten::_scaled_mm", "out", stack.data(), TORCH_ABI_VERSION) != 0) return false;
  torch::stable::detail::to<Tensor>(stack[0]);
  return true;
}

// Products that torch refused with a factor per row. torch may print every refusal, so none is tried twice.
class RefusedByRows {
 public:
  using Key = std::array<std::int64_t, 4>;  // device, m, n, k
  bool holds(const Key& key) {
    const std::lock_guard lock(mutex_);
    return keys_.contains(key);
  }
  void add(const Key& key) {
    const std::lock_guard lock(mutex_);
    keys_.insert(key);
  }

 private:
  std::mutex mutex_;
  std::set<Key> keys_;
};

// Executor::scaled_gemm. aten::_scaled_mm accepts one factor per operand everywhere. It accepts a factor per
// row of both operands
// - into bf16 if its CUTLASS or its cuBLAS has a kernel (cuBLAS has none on some GPUs, nor on Hopper for few
//   rows of many columns such as 127 x 9216);
// - into f32 only on Hopper with CUDA 12.9 and newer.
// Otherwise the sums are multiplied afterwards, in f32 (for bf16 in memory of torch's own) as in the sparse
// kernels, the tokens' factors first.
void scaled_gemm(void*, const ScaledGemm& product) {
  static RefusedByRows* const refused = new RefusedByRows;  // leaked: calls may outlive static destruction
  const int device = product.device;
  const std::int64_t m = product.c.rows, n = product.c.cols;
  const bool by_rows = product.a_scale_each || product.b_scale_each, into_f32 = product.c.dtype == DType::f32;
  const ScalarType f32 = scalar_type_of(DType::f32);
  Tensor a = in_aligned_rows(product.a, device), w = borrow(product.b, device, true),
         c = borrow(product.c, device);
  const std::array<std::int64_t, 1> size{n}, stride{1};
  std::optional<Tensor> bias;
  if (product.bias != nullptr)
    bias = torch::stable::from_blob(const_cast<void*>(product.bias), size, stride, torch_device(device),
                                    c.scalar_type());
  const auto scale = [&](const float* data, bool own) {
    return own ? torch::stable::fill_(new_tensor("scaled_linear", {1, 1}, f32, device), 1.0)
               : factors(data, 1, 1, true, device);
  };
  // Try a factor per row first.
  const RefusedByRows::Key key{device, m, n, product.a.cols};
  if (by_rows && !into_f32 && !refused->holds(key)) {
    if (scaled_mm(a, w, factors(product.a_scale, m, 1, product.a_scale_each, device),
                  factors(product.b_scale, 1, n, product.b_scale_each, device), bias, c, product.fast_accum))
      return;
    refused->add(key);
  }
  // Otherwise multiply with factors of 1 instead of factors per row, and apply those to the sums.
  const bool apart = by_rows && !into_f32;
  Tensor sums = apart ? new_tensor("scaled_linear", {m, n}, f32, device) : c;
  if (!scaled_mm(a, w, scale(product.a_scale, product.a_scale_each),
                 scale(product.b_scale, product.b_scale_each), by_rows ? std::nullopt : bias, sums,
                 product.fast_accum))
    core::fail("scaled_linear",
               "torch._scaled_mm to multiply [" + std::to_string(m) + ", " + std::to_string(product.a.cols) +
                   "] by [" + std::to_string(product.a.cols) + ", " + std::to_string(n) +
                   "] of float8_e4m3fn",
               "an error of torch's own",
               "pass strict=True (of a layer: layer.strict), which forbids the dense candidate");
  if (product.a_scale_each) multiply(sums, factors(product.a_scale, m, 1, true, device));
  if (product.b_scale_each) multiply(sums, factors(product.b_scale, 1, n, true, device));
  if (apart) torch::stable::copy_(c, bias ? torch::stable::subtract(sums, *bias, -1.0) : sums);
}

// torch.are_deterministic_algorithms_enabled(). The stable ABI does not have it, so torch's own function is
// looked up in the process, like in torch_stream. Its name is as old as the switch; without it, the switch
// counts as off.
bool torch_is_deterministic() {
  struct Context {
    void* (*global)() = nullptr;
    bool (*deterministic)(const void*) = nullptr;
  };
  static const Context context = [] {
    Context loaded;
    void* library = dlopen("libtorch_cpu.so", RTLD_NOLOAD | RTLD_LAZY);
    if (library == nullptr) return loaded;
    loaded.global = reinterpret_cast<void* (*)()>(dlsym(library, "_ZN2at13globalContextEv"));
    loaded.deterministic =
        reinterpret_cast<bool (*)(const void*)>(dlsym(library, "_ZNK2at7Context23deterministicAlgorithmsEv"));
    return loaded;
  }();
  return context.global != nullptr && context.deterministic != nullptr &&
         context.deterministic(context.global());
}

std::atomic<int> most_threads{std::numeric_limits<int>::max()};

}  // namespace

int num_threads() {
  return std::min(static_cast<int>(torch::stable::get_num_threads()),
                  most_threads.load(std::memory_order_relaxed));
}

void set_num_threads(int most) {
  if (most < 0)
    core::fail("set_num_threads", "one thread or more, or none (0) for torch's number", std::to_string(most),
               "pass a count, as to torch.set_num_threads");
  most_threads.store(most == 0 ? std::numeric_limits<int>::max() : most, std::memory_order_relaxed);
}

Executor torch_executor(int device) {
  Executor executor;
  set_deterministic(torch_is_deterministic());
  executor.gemm = gemm;
  executor.scaled_gemm = scaled_gemm;
  executor.conv = torch_conv;
  if (device >= 0) {
    executor.device = device;
    executor.stream = torch_stream(device);
    return executor;
  }
  executor.num_threads = num_threads();
  executor.late_us = lateness.us() > 0 ? kWakeUs : 0;
  executor.parallel_for = parallel_for;
  return executor;
}

}  // namespace sparseloom::binding
