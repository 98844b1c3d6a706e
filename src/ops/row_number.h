// How operators name a row: by its number in the registry, which costs less per call than its name.
#pragma once

#include <cstdint>
#include <string>

#include "sparseloom/export.h"

namespace sparseloom::ops {

/// The number of the first row of that name, whatever its verb: two verbs that use a name mean the same
/// kernel. Throws Error if there is none.
SPARSELOOM_API std::int64_t row_number(const std::string& name);

/// The name of that row, or "" for -1, the plan's own choice. Throws Error in the name of `op` if there is no
/// such row.
SPARSELOOM_API std::string row_name(const char* op, std::int64_t number);

}  // namespace sparseloom::ops
