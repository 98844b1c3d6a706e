// Where a weight is cut between devices.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sparseloom/export.h"

namespace sparseloom::pattern {

/// Cuts lines of blocks into `parts` runs of consecutive lines that store about as many blocks each. Returns
/// parts + 1 borders, from 0 to the number of lines.
///
/// `stored` has the stored blocks of each line: of a block row or block column, of one weight or of several
/// that share the cut. Every border lies where the blocks before it are nearest to their share; among equally
/// near ones, where the lines are nearest to theirs. Two parts then differ by at most twice the blocks of the
/// fullest line, and by nothing where equal parts exist; but every part has at least one line, however full
/// its neighbours are. Throws Error for less than one part, for fewer lines than parts, and for a count
/// outside [0, 2^31 - 1].
SPARSELOOM_API std::vector<std::int64_t> cut_lines(std::span<const std::int64_t> stored, std::int64_t parts);

}  // namespace sparseloom::pattern
