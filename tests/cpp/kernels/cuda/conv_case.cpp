#include "kernels/cuda/conv_case.h"

#include <cmath>
#include <limits>
#include <random>

namespace sparseloom::testing {
namespace {

using kernels::conv::Axis;

std::int64_t blocks_along(std::int64_t size, int side) { return (size + side - 1) / side; }

/// [rows, width] as [rows, stride] elements of the dtype, NaN between the rows.
std::vector<std::byte> bytes_of(DType dtype, const std::vector<double>& list, std::int64_t width,
                                std::int64_t stride) {
  const auto size = static_cast<std::int64_t>(size_of(dtype));
  const std::int64_t rows = width == 0 ? 0 : static_cast<std::int64_t>(list.size()) / width;
  std::vector<std::byte> bytes(static_cast<std::size_t>(rows * stride * size), kPoison);
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < width; ++c)
      store(dtype, bytes.data(), r * stride + c, list[static_cast<std::size_t>(r * width + c)]);
  return bytes;
}

template <class T>
std::vector<std::byte> raw(const std::vector<T>& list) {
  std::vector<std::byte> bytes(list.size() * sizeof(T));
  if (!list.empty()) std::memcpy(bytes.data(), list.data(), bytes.size());
  return bytes;
}

double rounded(DType dtype, double value) {
  std::byte bytes[8];
  store(dtype, bytes, 0, value);
  return load(dtype, bytes, 0);
}

}  // namespace

Axis axis_of(int in, int kernel, int stride, int padding, int dilation) {
  return {in,      (in + 2 * padding - dilation * (kernel - 1) - 1) / stride + 1, kernel, stride, padding,
          dilation};
}

std::string describe(const ConvCase& c) {
  std::string text = std::string(name_of(c.dtype)) + " direction " +
                     std::to_string(static_cast<int>(c.direction)) + " images " +
                     std::to_string(c.shape.images) + " channels " + std::to_string(c.rows) + " x " +
                     std::to_string(c.cols) + " block " + std::to_string(c.block.rows) + " x " +
                     std::to_string(c.block.cols);
  for (const Axis& a : c.shape.axis)
    text += " | in " + std::to_string(a.in) + " kernel " + std::to_string(a.kernel) + " stride " +
            std::to_string(a.stride) + " padding " + std::to_string(a.padding) + " dilation " +
            std::to_string(a.dilation);
  return text;
}

std::int64_t ConvCall::in_pixels() const {
  const auto& a = c_.shape.axis;
  return std::int64_t{c_.shape.images} * a[0].in * a[1].in * a[2].in;
}
std::int64_t ConvCall::out_pixels() const {
  const auto& a = c_.shape.axis;
  return std::int64_t{c_.shape.images} * a[0].out * a[1].out * a[2].out;
}

