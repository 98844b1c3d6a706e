// Chooses among kernels: drops those that refuse, ranks the others by predicted time, and keeps every
// refusal.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "plan/candidate.h"
#include "sparseloom/plan.h"

namespace sparseloom::plan {

/// Why the row cannot run the problem: it is for the other side, it takes no 8-bit operands (or takes them
/// only if `forced` names it), or its own refusal. Empty if it can.
std::string refusal_of(const KernelInfo& row, const Problem& problem, const Machine& machine,
                       const std::string& forced = {});

/// Which operands of the problem the row needs aligned.
Aligned alignment_of(const KernelInfo& row, const Problem& problem);

/// The row's prediction, and the bytes of workspace that it asks for, for a problem that it does not refuse.
double predicted_us(const KernelInfo& row, const Problem& problem, const Machine& machine);
std::size_t workspace_of(const KernelInfo& row, const Problem& problem, const Machine& machine);

/// Plans the row with the lowest predicted time that does not refuse, or the row named `forced` if that is
/// not empty. Fills kernel, kernel_name, candidates, caveat and workspace_bytes; ties go to the earlier row.
/// Throws Error listing every refusal if no row can run, if `forced` names no row, or if the forced row
/// refuses.
Plan select(const Problem& problem, std::span<const KernelInfo> rows, const Machine& machine,
            const std::string& forced = {});

}  // namespace sparseloom::plan
