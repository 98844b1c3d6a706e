// What the operators share that explain a plan: their arguments by name, and the plan as JSON.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "sparseloom/direction.h"
#include "sparseloom/dtype.h"
#include "sparseloom/executor.h"
#include "sparseloom/verb.h"

namespace sparseloom::binding {

/// Throw Error in the name of `plan` on other names.
Direction direction_of(const std::string& name);
DType dtype_named(const std::string& name);

/// An executor for planning only. Planning queues no product, so it needs no stream, nor a GPU that this
/// torch could reach. `device`: a CUDA ordinal, or -1 for the CPU.
Executor planner(std::int64_t device);

/// {"kernel", "predicted_us", "workspace_bytes", "dense_copy_us", "candidates", "text"}. `copy_us`: what the
/// product with a dense copy of W would take, where the verb tells; else null. `dense_us`: one that makes
/// that copy, of verbs that have no row for it; the key of that name is there with a value alone.
std::string json_of(const Choice& plan, const std::optional<double>& copy_us, const std::string& text,
                    const std::optional<double>& dense_us = std::nullopt);

}  // namespace sparseloom::binding
