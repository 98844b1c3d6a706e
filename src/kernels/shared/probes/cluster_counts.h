// How many clusters a GPU runs at once.
#pragma once

#include <array>

namespace sparseloom::kernels::cuda {

/// Element i: clusters of 2^i thread blocks that run at once if each thread block fills a multiprocessor. 0:
/// such clusters do not run; all are 0 if the device does not answer. `device` must be the thread's current
/// one. The answer is kept for each device; beyond device 63 every call asks the driver.
std::array<int, 4> cluster_counts(int device) noexcept;

}  // namespace sparseloom::kernels::cuda
