// The rows of the CUDA kernels: what each can do, what it will take, and its launch.
#include "kernels/cuda/kernels.h"

#include <algorithm>
#include <string>

#include "kernels/cuda/cost.h"
#include "kernels/cuda/launch.h"

namespace sparseloom::kernels {

#ifdef SPARSELOOM_HAVE_CUDA
namespace {

using plan::Machine;
using runtime::Isa;

std::string refuse_mma(const Problem& p, const Machine&) {
  if (p.dtype == DType::f32 && !p.tf32)
    return "would round f32 operands to TF32, which torch.backends.cuda.matmul.allow_tf32 (or Problem::tf32) does not allow";
  return {};
}

std::string refuse_ffma(const Problem& p, const Machine&) {
  if (p.dtype != DType::f32) return std::string("multiplies f32 only, the dtype is ") + name_of(p.dtype);
  return {};
}

std::string refuse_decode(const Problem& p, const Machine&) {
  if (p.direction == Direction::dw) return "does forward and dx only: dw reads both operands whole";
  if (p.m > cuda::kDecodeTokens)
    return "takes at most " + std::to_string(cuda::kDecodeTokens) + " tokens, the call has " + std::to_string(p.m);
  return {};
}

std::string refuse_decode_staged(const Problem& p, const Machine& machine) {
  if (std::string why = refuse_decode(p, machine); !why.empty()) return why;
  if (p.direction != Direction::forward) return "does forward only";
  if (size_of(p.dtype) != 2) return std::string("multiplies f16 and bf16 only, the dtype is ") + name_of(p.dtype);
  if (std::max(p.block.rows, p.block.cols) > cuda::kStagedBlock)
    return "takes blocks of at most " + std::to_string(cuda::kStagedBlock) + " on each side, the block is " + to_string(p.block);
  return {};
}

std::string refuse_wgmma(const Problem& p, const Machine& machine) {
  if (machine.cuda.sm != 90) return "needs a Hopper GPU (compute capability 9.0): its instructions exist nowhere else";
  if (size_of(p.dtype) != 2) return std::string("multiplies f16 and bf16 only, the dtype is ") + name_of(p.dtype);
  if (std::min(p.block.rows, p.block.cols) < 32)
    return "needs blocks of 32 or more on both sides, the block is " + to_string(p.block);
  return {};
}

std::size_t no_workspace(const Problem&, const Machine&) { return 0; }

// Also of the kernels that may hand over to it.
std::size_t mma_workspace(const Problem& p, const Machine& machine) {
  return p.direction == Direction::dw ? cuda::sm80_mma_sdd_workspace(p, machine.cuda.multiprocessors) : 0;
}

}  // namespace

std::span<const Kernel> cuda_kernels() {
  static const Kernel kernels[] = {
      {{"sm90_wgmma", plan::Side::cuda, Isa::generic, refuse_wgmma,
        [](const Problem& p, const Machine& machine) { return cuda::predict_wgmma_us(p, machine.cuda); }, mma_workspace},
       [](const MatmulArgs& args, const Executor&) {
         return args.direction == Direction::dw ? cuda::sm90_wgmma_sdd(args) : cuda::sm90_wgmma_dds(args);
       }},
      {{"sm80_mma", plan::Side::cuda, Isa::generic, refuse_mma,
        [](const Problem& p, const Machine& machine) { return cuda::predict_mma_us(p, machine.cuda); }, mma_workspace},
       [](const MatmulArgs& args, const Executor&) {
         return args.direction == Direction::dw ? cuda::sm80_mma_sdd(args) : cuda::sm80_mma_dds(args);
       }},
      {{"sm80_ffma", plan::Side::cuda, Isa::generic, refuse_ffma,
        [](const Problem& p, const Machine& machine) { return cuda::predict_ffma_us(p, machine.cuda); },
        [](const Problem& p, const Machine& machine) {
          return p.direction == Direction::dw ? cuda::sm80_ffma_sdd_workspace(p, machine.cuda.multiprocessors) : 0;
        }},
       [](const MatmulArgs& args, const Executor&) {
         return args.direction == Direction::dw ? cuda::sm80_ffma_sdd(args) : cuda::sm80_ffma_dds(args);
       }},
      {{"sm80_decode", plan::Side::cuda, Isa::generic, refuse_decode,
        [](const Problem& p, const Machine& machine) { return cuda::predict_decode_us(p, machine.cuda); }, no_workspace},
       [](const MatmulArgs& args, const Executor&) { return cuda::sm80_decode(args); }},
      {{"sm80_decode_staged", plan::Side::cuda, Isa::generic, refuse_decode_staged,
        [](const Problem& p, const Machine& machine) { return cuda::predict_decode_staged_us(p, machine.cuda); }, no_workspace},
       [](const MatmulArgs& args, const Executor&) { return cuda::sm80_decode_staged(args); }},
  };
  return kernels;
}

#else

std::span<const Kernel> cuda_kernels() { return {}; }

#endif

}  // namespace sparseloom::kernels
