// <immintrin.h> without gcc 12's false alarm: its unmasked AVX-512 intrinsics pass an "undefined" operand,
// which -Wall reports.
#pragma once

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
