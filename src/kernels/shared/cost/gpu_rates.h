// A GPU's rates. They are measured once and kept in a file of the cache folder, which every later process
// reads on a GPU of this kind with this driver.
//
// The cost model (cost_terms.h and the rows' predictions) is fitted to one H200. For another GPU, or one
// whose clocks drop earlier, it is scaled by the ratio of the probes' results to those that an H200 would
// reach at that GPU's clocks and widths.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <string>

#include "plan/machine.h"
#include "runtime/cuda.h"

namespace sparseloom::kernels::cuda {

/// The expected results of the probes if this device were like an H200 except for its clocks, widths and
/// number of multiprocessors.
plan::GpuRates expected_rates(const runtime::CudaDevice& device);

struct KnownGpuRates {
  plan::GpuRates rates;  // all 0 if nothing is known; the model then uses expected_rates
  std::string origin;    // like KnownRates::origin, or "not measured: <reason>"
};

/// Measures the rates; returns nothing if that failed.
using MeasureGpu = std::function<std::optional<plan::GpuRates>()>;

/// Reads the rates for `key` from `folder`, or measures them and keeps them there. It replaces a file that is
/// missing, damaged or of another key. Measured rates outside kLeastOfExpected to kMostOfExpected come from a
/// GPU that others are using; they are neither used nor kept. Without `measure` nothing is measured. It never
/// fails.
inline constexpr double kLeastOfExpected = 0.6, kMostOfExpected = 1.4;
KnownGpuRates known_gpu_rates(const std::string& folder, const std::string& key,
                              const plan::GpuRates& expected, const MeasureGpu& measure);

/// Everything that the rates depend on, in one line of text: the GPU's name, clocks and widths, the driver
/// and this library's version.
std::string gpu_rates_key(const runtime::CudaDevice& device, const std::string& name, int driver);
std::string gpu_rates_file(const std::string& key);
std::string gpu_rates_text(const plan::GpuRates& rates, const std::string& key);

/// The rates of a device of this process, known after the first call; thread-safe. The first call reads the
/// file or measures. A measurement takes some 35 ms of the GPU on a stream of its own, beside other work, and
/// the call waits for it. While `stream` is captured nothing is measured, and a later call tries again.
KnownGpuRates gpu_rates(int device, void* stream);

/// Machine::clusters of a device of this process; all 0 in a build without CUDA.
std::array<int, 4> gpu_clusters(int device);

/// Runs the probes (kernels/shared/probes/rate_probes.cu) and reports the best of many short runs. `device`
/// must be the thread's current one. Returns 0 or a cudaError_t.
int sm80_measure_rates(const runtime::CudaDevice& device, plan::GpuRates& rates) noexcept;

/// Element i: clusters of 2^i thread blocks that run at once if each thread block fills a multiprocessor. 0:
/// such clusters do not run; all are 0 if the device does not answer. `device` must be the thread's current
/// one. The answer is kept per device; beyond device 63 every call asks the driver.
std::array<int, 4> cluster_counts(int device) noexcept;

}  // namespace sparseloom::kernels::cuda
