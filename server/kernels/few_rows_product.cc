#include "server/kernels/few_rows_product.h"

#include <algorithm>
#include <cstring>

#include "ATen/Parallel.h"
#include "ATen/ops/empty.h"
#include "server/kernels/onednn_product.h"

namespace braid {
namespace {

// Multiplications per thread at least.
constexpr int64_t kGrain = int64_t{1} << 15;

struct Product {
  const float* x;
  const float* w;
  const float* bias;  // may be null
  float* y;
  int64_t in;
  int64_t out;  // also the stride of y's rows
};

#define BRAID_INLINE inline __attribute__((always_inline))

// Computes kColumns results of each of kRows rows, starting at `column`, with vectors of kWidth
// lanes.
template <int kWidth, int kRows, int kColumns>
BRAID_INLINE void Block(const Product& p, int64_t column) {
  typedef float Lanes __attribute__((vector_size(kWidth * sizeof(float))));
  Lanes sums[kRows][kColumns] = {};
  const float* const w = p.w + column * p.in;
  int64_t i = 0;
  for (; i + kWidth <= p.in; i += kWidth) {
    Lanes x[kRows];
    for (int r = 0; r < kRows; ++r) {
      std::memcpy(&x[r], p.x + r * p.in + i, sizeof(Lanes));
    }
    for (int c = 0; c < kColumns; ++c) {
      Lanes numbers;
      std::memcpy(&numbers, w + c * p.in + i, sizeof(Lanes));
      for (int r = 0; r < kRows; ++r) {
        sums[r][c] += numbers * x[r];
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kColumns; ++c) {
      float sum = 0;
      for (int lane = 0; lane < kWidth; ++lane) {
        sum += sums[r][c][lane];
      }
      for (int64_t rest = i; rest < p.in; ++rest) {
        sum += p.x[r * p.in + rest] * w[c * p.in + rest];
      }
      p.y[r * p.out + column + c] = p.bias == nullptr ? sum : sum + p.bias[column + c];
    }
  }
}

// Number of vector sums that fit in registers.
constexpr int kSums = 8;

template <int kWidth, int kRows>
BRAID_INLINE void Columns(const Product& p, int64_t begin, int64_t end) {
  constexpr int kColumns = kSums / kRows;
  int64_t column = begin;
  for (; column + kColumns <= end; column += kColumns) {
    Block<kWidth, kRows, kColumns>(p, column);
  }
  for (; column < end; ++column) {
    Block<kWidth, kRows, 1>(p, column);
  }
}

template <int kWidth>
BRAID_INLINE void Rows(const Product& p, int64_t rows, int64_t begin, int64_t end) {
  switch (rows) {
    case 1:
      return Columns<kWidth, 1>(p, begin, end);
    case 2:
      return Columns<kWidth, 2>(p, begin, end);
    case 3:
      return Columns<kWidth, 3>(p, begin, end);
    default:
      return Columns<kWidth, 4>(p, begin, end);
  }
}

void Width4(const Product& p, int64_t rows, int64_t begin, int64_t end) {
  Rows<4>(p, rows, begin, end);
}

#ifdef __x86_64__
__attribute__((target("avx2,fma"))) void Width8(const Product& p, int64_t rows, int64_t begin,
                                                int64_t end) {
  Rows<8>(p, rows, begin, end);
}

__attribute__((target("avx512f"))) void Width16(const Product& p, int64_t rows, int64_t begin,
                                                int64_t end) {
  Rows<16>(p, rows, begin, end);
}
#endif

using Kernel = void (*)(const Product& p, int64_t rows, int64_t begin, int64_t end);

Kernel KernelOf(VectorWidth width) {
#ifdef __x86_64__
  switch (width) {
    case VectorWidth::k16:
      return Width16;
    case VectorWidth::k8:
      return Width8;
    case VectorWidth::k4:
      break;
  }
#else
  static_cast<void>(width);
#endif
  return Width4;
}

// Returns the number of rows; 0 if FewRowsLinear() does not support it.
int64_t RowsOf(const at::Tensor& input, int64_t in) {
  if (input.dim() == 0 || input.size(-1) != in || in == 0 || input.numel() > kMaxFewRows * in) {
    return 0;
  }
  return input.numel() / in;
}

}  // namespace

std::vector<VectorWidth> VectorWidths() {
  std::vector<VectorWidth> widths;
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx512f") != 0) {
    widths.push_back(VectorWidth::k16);
  }
  if (__builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0) {
    widths.push_back(VectorWidth::k8);
  }
#endif
  widths.push_back(VectorWidth::k4);
  return widths;
}

bool AreFewRows(const at::Tensor& input, const at::Tensor& weight,
                const std::optional<at::Tensor>& bias) {
  return IsPlainFloat(weight) && weight.dim() == 2 && weight.is_contiguous() &&
         IsPlainFloat(input) && RowsOf(input, weight.size(1)) > 0 && input.is_contiguous() &&
         FitsAsBias(bias, weight.size(0));
}

at::Tensor FewRowsLinear(const at::Tensor& input, const at::Tensor& weight,
                         const std::optional<at::Tensor>& bias) {
  static const VectorWidth kWidest = VectorWidths().front();
  std::vector<int64_t> shape = input.sizes().vec();
  shape.back() = weight.size(0);
  at::Tensor output = at::empty(shape, input.options());
  const bool biased = bias && bias->defined();
  FewRowsProduct(kWidest, input.const_data_ptr<float>(), weight.const_data_ptr<float>(),
                 biased ? bias->const_data_ptr<float>() : nullptr, output.data_ptr<float>(),
                 RowsOf(input, weight.size(1)), weight.size(1), weight.size(0));
  return output;
}

void FewRowsProduct(VectorWidth width, const float* x, const float* w, const float* bias, float* y,
                    int64_t rows, int64_t in, int64_t out) {
  const Product product{x, w, bias, y, in, out};
  const Kernel kernel = KernelOf(width);
  const int64_t grain = std::max<int64_t>(kSums, kGrain / (rows * in));
  at::parallel_for(0, out, grain,
                   [&](int64_t begin, int64_t end) { kernel(product, rows, begin, end); });
}

}  // namespace braid
