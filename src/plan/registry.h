// The rows of all verbs. It names no family.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "sparseloom/verb.h"

namespace sparseloom::plan {

/// The rows of a verb, in the order in which they were registered.
std::vector<AnyRow> rows_of(std::string_view verb);

/// The rows of all verbs, in that order.
std::vector<AnyRow> all_rows();

/// sparseloom_register_row, without entering the rows of this library first.
int add_row(const AnyRow& row);

/// The number of all rows. It is part of the key of the plan cache: a new row makes new plans.
std::size_t row_count() noexcept;

}  // namespace sparseloom::plan
