// Indices whose content is not read in every call: large ones on the CPU, and all on a CUDA device. What
// holds their memory meanwhile.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>

#include "convert.h"
#include "ops/valid_index.h"

namespace sparseloom::binding {

/// A number that stands for the content of two lists in host memory: it is another one after each write that
/// torch counts, and for other memory at the same address. So that no other memory gets there, the latest
/// 128 MB of such lists are kept from being freed. Nothing for lists whose content is read in every call: the
/// short ones, those that are longer than that, and inference tensors, whose writes torch does not count.
std::optional<std::uint64_t> content_number(const Tensor& first, const Tensor& second);

/// The tensors of an index on a CUDA device, which hold its memory once it is valid:
/// ops::DeviceIndex::source.
class IndexTensors final : public ops::IndexSource {
 public:
  explicit IndexTensors(const Tensor& first, const Tensor* second = nullptr, const Tensor* third = nullptr)
      : tensors_{&first, second, third} {}
  std::shared_ptr<const plan::IndexOwner> owner() const override;

 private:
  std::array<const Tensor*, 3> tensors_;
};

}  // namespace sparseloom::binding
