// The table of activations. The enum, the names that plans and torch know, and the check of codes come from
// it; each set of kernels has one function for each row, found by the row's name.
#pragma once

#include <cstdint>
#include <iterator>

/// Calls ROW(C++ name, torch name) for each activation that is a function, in the order of the codes. A row's
/// place is its code, which exported programs hold: new rows go last.
#define SPARSELOOM_ACTIVATION_FUNCTIONS(ROW)                                                       \
  ROW(relu, "relu")           /* max(x, 0) */                                                      \
  ROW(gelu_erf, "gelu")       /* x Phi(x) (Hendrycks & Gimpel 2016) */                             \
  ROW(gelu_tanh, "gelu_tanh") /* its tanh form: .5 x (1 + tanh(sqrt(2 / pi) (x + .044715 x^3))) */ \
  ROW(silu, "silu")           /* x sigmoid(x) */                                                   \
  ROW(relu2, "relu2")         /* max(x, 0)^2 (So et al. 2021) */

/// The same with `none`, the identity, whose code is 0.
#define SPARSELOOM_ACTIVATIONS(ROW) ROW(none, "none") SPARSELOOM_ACTIVATION_FUNCTIONS(ROW)

namespace sparseloom {

/// What a forward product applies to its sums.
enum class Activation : std::uint8_t {
#define SPARSELOOM_ROW(name, torch_name) name,
  SPARSELOOM_ACTIVATIONS(SPARSELOOM_ROW)
#undef SPARSELOOM_ROW
};

struct ActivationRow {
  Activation activation;
  const char* name;        // in plans and errors
  const char* torch_name;  // in the PyTorch front
};

/// The table, indexed by code.
inline constexpr ActivationRow kActivations[] = {
#define SPARSELOOM_ROW(name, torch_name) {Activation::name, #name, torch_name},
    SPARSELOOM_ACTIVATIONS(SPARSELOOM_ROW)
#undef SPARSELOOM_ROW
};
inline constexpr int kActivationCount = static_cast<int>(std::size(kActivations));

}  // namespace sparseloom