ConvCall::ConvCall(const ConvCase& c, bool special) : c_(c) {
  fill_index();
  std::mt19937_64 random(c.seed + 17);
  const auto integers = [&](std::int64_t count) {
    std::vector<double> list(static_cast<std::size_t>(count));
    for (double& v : list) v = static_cast<double>(static_cast<int>(random() % 5) - 2);
    return list;
  };
  const std::int64_t taps = c.shape.taps(), blocks = static_cast<std::int64_t>(col_.size());
  const std::int64_t elements = blocks * taps * c.block.rows * c.block.cols;
  x_ = integers(in_pixels() * c.cols);
  dy_ = integers(out_pixels() * c.rows);
  values_ = integers(elements);
  // Padding of blocks is zero by contract.
  std::int64_t at = 0;
  for (std::int64_t r = 0; r + 1 < static_cast<std::int64_t>(crow_.size()); ++r)
    for (std::int32_t b = crow_[static_cast<std::size_t>(r)]; b < crow_[static_cast<std::size_t>(r) + 1]; ++b)
      for (std::int64_t t = 0; t < taps; ++t)
        for (int i = 0; i < c.block.rows; ++i)
          for (int j = 0; j < c.block.cols; ++j, ++at)
            if (r * c.block.rows + i >= c.rows ||
                std::int64_t{col_[static_cast<std::size_t>(b)]} * c.block.cols + j >= c.cols)
              values_[static_cast<std::size_t>(at)] = 0;
  if (special) {
    // A block column that no block row stores, and a block row without blocks: see fill_index.
    for (std::int64_t p = 0; p < in_pixels(); ++p)
      for (std::int64_t j = 0; j < c.block.cols && j < c.cols; ++j)
        x_[static_cast<std::size_t>(p * c.cols + j)] =
            p % 2 == 0 ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
    for (std::int64_t p = 0; p < out_pixels(); ++p)
      for (std::int64_t i = 0; i < c.block.rows && i < c.rows; ++i)
        dy_[static_cast<std::size_t>(p * c.rows + i)] = std::numeric_limits<double>::infinity();
  }
  const bool dx = c.direction == Direction::dx, dw = c.direction == Direction::dw;
  answer_rows_ = dw ? blocks * taps * c.block.rows : dx ? in_pixels() : out_pixels();
  answer_cols_ = dw ? c.block.cols : dx ? c.cols : c.rows;
  answer_stride_ = dw ? answer_cols_ : answer_cols_ + c.padding;
  answer_dtype_ = dw && c.accumulate ? DType::f32 : c.dtype;
  if (c.bias && !dw) bias_ = integers(answer_cols_);
  if (c.residual && !dw) residual_ = integers(answer_rows_ * answer_cols_);
  if (c.accumulate) {
    before_ = integers(elements);
    for (std::size_t i = 0; i < before_.size(); ++i)
      if (values_[i] == 0) before_[i] = 0;
  }
  find_answer();

  const auto put = [&](const std::vector<std::byte>& bytes) {
    memory_.push_back(std::make_unique<OnGpu>(bytes));
    return memory_.back()->get();
  };
  args_.direction = c.direction;
  args_.dtype = c.dtype;
  args_.activation = c.relu && !dw ? Activation::relu : Activation::none;
  args_.m = dx ? in_pixels() : out_pixels();
  const std::vector<double>& a = c.direction == Direction::forward ? x_ : dy_;
  const std::int64_t a_width = c.direction == Direction::forward ? c.cols : c.rows;
  args_.a = put(bytes_of(c.dtype, a, a_width, a_width + c.padding));
  args_.a_stride = a_width + c.padding;
  if (dw) {
    args_.b = put(bytes_of(c.dtype, x_, c.cols, c.cols + c.padding));
    args_.b_stride = c.cols + c.padding;
  }
  args_.index.rows = c.rows, args_.index.cols = c.cols, args_.index.block = c.block;
  args_.index.blocks = blocks;
  args_.index.crow = reinterpret_cast<const std::int32_t*>(put(raw(crow_)));
  args_.index.col = reinterpret_cast<const std::int32_t*>(put(raw(col_)));
  args_.transposed.ccol = reinterpret_cast<const std::int32_t*>(put(raw(ccol_)));
  args_.transposed.row = reinterpret_cast<const std::int32_t*>(put(raw(row_)));
  args_.transposed.slot = reinterpret_cast<const std::int32_t*>(put(raw(slot_)));
  if (!dw) args_.values = put(bytes_of(c.dtype, values_, c.block.cols, c.block.cols));
  if (!bias_.empty()) args_.bias = put(bytes_of(c.dtype, bias_, answer_cols_, answer_cols_));
  if (!residual_.empty()) {
    args_.residual = put(bytes_of(c.dtype, residual_, answer_cols_, answer_stride_));
    args_.residual_stride = answer_stride_;
  }
  const std::vector<double> nothing(static_cast<std::size_t>(answer_rows_ * answer_cols_),
                                    std::numeric_limits<double>::quiet_NaN());
  args_.out = put(bytes_of(answer_dtype_, c.accumulate ? before_ : nothing, answer_cols_, answer_stride_));
  out_ = memory_.back().get();
  args_.out_stride = answer_stride_;
  args_.accumulate = c.accumulate;
  args_.tf32 = true;
  args_.device = 0;
}

// The first block row and the first block column are empty if there are others; the rest is random.
void ConvCall::fill_index() {
  std::mt19937_64 random(c_.seed);
  const std::int64_t block_rows = blocks_along(c_.rows, c_.block.rows),
                     block_columns = blocks_along(c_.cols, c_.block.cols);
  std::vector<std::vector<std::int32_t>> columns(static_cast<std::size_t>(block_columns));
  std::vector<std::vector<std::int32_t>> slots(columns.size());
  crow_ = {0};
  for (std::int64_t r = 0; r < block_rows; ++r) {
    for (std::int64_t k = 0; k < block_columns; ++k) {
      if ((r == 0 && block_rows > 1) || (k == 0 && block_columns > 1)) continue;
      if (static_cast<double>(random() % 1000) >= 1000 * c_.density && r + k > 0 && !(r == 1 && k == 1))
        continue;
      columns[static_cast<std::size_t>(k)].push_back(static_cast<std::int32_t>(r));
      slots[static_cast<std::size_t>(k)].push_back(static_cast<std::int32_t>(col_.size()));
      col_.push_back(static_cast<std::int32_t>(k));
    }
    crow_.push_back(static_cast<std::int32_t>(col_.size()));
  }
  ccol_ = {0};
  for (std::size_t k = 0; k < columns.size(); ++k) {
    row_.insert(row_.end(), columns[k].begin(), columns[k].end());
    slot_.insert(slot_.end(), slots[k].begin(), slots[k].end());
    ccol_.push_back(static_cast<std::int32_t>(row_.size()));
  }
}

