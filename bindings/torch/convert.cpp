// Conversions from stable torch tensors to the core's views, their checks, and allocation of new tensors.
#include "convert.h"

#include <algorithm>
#include <array>
#include <limits>

#include "core/check.h"
#include "executor.h"
#include "held_indices.h"
#include "ops/checks.h"
#include "ops/valid_index.h"
#include "runtime/huge_pages.h"

namespace sparseloom::binding {

std::string shape_of(const Tensor& tensor) {
  std::string text = "[";
  for (std::int64_t d = 0; d < tensor.dim(); ++d) text += (d ? ", " : "") + std::to_string(tensor.size(d));
  return text + "]";
}

std::string taken(Text text) {
  std::size_t length = 0;
  const char* characters = nullptr;
  const bool readable = torch_string_length(text, &length) == 0 && torch_string_c_str(text, &characters) == 0;
  std::string copy = readable ? std::string(characters, length) : std::string();
  torch_delete_string(text);
  return copy;
}

namespace {

// Allocates through the C shim directly: the operators empty and new_empty go through the boxed dispatcher,
// which measured slower.
Tensor allocate(const char* op, const std::vector<std::int64_t>& sizes, ScalarType type, int device) {
  std::vector<std::int64_t> strides(sizes.size());
  std::int64_t elements = 1;
  for (std::size_t d = sizes.size(); d-- > 0;) {
    strides[d] = elements;
    elements *= std::max<std::int64_t>(1, sizes[d]);  // like torch's strides of contiguous tensors
  }
  const auto dtype = torch::stable::detail::to<std::int32_t>(torch::stable::detail::from(type));
  AtenTensorHandle handle = nullptr;
  const auto error =
      aoti_torch_empty_strided(static_cast<std::int64_t>(sizes.size()), sizes.data(), strides.data(), dtype,
                               device < 0 ? aoti_torch_device_type_cpu() : aoti_torch_device_type_cuda(),
                               std::max(0, device), &handle);
  // The shim only prints the reason and does not return it. Sizes and dtype were checked before, so only lack
  // of memory remains.
  if (error != 0)
    core::fail(op,
               "memory on " + ops::place(device) + " for " + std::to_string(elements) +
                   " elements of a result or scratch",
               "out of memory", "use fewer tokens at a time, or free tensors that are no longer needed");
  Tensor tensor(handle);
  // With pages of 4 KiB, two threads of a Zen 4 took 25 ms to touch a result of 87 MB, and 3.5 ms to compute
  // it.
  const std::size_t bytes = static_cast<std::size_t>(elements) * tensor.element_size();
  if (device < 0 && bytes >= runtime::kMappedAnewBytes)
    runtime::prefer_huge_pages(tensor.mutable_data_ptr(), bytes);
  return tensor;
}

}  // namespace

int device_of(const char* op, const char* name, const Tensor& tensor) {
  if (tensor.is_cpu()) return -1;
  if (!tensor.is_cuda())
    core::fail(op, std::string(name) + " on the CPU or a CUDA device", "a tensor of another device",
               "move the module and its inputs with .cpu() or .cuda()");
  return static_cast<int>(tensor.get_device_index());
}

void require_device(const char* op, const char* name, const Tensor& tensor, int device, const char* first) {
  const int actual = device_of(op, name, tensor);
  if (actual != device)
    core::fail(op, std::string(name) + " on " + ops::place(device) + ", as " + first, ops::place(actual),
               "move the module and its inputs to one device with .to()");
}

void require_cpu(const char* op, const char* name, const Tensor& tensor) {
  if (!tensor.is_cpu())
    core::fail(op, std::string(name) + " on the CPU", "a tensor of another device", "move it with .cpu()");
}

torch::stable::Device torch_device(int device) {
  using torch::headeronly::DeviceType;
  return device < 0
             ? torch::stable::Device(DeviceType::CPU)
             : torch::stable::Device(DeviceType::CUDA, static_cast<torch::stable::DeviceIndex>(device));
}

DType dtype_of(const char* op, const char* name, const Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case ScalarType::Float: return DType::f32;
    case ScalarType::Half: return DType::f16;
    case ScalarType::BFloat16: return DType::bf16;
    case ScalarType::Double: return DType::f64;
    case ScalarType::Char: return DType::i8;
    case ScalarType::Float8_e4m3fn: return DType::f8e4m3;
    default:
      core::fail(op, std::string(name) + " of dtype float32, float16, bfloat16 or float64",
                 "torch.ScalarType " + std::to_string(static_cast<int>(tensor.scalar_type())),
                 "convert it with .to(torch.float32)");
  }
}

