// Product of a few rows and a matrix, for the linear layers of small requests.
//
// Memory bandwidth limits such a product, so the matrix is read once, sequentially. LibTorch's
// libraries take 1.5 to 2 times as long on CPUs that they were not tuned for.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ATen/core/Tensor.h"

namespace braid {

// Maximum number of rows. For more rows oneDNN's product is faster.
inline constexpr int64_t kMaxFewRows = 4;

// True if FewRowsLinear() supports the arguments: float32 on the CPU, contiguous input [..., in]
// with 1 to kMaxFewRows rows, contiguous weight [out, in], and bias [out] or none.
bool AreFewRows(const at::Tensor& input, const at::Tensor& weight,
                const std::optional<at::Tensor>& bias);

// Returns `input` times the transpose of `weight` plus `bias`, [..., out], without a gradient. Each
// sum has the same order for any number of rows and threads.
at::Tensor FewRowsLinear(const at::Tensor& input, const at::Tensor& weight,
                         const std::optional<at::Tensor>& bias);

// Width of vector registers in floats. FewRowsLinear() uses the widest that the CPU has. Results of
// different widths differ in the last bits.
enum class VectorWidth { k16, k8, k4 };

// Returns the widths that the CPU supports, widest first.
std::vector<VectorWidth> VectorWidths();

// Computes y [rows, out] = x [rows, in] · w [out, in]ᵀ + bias [out], all row-major, with a given
// width. bias: may be null. rows: 1 to kMaxFewRows. in: at least 1. Exposed for tests and
// benchmarks.
void FewRowsProduct(VectorWidth width, const float* x, const float* w, const float* bias, float* y,
                    int64_t rows, int64_t in, int64_t out);

}  // namespace braid
