// Large indices on the CPU, whose content is not read in every call.
#pragma once

#include <cstdint>
#include <optional>

#include "convert.h"

namespace sparseloom::binding {

/// A number that stands for the content of two lists in host memory: it is another one after each write that
/// torch counts, and for other memory at the same address. So that no other memory gets there, the latest
/// 128 MB of such lists are kept from being freed. Nothing for lists whose content is read in every call: the
/// short ones, those that are longer than that, and inference tensors, whose writes torch does not count.
std::optional<std::uint64_t> content_number(const Tensor& first, const Tensor& second);

}  // namespace sparseloom::binding
