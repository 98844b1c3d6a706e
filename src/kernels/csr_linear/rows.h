// The rows of this library for the verb csr_linear. LinearOf adds `dense` and `reference` after the CPU's.
// Each CUDA row is in row.cpp of its method's folder, beside the kernel: its refusals, predicted time and
// launch. All entries are asynchronous, allocate nothing and may be captured in a CUDA graph. Every output is
// summed in an order that depends on the problem alone.
#pragma once

#include <span>

#include "kernels/shared/cost/cost_terms.h"
#include "plan/machine.h"
#include "sparseloom/csr_linear.h"

namespace sparseloom::kernels {

using CsrRow = Row<CsrLinear>;

/// In order of preference at equal predictions. Empty on other machines than x86-64.
std::span<const CsrRow> csr_cpu_rows();

/// In order of preference at equal predictions. Empty in a build without CUDA.
std::span<const CsrRow> csr_cuda_rows();

namespace cuda::csr_rows {

/// The first refusals of every row here but `dense`: operands of at most 32 bits, and a product that is not
/// empty.
Refusal refuse(const LinearProblem& problem);

/// Bytes of the stored elements and their columns.
double stored_bytes(const LinearProblem& problem);

CsrRow gather();
CsrRow slabs();
CsrRow sampled();
CsrRow dense();

}  // namespace cuda::csr_rows
}  // namespace sparseloom::kernels