ScalarType scalar_type_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::f32: return ScalarType::Float;
    case DType::f16: return ScalarType::Half;
    case DType::bf16: return ScalarType::BFloat16;
    case DType::f64: return ScalarType::Double;
    case DType::i8: return ScalarType::Char;
    case DType::f8e4m3: return ScalarType::Float8_e4m3fn;
  }
  return ScalarType::Float;
}

Tensor new_like(const char* op, const Tensor& like, const std::vector<std::int64_t>& sizes) {
  return allocate(op, sizes, like.scalar_type(), device_of(op, "x", like));
}

Tensor new_tensor(const char* op, const std::vector<std::int64_t>& sizes, ScalarType type, int device) {
  return allocate(op, sizes, type, device);
}

Tensor new_bytes(const char* op, std::int64_t bytes, int device) {
  return allocate(op, {bytes}, ScalarType::Byte, device);
}

Tensor new_cpu(const std::vector<std::int64_t>& sizes, ScalarType type) {
  return allocate("allocate", sizes, type, -1);
}

Tensor mask_of(const BlockPattern& pattern) {
  Tensor mask = new_cpu({pattern.block_rows(), pattern.block_cols()}, ScalarType::Bool);
  auto* cells = static_cast<bool*>(mask.mutable_data_ptr());
  for (std::int64_t r = 0; r < pattern.block_rows(); ++r)
    for (std::int64_t c = 0; c < pattern.block_cols(); ++c) *cells++ = pattern.test(r, c);
  return mask;
}

Matrix matrix_of(const char* op, const char* name, const Tensor& tensor) {
  const DType dtype = dtype_of(op, name, tensor);
  const std::int64_t dims = tensor.dim();
  if (dims < 1)
    core::fail(op, std::string(name) + " with at least one dimension", "a scalar", "pass [..., features]");
  const std::int64_t cols = tensor.size(dims - 1);
  std::int64_t rows = 1;
  for (std::int64_t d = 0; d + 1 < dims; ++d) rows *= tensor.size(d);

  // The leading dimensions fold into one if each steps over exactly the next one. A dimension of size 1 may
  // have any stride.
  bool folds = cols <= 1 || tensor.stride(dims - 1) == 1;
  std::int64_t row_stride = cols, next = -1;
  for (std::int64_t d = dims - 2; d >= 0 && folds; --d) {
    if (tensor.size(d) == 1) continue;
    if (next < 0)
      row_stride = tensor.stride(d);
    else
      folds = tensor.stride(d) == next;
    next = tensor.stride(d) * tensor.size(d);
  }
  folds = folds && row_stride >= cols;  // an expanded tensor has stride 0
  Tensor owner = folds ? tensor : torch::stable::contiguous(tensor);
  if (!folds) row_stride = cols;
  const void* data = owner.const_data_ptr();
  return {std::move(owner), {data, dtype, rows, cols, row_stride}};
}

const std::int32_t* indices_of(const char* op, const char* name, const Tensor& tensor, std::int64_t expected,
                               int device, const char* first) {
  require_device(op, name, tensor, device, first);
  if (tensor.scalar_type() != ScalarType::Int || tensor.dim() != 1 || !tensor.is_contiguous() ||
      (expected >= 0 && tensor.numel() != expected))
    core::fail(op,
               std::string(name) + " as a contiguous int32 vector" +
                   (expected >= 0 ? " of " + std::to_string(expected) : ""),
               "torch.ScalarType " + std::to_string(static_cast<int>(tensor.scalar_type())) + " of shape " +
                   shape_of(tensor),
               "pass the index tensors of one pattern, .to(torch.int32)");
  return static_cast<const std::int32_t*>(tensor.const_data_ptr());
}

BlockShape block_of(const char* op, std::int64_t rows, std::int64_t cols, std::int64_t block_rows,
                    std::int64_t block_cols) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  if (rows < 0 || cols < 0 || rows > kMost || cols > kMost)
    core::fail(op, "features between 0 and 2^31 - 1", core::shape(rows, cols), "split the layer");
  const auto clamp = [](std::int64_t side) {
    return static_cast<std::int32_t>(side < 0 || side > 1024 ? 0 : side);
  };
  const BlockShape block{clamp(block_rows), clamp(block_cols)};
  if (block.rows != block_rows || block.cols != block_cols)
    core::fail(op, "block sides of 8, 16, 32, 64 or 128",
               std::to_string(block_rows) + "x" + std::to_string(block_cols), "choose two of them");
  require_supported(op, block);
  return block;
}

BlockNorm block_norm_of(const char* op, const std::string& name) {
  if (name == "l1") return BlockNorm::l1;
  if (name == "l2") return BlockNorm::l2;
  if (name == "max") return BlockNorm::max;
  core::fail(op, "norm 'l1', 'l2' or 'max'", "'" + name + "'", "pass one of them");
}

