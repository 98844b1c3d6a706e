// The operand lists of wgmma, which name every register of the sums: of 8 to 96 registers, for instructions
// on 16 to 192 columns. r is the constraint of a sum, "+f" or "+r"; the sums are d[i], d[i + 1], ..
#pragma once

#define SPARSELOOM_LIST_SUMS_8(r, i) \
  r(d[i]), r(d[i + 1]), r(d[i + 2]), r(d[i + 3]), r(d[i + 4]), r(d[i + 5]), r(d[i + 6]), r(d[i + 7])
#define SPARSELOOM_LIST_SUMS_16(r, i) SPARSELOOM_LIST_SUMS_8(r, i), SPARSELOOM_LIST_SUMS_8(r, i + 8)
#define SPARSELOOM_LIST_SUMS_32(r, i) SPARSELOOM_LIST_SUMS_16(r, i), SPARSELOOM_LIST_SUMS_16(r, i + 16)
#define SPARSELOOM_LIST_SUMS_64(r, i) SPARSELOOM_LIST_SUMS_32(r, i), SPARSELOOM_LIST_SUMS_32(r, i + 32)
#define SPARSELOOM_LIST_SUMS_96(r, i) SPARSELOOM_LIST_SUMS_64(r, i), SPARSELOOM_LIST_SUMS_32(r, i + 64)
#define SPARSELOOM_LIST_NAMES_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define SPARSELOOM_LIST_NAMES_16 \
  SPARSELOOM_LIST_NAMES_8        \
  ", %8, %9, %10, %11, %12, %13, %14, %15"
#define SPARSELOOM_LIST_NAMES_32 \
  SPARSELOOM_LIST_NAMES_16       \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define SPARSELOOM_LIST_NAMES_64                                                                      \
  SPARSELOOM_LIST_NAMES_32                                                                            \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, " \
  "%51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define SPARSELOOM_LIST_NAMES_96                                                                      \
  SPARSELOOM_LIST_NAMES_64                                                                            \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, " \
  "%83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
