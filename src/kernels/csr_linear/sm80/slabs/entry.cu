#include <climits>

#include "kernels/csr_linear/sm80/entries.h"
#include "kernels/csr_linear/sm80/slabs/kernel.cuh"
#include "kernels/shared/early_launch.cuh"

namespace sparseloom::kernels::cuda {
namespace {

using namespace csr;

template <class T, int kPerLane>
int run(const CsrProduct& product, const slabs::Cut& cut, int most) {
  using Bits = typename T::Bits;
  const MatmulArgs& args = product.args;
  const CsrView& w = product.w;
  SlabParams<T> p{};
  p.out = rows_of<T>(args, w);
  p.room = slabs::room_of(cut, sizeof(Bits), p.out.depth, most);
  p.rows = cut.rows;
  p.row_blocks = (p.out.rows + cut.rows - 1) / cut.rows;
  p.values = static_cast<const Bits*>(args.values);
  const std::int64_t blocks = p.row_blocks * ((args.m + cut.tokens() - 1) / cut.tokens());
  if (p.room.bytes > most || blocks > INT_MAX) return cudaErrorInvalidValue;
  if (args.direction == Direction::dx) {
    if (const int error = csr_by_column(args.dtype, w, args.values, args.workspace, args.stream); error != 0)
      return error;
    p.values = reinterpret_cast<const Bits*>(args.workspace);
  }
  constexpr auto kKernel = slab_kernel<T, kPerLane>;
  if (const cudaError_t error = allow_shared_memory<kKernel>(most, args.device, 100); error != 0)
    return error;
  kKernel<<<static_cast<unsigned>(blocks), kSlabThreads, p.room.bytes,
            static_cast<cudaStream_t>(args.stream)>>>(p);
  return cudaGetLastError();
}

}  // namespace

std::size_t csr_slabs_workspace(Direction direction, std::int64_t stored, DType dtype) {
  return direction == Direction::dx ? static_cast<std::size_t>(stored) * size_of(dtype) : 0;
}

int sm80_csr_slabs(const CsrProduct& product, int cut, int most) noexcept {
  const MatmulArgs& args = product.args;
  if (args.direction == Direction::dw || cut < 0 || cut >= slabs::kCutCount) return cudaErrorInvalidValue;
  if (args.direction == Direction::dx && product.w.ccol == nullptr) return cudaErrorInvalidValue;
  const slabs::Cut& shape = slabs::kCuts[cut];
  return with_element(args.dtype, [&]<class T>(T) {
    return shape.per_lane == 1 ? run<T, 1>(product, shape, most) : run<T, 2>(product, shape, most);
  });
}

}  // namespace sparseloom::kernels::cuda
