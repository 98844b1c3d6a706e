// Registers operators with torch, in a namespace that namespace.cpp alone knows: a build with another
// namespace compiles that file and links.
#pragma once

#include <torch/csrc/stable/library.h>

namespace sparseloom::binding {

/// The operators' namespace: "sparseloom", or SPARSELOOM_TORCH_NAMESPACE in a kernel (cmake/kernel.cmake).
extern const char kTorchNamespace[];

using torch::stable::detail::StableLibrary;
using torch::stable::detail::StableTorchLibraryInit;

}  // namespace sparseloom::binding

// STABLE_TORCH_LIBRARY and STABLE_TORCH_LIBRARY_IMPL, which expand to the same, take a namespace that is
// written in each file: another one would compile all of them again, a CPU minute
// (tools/compile_budget.json).
#define SPARSELOOM_TORCH_LIBRARY(m) SPARSELOOM_REGISTRATION(DEF, schemas, nullptr, m)
#define SPARSELOOM_TORCH_LIBRARY_IMPL(key, m) SPARSELOOM_REGISTRATION(IMPL, key, #key, m)

#define SPARSELOOM_REGISTRATION(kind, name, key, m)                           \
  static void register_##name(sparseloom::binding::StableLibrary&);           \
  static const sparseloom::binding::StableTorchLibraryInit registered_##name( \
      sparseloom::binding::StableLibrary::Kind::kind, &register_##name,       \
      sparseloom::binding::kTorchNamespace, key, __FILE__, __LINE__);         \
  void register_##name(sparseloom::binding::StableLibrary& m)
