// The rows of this library in the registry of the process (plan/registry.h).
#pragma once

#include <string>
#include <vector>

#include "kernels/bsr_linear/verb.h"

namespace sparseloom::ops {

/// Enters the rows of this library, once: the fast kernels of each verb, then `dense`, then `reference`,
/// which LinearOf enters for its verbs. It is called before anything reads the registry or adds to it, so
/// that these rows come first.
void enter_own_rows();

/// A kernel of the verbs of sparseloom/bsr_linear.h, of this library or from outside.
struct Listed {
  const char* name;
  Placement where;
  runtime::Isa isa;  // generic for kernels from outside: they refuse what they cannot run
};

/// All rows in the order of registration; a name that both verbs use appears once.
std::vector<Listed> listed_kernels();

}  // namespace sparseloom::ops
