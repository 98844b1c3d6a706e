// Functions of the driver, found by way of the CUDA runtime. Linking libcuda would keep the library from
// loading where there is no driver.
#pragma once

namespace sparseloom::kernels::cuda {

/// Null if the driver has no such function, or there is none.
void* find_in_driver(const char* name) noexcept;

}  // namespace sparseloom::kernels::cuda
