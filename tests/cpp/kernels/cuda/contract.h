// The cases of the tests of what holds beside accuracy: contract_test.cpp and not_a_number_test.cpp.
#pragma once

#include <cstdint>

#include "kernels/cuda/device_call.h"

namespace sparseloom::testing {

/// Instantiated in contract_test.cpp.
class CudaContract : public OnDevice {
 protected:
  // Several tiles of tokens and of everything else, ragged, with rows that are not aligned.
  Case ragged(std::int64_t m) const {
    Case c = base();
    c.m = m, c.rows = 290, c.cols = 331, c.block = {32, 16}, c.stride_padding = 2;
    return c;
  }
  // For the kernels on TMA.
  Case aligned(std::int64_t m) const {
    Case c = base();
    c.m = m, c.rows = 280, c.cols = 328, c.block = {32, 64};
    return c;
  }
};

}  // namespace sparseloom::testing
