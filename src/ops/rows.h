// The rows of this library in the registry of the process (plan/registry.h).
#pragma once

#include <string>
#include <vector>

#include "kernels/bsr_linear/verb.h"

namespace sparseloom::ops {

/// Enters the rows of this library, once: of each verb the fast kernels, then `dense`, then `reference`,
/// which LinearOf enters for its verbs. It is called before anything reads the registry or adds to it, so
/// that these rows are the first.
void enter_own_rows();

/// A kernel of the verbs of sparseloom/bsr_linear.h, of this library or from outside.
struct Listed {
  const char* name;
  Placement where;
  runtime::Isa isa;  // generic for kernels from outside: they refuse what they cannot run
};

/// All of them in the order in which they were registered; a name that is of both verbs appears once.
std::vector<Listed> listed_kernels();

}  // namespace sparseloom::ops
