// The memory of one call as bytes: every operand in a place of its own between guards, so that a stray write
// is seen on any device.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "kernels/args.h"
#include "kernels/case.h"

namespace sparseloom::testing {

/// Copies of all that a call may touch. Places start at multiples of 256 bytes, as torch's and cudaMalloc's
/// do; what lies between them is poison, and so are output and workspace.
class Image {
 public:
  struct Place {
    const char* name;
    const std::byte* source;  // null: poison
    std::size_t bytes;
    std::size_t offset;  // in the image
    bool written;        // by the call
  };

  Image(Instance& instance, std::size_t workspace_bytes);

  /// Takes the instance's operands as they are now, and poisons the rest.
  void refresh();

  const std::vector<std::byte>& bytes() const { return bytes_; }
  const std::vector<Place>& places() const { return places_; }

  /// The call with its places at these addresses; empty ones and those that the call has not are null.
  MatmulArgs args(std::span<std::byte* const> addresses) const;
  /// The same when the whole image was copied to `base`.
  MatmulArgs args(std::byte* base) const;

  /// The output in an image that came back from a call.
  Matrix output(std::span<const std::byte> after) const;

  /// Empty when nothing but the output's elements and the workspace changed; else what did.
  std::string damage(std::span<const std::byte> after) const;

 private:
  void add(const char* name, const void* source, std::size_t bytes, bool written = false);
  const Place& place(const char* name) const;

  Instance& instance_;
  std::vector<Place> places_;
  std::vector<std::byte> bytes_;
};

}  // namespace sparseloom::testing
