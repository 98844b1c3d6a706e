// Copies from a CUDA device to the host for which a caller waits.
#pragma once

#include <cstddef>
#include <initializer_list>

namespace sparseloom::runtime {

struct DeviceBytes {
  void* to = nullptr;
  const void* from = nullptr;
  std::size_t bytes = 0;
};

/// Copies after the work queued on the current device's stream, and waits. Returns whether all was copied;
/// false while the stream captures a graph (*error is 0), or if CUDA returned an error.
bool copy_to_host(std::initializer_list<DeviceBytes> pieces, void* stream, int* error);

}  // namespace sparseloom::runtime
