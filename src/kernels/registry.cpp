// Assembles the list of all kernels, and keeps this machine's measured rates.
#include "kernels/registry.h"

#include <vector>

#include "kernels/bsr_linear/cpu/kernels.h"
#include "kernels/bsr_linear/cuda/rows.h"
#include "kernels/bsr_linear/dense/dense.h"
#include "kernels/bsr_linear/reference/reference.h"
#include "runtime/cache_file.h"

namespace sparseloom::kernels {

std::span<const Kernel> registry() {
  static const std::vector<Kernel> kernels = [] {
    const auto cpu = cpu_kernels(), cuda = cuda_kernels();
    std::vector<Kernel> all(cpu.begin(), cpu.end());
    all.insert(all.end(), cuda.begin(), cuda.end());
    all.push_back(dense_kernel());
    all.push_back(reference_kernel());
    return all;
  }();
  return kernels;
}

std::span<const plan::KernelInfo> registry_info() {
  static const std::vector<plan::KernelInfo> rows = [] {
    std::vector<plan::KernelInfo> infos;
    for (const Kernel& kernel : registry()) infos.push_back(kernel.info);
    return infos;
  }();
  return rows;
}

namespace {

const KnownRates& machine() {
  static const KnownRates known = known_rates(runtime::cache_folder(), runtime::active_isa());
  return known;
}

}  // namespace

const plan::MachineRates& machine_rates() { return machine().rates; }
const std::string& machine_rates_origin() { return machine().origin; }

}  // namespace sparseloom::kernels
