// Shared by the ops that run a plan and the op that only tells of it.
#pragma once

#include <cstdint>
#include <string>

#include "sparseloom/layout.h"
#include "sparseloom/plan.h"

namespace sparseloom::binding {

/// "" for -1, else the name of that registry row; Error when there is none.
std::string kernel_name(const char* op, std::int64_t kernel);
Activation activation_of(const char* op, std::int64_t code);

/// Without bias and activation.
Problem problem_of(Direction direction, DType dtype, std::int64_t m, const IndexView& index, bool strict, bool tf32);

}  // namespace sparseloom::binding
