// Copies from a CUDA device to the host that a caller waits for.
#pragma once

#include <cstddef>
#include <initializer_list>

namespace sparseloom::runtime {

struct DeviceBytes {
  void* to = nullptr;
  const void* from = nullptr;
  std::size_t bytes = 0;
};

/// Copies behind what is queued on the current device's stream, and waits. Returns whether all was copied;
/// not so while the stream captures a graph (*error is 0), or when CUDA returned an error.
bool copy_to_host(std::initializer_list<DeviceBytes> pieces, void* stream, int* error);

}  // namespace sparseloom::runtime
