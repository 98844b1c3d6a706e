#include "registration.h"

#ifndef SPARSELOOM_TORCH_NAMESPACE
#define SPARSELOOM_TORCH_NAMESPACE "sparseloom"
#endif

namespace sparseloom::binding {

const char kTorchNamespace[] = SPARSELOOM_TORCH_NAMESPACE;

}  // namespace sparseloom::binding
