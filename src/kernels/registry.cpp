#include "kernels/registry.h"

#include <vector>

#include "kernels/cpu/kernels.h"
#include "kernels/cuda/kernels.h"
#include "kernels/dense/dense.h"
#include "kernels/reference/reference.h"

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

const plan::MachineRates& machine_rates() {
  static const plan::MachineRates rates = measure_rates();
  return rates;
}

}  // namespace sparseloom::kernels
