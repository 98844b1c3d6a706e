// The single kernel: products of one token, whose time is that of reading W. Stored elements are on the
// lanes, and x is gathered for each by single loads, which measured faster than the gathers of AVX2 and
// AVX-512.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/args.h"
#include "kernels/runs.h"
#include "sparseloom/csr.h"
#include "sparseloom/executor.h"

namespace sparseloom::kernels::cpu {

struct SingleJob {
  const MatmulArgs& args;
  CsrView w;
  const float* a;              // x (forward) or dy (dx, dw) in fp32
  const float* b;              // dw: x in fp32
  float* sums;                 // dx: [chunk][side][cols, rounded up to sixteens]
  std::int64_t chunks, sides;  // dx, as in CsrJob
};

struct SingleOps {
  Runs* runs;
  void (*widen)(DType dtype, const void* from, std::int64_t n, float* to);
  void (*forward)(const SingleJob& job, std::int64_t begin, std::int64_t end);
  void (*dx)(const SingleJob& job, std::int64_t chunk, std::int64_t begin, std::int64_t end);
  void (*write_dx)(const SingleJob& job, std::int64_t begin, std::int64_t end);
  void (*dw)(const SingleJob& job, std::int64_t begin, std::int64_t end);
};

std::size_t single_workspace(const CsrView& w, Direction direction, DType dtype);
void run_single(const SingleOps& ops, const MatmulArgs& args, const CsrView& w, const Executor& executor);

extern const SingleOps kCsrSingleAvx2;

}  // namespace sparseloom::kernels::cpu
