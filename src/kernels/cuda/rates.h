// A GPU's rates: measured once, kept in a file of the cache folder, read by every later process on such a GPU
// with such a driver.
//
// What the cost model (cost.h) is fitted to is one H200. On another GPU, or one whose clocks give way
// earlier, it is scaled by what the probes reach there over what they would reach on the H200 at that GPU's
// clocks and widths.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "plan/candidate.h"
#include "runtime/cuda.h"

namespace sparseloom::kernels::cuda {

/// What the probes should reach on this device, were it like an H200 but for its clocks, widths and number of
/// multiprocessors.
plan::GpuRates expected_rates(const runtime::CudaDevice& device);

struct KnownGpuRates {
  plan::GpuRates rates;  // all 0: nothing is known, and the model takes expected_rates
  std::string origin;    // as KnownRates::origin, or "not measured: <reason>"
};

/// Measured rates, nothing where that failed.
using MeasureGpu = std::function<std::optional<plan::GpuRates>()>;

/// Rates for `key` from `folder`, else measured and kept there; a file that is missing, damaged or of another
/// key is replaced. Measured rates out of kLeastOfExpected to kMostOfExpected are those of a GPU that others
/// use: neither taken nor kept. Without `measure` nothing is. Never an error.
inline constexpr double kLeastOfExpected = 0.6, kMostOfExpected = 1.4;
KnownGpuRates known_gpu_rates(const std::string& folder, const std::string& key,
                              const plan::GpuRates& expected, const MeasureGpu& measure);

/// Everything that the rates depend on: the GPU's name, clocks and widths, the driver, this library's
/// version. One line.
std::string gpu_rates_key(const runtime::CudaDevice& device, const std::string& name, int driver);
std::string gpu_rates_file(const std::string& key);
std::string gpu_rates_text(const plan::GpuRates& rates, const std::string& key);

/// Of a device of this process, known from the first call on; thread-safe. The first one reads the file or
/// measures, which takes some 35 ms of the GPU on a stream of its own, beside what runs there, and waits for
/// it. While `stream` is captured nothing is measured, and a later call tries again.
KnownGpuRates gpu_rates(int device, void* stream);

/// The probes (sm80/rate_probes.cu): best of many short runs. `device` is the thread's current one; 0 or a
/// cudaError_t.
int sm80_measure_rates(const runtime::CudaDevice& device, plan::GpuRates& rates) noexcept;

}  // namespace sparseloom::kernels::cuda
