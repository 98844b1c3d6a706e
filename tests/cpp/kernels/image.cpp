#include "kernels/image.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

namespace sparseloom::testing {
namespace {

constexpr std::size_t kAlignment = 256;
// Wider than what one thread block could reach past an edge by a row of the widest block: 128 x 4 bytes.
constexpr std::size_t kBetween = 1024;

template <class T>
std::size_t bytes_of(const std::vector<T>& list) {
  return list.size() * sizeof(T);
}

// The guard behind each matrix is the image's matter here.
std::size_t bytes_of(const Matrix& matrix) { return matrix.bytes.size() - kGuard; }

}  // namespace

Image::Image(Instance& instance, std::size_t workspace_bytes) : instance_(instance) {
  Instance& i = instance;
  const Direction direction = i.c.direction;
  Matrix& a = direction == Direction::forward ? i.x : i.dy;
  add("a", a.bytes.data(), bytes_of(a));
  if (direction == Direction::dw)
    add("b", i.x.bytes.data(), bytes_of(i.x));
  else
    add("values", i.values.bytes.data(), bytes_of(i.values));
  if (i.c.bias) add("bias", i.bias.bytes.data(), bytes_of(i.bias));
  if (i.c.residual) add("residual", i.residual.bytes.data(), bytes_of(i.residual));
  add("crow", i.crow.data(), bytes_of(i.crow));
  add("col", i.col.data(), bytes_of(i.col));
  if (direction == Direction::dx) {
    add("ccol", i.ccol.data(), bytes_of(i.ccol));
    add("row", i.row.data(), bytes_of(i.row));
    add("slot", i.slot.data(), bytes_of(i.slot));
  }
  add("out", i.c.accumulate ? i.before.bytes.data() : nullptr, bytes_of(i.poisoned_output()), true);
  add("workspace", nullptr, workspace_bytes, true);
  bytes_.resize(places_.back().offset + places_.back().bytes + kBetween);
  refresh();
}

void Image::add(const char* name, const void* source, std::size_t bytes, bool written) {
  const std::size_t end = places_.empty() ? 0 : places_.back().offset + places_.back().bytes;
  places_.push_back({name, static_cast<const std::byte*>(source), bytes,
                     (end + kBetween + kAlignment - 1) / kAlignment * kAlignment, written});
}

const Image::Place& Image::place(const char* name) const {
  return *std::find_if(places_.begin(), places_.end(),
                       [name](const Place& p) { return std::strcmp(p.name, name) == 0; });
}

void Image::refresh() {
  std::fill(bytes_.begin(), bytes_.end(), kPoison);
  for (const Place& p : places_)
    if (p.source && p.bytes) std::memcpy(bytes_.data() + p.offset, p.source, p.bytes);
}

MatmulArgs Image::args(std::span<std::byte* const> addresses) const {
  // Pointers into the instance's memory, moved along with the place that they lie in.
  const auto moved = [&]<class T>(T* host) -> T* {
    const auto* at = reinterpret_cast<const std::byte*>(host);
    for (std::size_t i = 0; host && i < places_.size(); ++i)
      if (places_[i].bytes && places_[i].source && at >= places_[i].source &&
          at < places_[i].source + places_[i].bytes)
        return reinterpret_cast<T*>(addresses[i] + (at - places_[i].source));
    return nullptr;
  };
  MatmulArgs args = instance_.args();
  args.a = moved(args.a);
  args.b = moved(args.b);
  args.values = moved(args.values);
  args.bias = moved(args.bias);
  args.residual = moved(args.residual);
  args.index.crow = moved(args.index.crow);
  args.index.col = moved(args.index.col);
  args.transposed = {moved(args.transposed.ccol), moved(args.transposed.row), moved(args.transposed.slot)};
  Matrix out = instance_.poisoned_output();
  const std::size_t at_out = places_.size() - 2, at_workspace = places_.size() - 1;
  if (places_[at_out].bytes)
    args.out = addresses[at_out] + out.offset * static_cast<std::int64_t>(size_of(out.dtype));
  args.out_stride = out.stride;
  if (places_[at_workspace].bytes) args.workspace = addresses[at_workspace];
  return args;
}

MatmulArgs Image::args(std::byte* base) const {
  std::vector<std::byte*> addresses;
  for (const Place& p : places_) addresses.push_back(base + p.offset);
  return args(addresses);
}

Matrix Image::output(std::span<const std::byte> after) const {
  Matrix out = instance_.poisoned_output();
  const Place& p = place("out");
  std::copy_n(after.begin() + static_cast<std::ptrdiff_t>(p.offset), p.bytes, out.bytes.begin());
  return out;
}

std::string Image::damage(std::span<const std::byte> after) const {
  if (!output(after).padding_untouched()) return "wrote between or before the rows of its output";
  std::size_t next = 0;
  const auto compare = [&](std::size_t end) -> std::string {
    const auto first = bytes_.begin() + static_cast<std::ptrdiff_t>(next),
               last = bytes_.begin() + static_cast<std::ptrdiff_t>(end);
    const auto [at, unused] = std::mismatch(first, last, after.begin() + static_cast<std::ptrdiff_t>(next));
    if (at == last) return {};
    const auto byte = static_cast<std::size_t>(at - bytes_.begin());
    std::size_t end_before = 0;
    std::string behind = "the guard";
    for (const Place& p : places_) {
      if (byte < p.offset && p.offset - byte < byte - end_before)
        return "wrote " + std::to_string(p.offset - byte) + " bytes before " + p.name;
      if (byte < p.offset) break;
      if (byte < p.offset + p.bytes)
        return "wrote into " + std::string(p.name) + " at byte " + std::to_string(byte - p.offset);
      end_before = p.offset + p.bytes;
      behind = p.name;
    }
    return "wrote at byte " + std::to_string(byte - end_before) + " behind " + behind;
  };
  for (const Place& p : places_) {
    if (!p.written) continue;
    if (std::string found = compare(p.offset); !found.empty()) return found;
    next = p.offset + p.bytes;
  }
  return compare(bytes_.size());
}

}  // namespace sparseloom::testing
