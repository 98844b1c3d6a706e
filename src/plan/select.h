// Filter by supports(), rank by predicted time, keep every refusal.
#pragma once

#include <span>
#include <string>

#include "plan/candidate.h"
#include "sparseloom/plan.h"

namespace sparseloom::plan {

/// Why the row cannot run the problem: its side, 8-bit operands where it takes none (or none unless
/// `forced`), or what it says itself; empty when it can.
std::string refusal_of(const KernelInfo& row, const Problem& problem, const Machine& machine,
                       const std::string& forced = {});

/// The fastest row by prediction that does not refuse, or the row called `forced` when it is not empty. Fills
/// kernel, kernel_name, candidates and workspace_bytes; ties go to the earlier row. Throws Error listing
/// every refusal when nothing can run, when `forced` names no row, or when the forced row refuses.
Plan select(const Problem& problem, std::span<const KernelInfo> rows, const Machine& machine,
            const std::string& forced = {});

}  // namespace sparseloom::plan
