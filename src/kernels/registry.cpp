// Assembles the list of all kernels, takes those from outside, and keeps this machine's measured rates.
#include "kernels/registry.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <string_view>
#include <vector>

#include "kernels/bsr_linear/cpu/kernels.h"
#include "kernels/bsr_linear/cuda/rows.h"
#include "kernels/bsr_linear/dense/dense.h"
#include "kernels/bsr_linear/reference/reference.h"
#include "runtime/cache_file.h"

namespace sparseloom::kernels {
namespace {

/// Rows are added at the end only, in memory that never moves, so that readers need no lock.
class Registry {
 public:
  static constexpr std::size_t kMostFromOutside = 64;

  Registry() {
    const auto cpu = cpu_kernels(), cuda = cuda_kernels();
    kernels_.reserve(cpu.size() + cuda.size() + 2 + kMostFromOutside);
    kernels_.insert(kernels_.end(), cpu.begin(), cpu.end());
    kernels_.insert(kernels_.end(), cuda.begin(), cuda.end());
    kernels_.push_back(dense_kernel());
    kernels_.push_back(reference_kernel());
    count_ = own_ = kernels_.size();
    for (const Kernel& kernel : kernels_) enter(kernel);
  }

  int add(const SparseloomKernel& outside) {
    Kernel kernel{};
    kernel.name = outside.name;
    kernel.where = outside.on_cuda != 0 ? Placement::cuda : Placement::cpu;
    if (outside.needs_aligned != 0) kernel.needs_aligned = [](const Problem&) { return Aligned::all; };
    kernel.outside = &outside;
    std::lock_guard lock(mutex_);
    const std::size_t row = count_.load(std::memory_order_relaxed);
    const auto same_name = [&](const Kernel& other) { return std::string_view(other.name) == outside.name; };
    if (std::any_of(kernels_.begin(), kernels_.end(), same_name)) return SPARSELOOM_NAME_TAKEN;
    if (row == own_ + kMostFromOutside) return SPARSELOOM_FULL;
    kernels_.push_back(kernel);
    count_.store(row + 1, std::memory_order_release);
    enter(kernels_.back());
    return static_cast<int>(row);
  }

  std::span<const Kernel> kernels() const { return {kernels_.data(), count()}; }

 private:
  static void enter(const Kernel& kernel) {
    const plan::AnyRow row = bsr_linear::any_row(kernel);
    sparseloom_register_row(&row);
  }
  std::size_t count() const { return count_.load(std::memory_order_acquire); }

  std::mutex mutex_;
  std::vector<Kernel> kernels_;
  std::size_t own_ = 0;
  std::atomic<std::size_t> count_{0};
};

Registry& all() {
  static Registry registry;
  return registry;
}

}  // namespace

std::span<const Kernel> registry() { return all().kernels(); }

namespace {

const KnownRates& machine() {
  static const KnownRates known = known_rates(runtime::cache_folder(), runtime::active_isa());
  return known;
}

}  // namespace

const plan::MachineRates& machine_rates() { return machine().rates; }
const std::string& machine_rates_origin() { return machine().origin; }

}  // namespace sparseloom::kernels

int sparseloom_register_kernel(const SparseloomKernel* kernel) {
  if (kernel == nullptr || kernel->size != sizeof(SparseloomKernel) || kernel->abi != SPARSELOOM_KERNEL_ABI ||
      kernel->problem_size != sizeof(sparseloom::Problem) ||
      kernel->args_size != sizeof(sparseloom::MatmulArgs))
    return SPARSELOOM_OTHER_ABI;
  if (kernel->name == nullptr || kernel->name[0] == 0 || kernel->refusal == nullptr ||
      kernel->predict_us == nullptr || kernel->launch == nullptr)
    return SPARSELOOM_INCOMPLETE;
  return sparseloom::kernels::all().add(*kernel);
}
