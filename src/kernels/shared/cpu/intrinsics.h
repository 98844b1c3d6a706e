// Includes <immintrin.h> without a false warning of gcc 12: its unmasked AVX-512 intrinsics pass an
// "undefined" operand, which -Wall reports.
#pragma once

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