std::optional<std::uint64_t> writes_of(std::initializer_list<const Tensor*> tensors) {
  // Inference tensors, by address: torch throws when asked for their count, which takes microseconds.
  static thread_local std::array<const void*, 64> uncounted{};
  std::uint64_t writes = 0;
  for (const Tensor* tensor : tensors) {
    const void* const data = tensor->const_data_ptr();
    const void*& known = uncounted[(reinterpret_cast<std::uintptr_t>(data) >> 6) % uncounted.size()];
    if (data != nullptr && known == data) return {};
    std::array<StableIValue, 1> stack{torch::stable::detail::from(*tensor)};
    if (torch_call_dispatcher("aten::_version", "", stack.data(), TORCH_ABI_VERSION) != 0) {
      known = data;
      return {};
    }
    writes = (writes << 21) + static_cast<std::uint64_t>(torch::stable::detail::to<std::int64_t>(stack[0]));
  }
  return writes;
}

IndexView packed_of(const char* op, const Tensor& packed, std::int64_t blocks, std::int64_t rows,
                    std::int64_t cols, BlockShape block, int device, const char* first) {
  if (blocks < 0)
    core::fail(op, "a number of blocks >= 0", std::to_string(blocks), "pass the length of the values");
  IndexView index{rows, cols, block, blocks, nullptr, nullptr};
  const IndexSegments segments = index_segments(index.block_rows(), index.block_cols(), blocks);
  index.crow = indices_of(op, "index", packed, -1, device, first);
  if (packed.numel() != segments.size)
    core::fail(op,
               "the packed index of " + std::to_string(blocks) + " blocks of a " + core::shape(rows, cols) +
                   " weight, " + std::to_string(segments.size) + " elements",
               std::to_string(packed.numel()), "pass values and index of one layer");
  index.col = index.crow + segments.col;
  return index;
}

IndexView index_of(const char* op, const Tensor& packed, std::int64_t blocks, std::int64_t rows,
                   std::int64_t cols, BlockShape block, int device, const char* first, Reads reads) {
  const IndexView index = packed_of(op, packed, blocks, rows, cols, block, device, first);
  if (device < 0) return index;
  ops::DeviceIndex device_index{op, index};
  const IndexTensors source(packed);
  device_index.source = &source;
  if (reads.columns) device_index.transposed = column_index(index);
  device_index.writes = writes_of({&packed}).value_or(ops::DeviceIndex::kUncounted);
  device_index.free_slots = Facts::of_digest(reads.digest).moving;
  ops::require_valid_on_device(device_index, torch_executor(device));
  return index;
}

void take_packed_as_valid(const char* op, const Tensor& packed, const IndexView& index, int device,
                          bool made_in_call) {
  ops::DeviceIndex device_index{op, index};
  const IndexTensors source(packed);
  if (!made_in_call) device_index.source = &source;
  device_index.writes = writes_of({&packed}).value_or(ops::DeviceIndex::kUncounted);
  ops::take_as_valid(device_index, device);
  device_index.transposed = column_index(index);
  ops::take_as_valid(device_index, device);
}

IndexView index_of_pair(const char* op, const Tensor& crow, const Tensor& col, std::int64_t rows,
                        std::int64_t cols, BlockShape block, int device, const char* first) {
  IndexView index{rows, cols, block, col.numel(), nullptr, nullptr};
  index.crow = indices_of(op, "crow", crow, index.block_rows() + 1, device, first);
  index.col = indices_of(op, "col", col, -1, device, first);
  if (device < 0) return index;
  ops::DeviceIndex device_index{op, index};
  device_index.writes = writes_of({&crow, &col}).value_or(ops::DeviceIndex::kUncounted);
  device_index.free_slots = true;
  ops::require_valid_on_device(device_index, torch_executor(device));
  return index;
}

BlockShape block_of_values(const char* op, const Tensor& values) {
  if (values.dim() != 3)
    core::fail(op, "values of shape [blocks, block rows, block cols]", shape_of(values),
               "pass a layer's values");
  return block_of(op, 0, 0, values.size(1), values.size(2));
}

const void* values_of(const char* op, const Tensor& values, const IndexView& index) {
  if (values.dim() != 3 || values.size(0) != index.blocks || values.size(1) != index.block.rows ||
      values.size(2) != index.block.cols)
    core::fail(op,
               "values of shape [" + std::to_string(index.blocks) + ", " + std::to_string(index.block.rows) +
                   ", " + std::to_string(index.block.cols) + "], as the index and the block say",
               shape_of(values), "pass values and indices of one layer");
  return values.const_data_ptr();
}

}  // namespace sparseloom::binding
