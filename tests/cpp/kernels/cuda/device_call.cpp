#include "kernels/cuda/device_call.h"

#include <algorithm>
#include <cmath>

#include "kernels/bsr_linear/cuda/rows.h"
#include "kernels/bsr_linear/verb.h"
#include "kernels/shared/cost/gpu_rates.h"
#include "runtime/cuda.h"

namespace sparseloom::testing {
namespace {

constexpr DType kTypes[] = {DType::f32, DType::f16, DType::bf16};

plan::Machine machine_of(int device) {
  return {runtime::Isa::generic, {}, runtime::cuda_device(device), {}, kernels::cuda::gpu_clusters(device)};
}

// As if all operands were aligned: some tests launch what a plan refuses.
kernels::bsr_linear::Answer planned(const Instance& instance, const kernels::Kernel& kernel, int device) {
  Problem problem = instance.cuda_problem(device);
  problem.aligned = problem.out_aligned = true;
  return kernels::bsr_linear::ask(kernel, problem, machine_of(device));
}

}  // namespace

Stream::Stream(int device) : device_(device) {
  const runtime::CudaDeviceScope scope(device_);
  EXPECT_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
}

Stream::~Stream() {
  const runtime::CudaDeviceScope scope(device_);
  cudaStreamDestroy(stream_);
}

void Stream::wait() const { EXPECT_CUDA(cudaStreamSynchronize(stream_)); }

DeviceCall::DeviceCall(Instance& instance, const kernels::Kernel& kernel, Memory memory, int device)
    : instance_(instance),
      kernel_(kernel),
      planned_(planned(instance, kernel, device)),
      memory_(memory),
      device_(device),
      image_(instance, planned_.workspace_bytes) {
  const runtime::CudaDeviceScope scope(device_);
  const auto allocate = [this](std::size_t bytes) {
    allocations_.push_back(nullptr);
    EXPECT_CUDA(cudaMalloc(&allocations_.back(), bytes));
    return static_cast<std::byte*>(allocations_.back());
  };
  if (memory_ == Memory::guarded) {
    std::byte* const base = allocate(image_.bytes().size());
    for (const Image::Place& p : image_.places()) addresses_.push_back(base + p.offset);
  } else {
    for (const Image::Place& p : image_.places()) addresses_.push_back(p.bytes ? allocate(p.bytes) : nullptr);
  }
  args_ = image_.args(addresses_);
  args_.device = device_;
}

DeviceCall::~DeviceCall() {
  const runtime::CudaDeviceScope scope(device_);
  for (void* allocation : allocations_) cudaFree(allocation);  // waits for what still uses it
}

void DeviceCall::upload(const Stream& stream) {
  const runtime::CudaDeviceScope scope(device_);
  image_.refresh();
  // Async copies on the call's own stream: a plain cudaMemcpy may return before its last piece has landed,
  // and a stream that does not wait for the default one would not wait for it.
  const auto copy = [&](void* to, std::size_t from, std::size_t bytes) {
    EXPECT_CUDA(
        cudaMemcpyAsync(to, image_.bytes().data() + from, bytes, cudaMemcpyHostToDevice, stream.get()));
  };
  if (memory_ == Memory::guarded) return copy(allocations_[0], 0, image_.bytes().size());
  for (std::size_t i = 0; i < addresses_.size(); ++i)
    if (const Image::Place& p = image_.places()[i]; p.source && p.bytes)
      copy(addresses_[i], p.offset, p.bytes);
  // The output, before the workspace: initcheck does not see what TMA writes, so that poison, not the tool,
  // has to show what a kernel left out. The workspace stays as it is unless it holds flags: what reads it
  // before writing is the tool's to find.
  const std::size_t out = addresses_.size() - 2;
  const std::size_t end = memory_ == Memory::exact_filled ? addresses_.size() : out + 1;
  for (std::size_t i = out; i < end; ++i) {
    const Image::Place& p = image_.places()[i];
    if (p.bytes == 0 || p.source) continue;
    EXPECT_CUDA(cudaMemsetAsync(addresses_[i], std::to_integer<int>(kPoison), p.bytes, stream.get()));
  }
}

void DeviceCall::poison(const Stream& stream) {
  const runtime::CudaDeviceScope scope(device_);
  for (std::size_t i = 0; i < addresses_.size(); ++i) {
    const Image::Place& p = image_.places()[i];
    if (!p.written || p.bytes == 0) continue;
    if (p.source) {
      EXPECT_CUDA(cudaMemcpyAsync(addresses_[i], p.source, p.bytes, cudaMemcpyHostToDevice, stream.get()));
    } else {
      EXPECT_CUDA(cudaMemsetAsync(addresses_[i], std::to_integer<int>(kPoison), p.bytes, stream.get()));
    }
  }
}

void DeviceCall::save_pre(const Stream& stream) {
  const runtime::CudaDeviceScope scope(device_);
  const Matrix pre = instance_.poisoned_output();  // with a guard behind it
  allocations_.push_back(nullptr);
  EXPECT_CUDA(cudaMalloc(&allocations_.back(), pre.bytes.size()));
  pre_ = static_cast<std::byte*>(allocations_.back());
  EXPECT_CUDA(
      cudaMemcpyAsync(pre_, pre.bytes.data(), pre.bytes.size(), cudaMemcpyHostToDevice, stream.get()));
  stream.wait();
  args_.pre = pre_ + pre.offset * static_cast<std::int64_t>(size_of(pre.dtype));
  args_.pre_stride = pre.stride;
}

Matrix DeviceCall::download_pre(const Stream& stream) {
  const runtime::CudaDeviceScope scope(device_);
  Matrix pre = instance_.poisoned_output();
  EXPECT_CUDA(
      cudaMemcpyAsync(pre.bytes.data(), pre_, pre.bytes.size(), cudaMemcpyDeviceToHost, stream.get()));
  stream.wait();
  EXPECT_TRUE(pre.padding_untouched())
      << kernel_.name << " wrote beside the pre-activation: " << describe(instance_.c);
  return pre;
}

int DeviceCall::launch(cudaStream_t stream) {
  const runtime::CudaDeviceScope scope(device_);
  args_.stream = stream;
  const int error = kernel_.launch(args_, planned_.schedule, Executor::cuda(device_, stream));
  int current = -1;
  EXPECT_CUDA(cudaGetDevice(&current));
  EXPECT_EQ(current, device_) << kernel_.name << " changed the thread's device";
  return error;
}

Matrix DeviceCall::download(const Stream& stream) {
  Matrix out = instance_.poisoned_output();
  if (memory_ != Memory::guarded) {
    download(stream, out);
    return out;
  }
  const runtime::CudaDeviceScope scope(device_);
  std::vector<std::byte> after(image_.bytes().size());
  EXPECT_CUDA(
      cudaMemcpyAsync(after.data(), allocations_[0], after.size(), cudaMemcpyDeviceToHost, stream.get()));
  stream.wait();
  EXPECT_EQ(image_.damage(after), "") << kernel_.name << ": " << describe(instance_.c);
  return image_.output(after);
}

void DeviceCall::download(const Stream& stream, Matrix& out) {
  const runtime::CudaDeviceScope scope(device_);
  if (memory_ == Memory::guarded) {
    const std::size_t at = addresses_.size() - 2;  // of the output, before the workspace
    EXPECT_CUDA(cudaMemcpyAsync(out.bytes.data(), addresses_[at], image_.places()[at].bytes,
                                cudaMemcpyDeviceToHost, stream.get()));
    return stream.wait();
  }
  const std::size_t element = size_of(out.dtype), stride = static_cast<std::size_t>(out.stride) * element;
  if (out.rows > 0 && out.cols > 0) {
    EXPECT_CUDA(cudaMemcpy2DAsync(out.data(), stride, args_.out, stride,
                                  static_cast<std::size_t>(out.cols) * element,
                                  static_cast<std::size_t>(out.rows), cudaMemcpyDeviceToHost, stream.get()));
  }
  stream.wait();
}

Matrix run_on_device(Instance& instance, const kernels::Kernel& kernel, Memory memory, int device) {
  const Stream stream(device);
  DeviceCall call(instance, kernel, memory, device);
  call.upload(stream);
  EXPECT_CUDA(call.launch(stream.get())) << kernel.name << ": " << describe(instance.c);
  return call.download(stream);
}

const kernels::Kernel* kernel_on_device(const Instance& instance, std::string_view name) {
  for (const kernels::Kernel* kernel : runnable_on_device(instance.cuda_problem(0)))
    if (kernel->name == name) return kernel;
  return nullptr;
}

void expect_same_bits(Instance& instance, const kernels::Kernel& kernel, int runs) {
  const Stream stream;
  DeviceCall call(instance, kernel);
  call.upload(stream);
  EXPECT_CUDA(call.launch(stream.get()));
  const Matrix first = call.download(stream);
  Matrix out = instance.poisoned_output();
  for (int i = 0; i < runs; ++i) {
    call.poison(stream);
    EXPECT_CUDA(call.launch(stream.get()));
    EXPECT_CUDA(call.launch(stream.get()));
    call.download(stream, out);
    ASSERT_TRUE(out.bytes == first.bytes) << kernel.name << ", run " << i;
  }
}

std::vector<const kernels::Kernel*> runnable_on_device(const Problem& problem) {
  std::vector<const kernels::Kernel*> list;
  for (const kernels::Kernel& kernel : kernels::cuda_kernels()) {
    if (problem.residual && problem.dtype == DType::f32 && !kernel.traits.adds_f32_residual) continue;
    if (kernels::bsr_linear::ask(kernel, problem, machine_of(problem.device)).refusal.empty())
      list.push_back(&kernel);
  }
  return list;
}

void check_on_device(const Case& c, Memory memory, int device) {
  Instance instance(c);
  const auto kernels = runnable_on_device(instance.cuda_problem(device));
  ASSERT_FALSE(kernels.empty()) << "every kernel refuses " << describe(c);
  const Instance::Answer answer = instance.answer();
  for (const kernels::Kernel* kernel : kernels) {
    SCOPED_TRACE(kernel->name);
    const Matrix out = run_on_device(instance, *kernel, memory, device);
    c.integers ? expect_exact(instance, out, answer) : expect_accurate(instance, out, answer);
  }
}

void check_pre_on_device(const Case& c, Memory memory) {
  Case plain = c;
  plain.activation = Activation::none, plain.residual = false;
  Instance instance(c), before(plain);
  const Instance::Answer answer = before.answer();
  const double half_ulp = c.dtype == DType::f32 ? 0x1p-24 : c.dtype == DType::f16 ? 0x1p-11 : 0x1p-8;
  const Stream stream;
  int checked = 0;
  for (const kernels::Kernel* kernel : runnable_on_device(instance.cuda_problem(0))) {
    if (!kernel->traits.stores_pre) continue;
    SCOPED_TRACE(kernel->name);
    ++checked;
    DeviceCall call(instance, *kernel, memory);
    call.upload(stream);
    call.save_pre(stream);
    EXPECT_CUDA(call.launch(stream.get()));
    const Matrix out = call.download(stream), pre = call.download_pre(stream);
    expect_accurate(before, pre, answer);
    for (std::int64_t r = 0; r < out.rows; ++r)
      for (std::int64_t o = 0; o < out.cols; ++o) {
        const double z = pre.at(r, o), more = c.residual ? instance.residual.at(r, o) : 0,
                     y = activate(c.activation, z) + more;
        // Of the stored one or of what it was rounded from.
        const double steep = 1.2 * slope(c.activation, z);
        ASSERT_NEAR(out.at(r, o), y, half_ulp * (steep * std::abs(z) + 1.1 * std::abs(y)) + 0x1p-20)
            << describe(c) << r << ", " << o;
      }
    EXPECT_CUDA(call.launch(stream.get()));
    EXPECT_EQ(call.download(stream).bytes, out.bytes);
    EXPECT_EQ(call.download_pre(stream).bytes, pre.bytes);
  }
  EXPECT_TRUE(checked > 0 || runtime::cuda_device(0).sm < 90 || size_of(c.dtype) != 2)
      << "no kernel stores it: " << describe(c);
}

std::vector<Product> products(int devices) {
  std::vector<Product> list;
  if (runtime::cuda_summary().devices < devices) return list;
  for (const Direction direction : {Direction::forward, Direction::dx, Direction::dw}) {
    for (const DType dtype : kTypes) list.push_back({direction, dtype, false});
    list.push_back({direction, DType::f32, true});
  }
  return list;
}

std::vector<Product> products_and_sums(int devices) {
  std::vector<Product> list = products(devices);
  for (Product product : products(devices)) {
    product.accumulate = product.direction == Direction::dw;
    if (product.accumulate) list.push_back(product);
  }
  return list;
}

std::vector<Product> products_of(Direction direction) {
  std::vector<Product> list = products();
  std::erase_if(list, [direction](const Product& p) { return p.direction != direction; });
  return list;
}

std::string name_of(const ::testing::TestParamInfo<Product>& info) {
  return std::string(name_of(info.param.direction)) + "_" +
         (info.param.tf32 ? "tf32" : name_of(info.param.dtype)) +
         (info.param.accumulate ? "_accumulate" : "");
}

std::vector<int> when_devices(int number, std::size_t free_bytes) {
  if (runtime::cuda_summary().devices < number) return {};
  std::size_t available = 0, total = 0;
  if (free_bytes > 0 && (cudaMemGetInfo(&available, &total) != cudaSuccess || available < free_bytes))
    return {};
  return {number};
}

Case OnDevice::base() const {
  Case c;
  c.direction = GetParam().direction, c.dtype = GetParam().dtype, c.tf32 = GetParam().tf32;
  c.accumulate = GetParam().accumulate;
  return c;
}

}  // namespace sparseloom::testing