void ConvCall::find_answer() {
  const auto& a = c_.shape.axis;
  const int bm = c_.block.rows, bn = c_.block.cols;
  answer_.assign(static_cast<std::size_t>(answer_rows_ * answer_cols_), 0.0);
  // Calls use(out pixel, x pixel, tap) for every pair that a tap brings together.
  const auto pairs = [&](auto use) {
    std::int64_t out_pixel = 0;
    for (int n = 0; n < c_.shape.images; ++n)
      for (int d = 0; d < a[0].out; ++d)
        for (int h = 0; h < a[1].out; ++h)
          for (int w = 0; w < a[2].out; ++w, ++out_pixel) {
            int tap = 0;
            for (int td = 0; td < a[0].kernel; ++td)
              for (int th = 0; th < a[1].kernel; ++th)
                for (int tw = 0; tw < a[2].kernel; ++tw, ++tap) {
                  const int xd = d * a[0].stride - a[0].padding + td * a[0].dilation,
                            xh = h * a[1].stride - a[1].padding + th * a[1].dilation,
                            xw = w * a[2].stride - a[2].padding + tw * a[2].dilation;
                  if (xd < 0 || xd >= a[0].in || xh < 0 || xh >= a[1].in || xw < 0 || xw >= a[2].in) continue;
                  use(out_pixel, ((std::int64_t{n} * a[0].in + xd) * a[1].in + xh) * a[2].in + xw, tap);
                }
          }
  };
  const std::int64_t taps = c_.shape.taps();
  pairs([&](std::int64_t p, std::int64_t q, int tap) {
    for (std::int64_t r = 0; r + 1 < static_cast<std::int64_t>(crow_.size()); ++r)
      for (std::int32_t b = crow_[static_cast<std::size_t>(r)]; b < crow_[static_cast<std::size_t>(r) + 1];
           ++b) {
        const std::int64_t first_column = std::int64_t{col_[static_cast<std::size_t>(b)]} * bn;
        for (std::int64_t i = 0; i < bm && r * bm + i < c_.rows; ++i)
          for (std::int64_t j = 0; j < bn && first_column + j < c_.cols; ++j) {
            const auto place = static_cast<std::size_t>(((b * taps + tap) * bm + i) * bn + j);
            const auto y = static_cast<std::size_t>(p * c_.rows + r * bm + i),
                       x = static_cast<std::size_t>(q * c_.cols + first_column + j);
            if (c_.direction == Direction::forward) answer_[y] += values_[place] * x_[x];
            if (c_.direction == Direction::dx) answer_[x] += values_[place] * dy_[y];
            if (c_.direction == Direction::dw) answer_[place] += dy_[y] * x_[x];
          }
      }
  });
  for (std::size_t i = 0; i < answer_.size(); ++i) {
    if (!bias_.empty()) answer_[i] += bias_[i % bias_.size()];
    if (c_.relu && c_.direction != Direction::dw) answer_[i] = std::max(answer_[i], 0.0);
    if (!residual_.empty()) answer_[i] += residual_[i];
    if (!before_.empty()) answer_[i] += before_[i];
  }
}

void ConvCall::compare() const {
  const std::vector<std::byte> bytes = out_->read();
  int wrong = 0;
  for (std::int64_t r = 0; r < answer_rows_ && wrong < 3; ++r)
    for (std::int64_t k = 0; k < answer_stride_ && wrong < 3; ++k) {
      const double got = load(answer_dtype_, bytes.data(), r * answer_stride_ + k);
      const bool padding = k >= answer_cols_;
      const double expected =
          padding ? 0 : rounded(answer_dtype_, answer_[static_cast<std::size_t>(r * answer_cols_ + k)]);
      if (padding ? std::isnan(got) : got == expected) continue;
      ++wrong;
      ADD_FAILURE() << describe(c_) << ": [" << r << ", " << k << "] is " << got << ", expected "
                    << (padding ? "nothing" : std::to_string(expected));
    }
}

}  // namespace sparseloom::testing
