// For kernels from outside of the library: what a kernel gets, and how it enters the registry from which
// plans choose. docs/add_a_kernel.md has an example.
#pragma once

#include <cstddef>
#include <cstdint>

#include "sparseloom/executor.h"
#include "sparseloom/export.h"
#include "sparseloom/layout_concept.h"
#include "sparseloom/matmul_args.h"
#include "sparseloom/plan.h"

extern "C" {

/// Changes when a member of SparseloomKernel, or what a function of it may expect, does.
#define SPARSELOOM_KERNEL_ABI 1u

/// A kernel from outside, as a row of the registry. Everything that it points to has to live as long as the
/// process. The functions may be called by several threads at once, and throw nothing.
struct SparseloomKernel {
  std::uint32_t size;           // sizeof(SparseloomKernel)
  std::uint32_t abi;            // SPARSELOOM_KERNEL_ABI
  std::uint32_t problem_size;   // sizeof(sparseloom::Problem)
  std::uint32_t args_size;      // sizeof(sparseloom::MatmulArgs)
  const char* name;             // unlike every other row's
  std::uint32_t on_cuda;        // 0: for operands on the CPU, 1: on CUDA devices
  std::uint32_t needs_aligned;  // 1: only problems that are `aligned`
  /// Why the kernel cannot run the problem, in words that a user can act on; null if it can. 8-bit operands
  /// are refused without asking.
  const char* (*refusal)(const sparseloom::Problem* problem);
  /// The predicted time of a call in microseconds; the plan takes the lowest. Asked only if it does not
  /// refuse.
  double (*predict_us)(const sparseloom::Problem* problem);
  /// Bytes of workspace; null: none.
  std::size_t (*workspace_bytes)(const sparseloom::Problem* problem);
  /// Runs the product on the executor's threads, or queues it on args->stream. Returns 0 or a cudaError_t.
  int (*launch)(const sparseloom::MatmulArgs* args, const sparseloom::Executor* executor);
};

/// What sparseloom_register_kernel returns instead of a row's number.
enum {
  SPARSELOOM_OTHER_ABI = -1,   // the caller was built with other headers than the library: build it again
  SPARSELOOM_INCOMPLETE = -2,  // a name or function is missing
  SPARSELOOM_NAME_TAKEN = -3,  // another row has that name
  SPARSELOOM_FULL = -4,        // there are 64 kernels from outside
};

/// Adds a kernel to the registry of the process, for C++ and PyTorch alike. Returns its row, which it keeps,
/// or one of the numbers above. Plans made before are not made again: they know the rows of their time. Any
/// thread may call it at any time.
SPARSELOOM_API int sparseloom_register_kernel(const SparseloomKernel* kernel);

}  // extern "C"
