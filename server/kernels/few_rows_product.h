// A few rows times a matrix, as the linear layers of a brief request need it.
//
// So few rows are multiplied while the matrix comes from memory, which is what takes the time: each
// number of it is read once, and in the order in which it lies. LibTorch's libraries take half as
// long again, or twice as long, on processors that they were not tuned for.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ATen/core/Tensor.h"

namespace braid {

// With more rows oneDNN's product is the faster one.
inline constexpr int64_t kMaxFewRows = 4;

// Whether FewRowsLinear takes these: float32 on the CPU, input [..., in] of 1 to kMaxFewRows rows
// and weight [out, in], both contiguous; bias [out], or none.
bool AreFewRows(const at::Tensor& input, const at::Tensor& weight,
                const std::optional<at::Tensor>& bias);

// `input` times the transpose of `weight`, plus `bias` if there is one: [..., out], without a
// gradient. Every sum has the same order, whatever the number of rows and of threads.
at::Tensor FewRowsLinear(const at::Tensor& input, const at::Tensor& weight,
                         const std::optional<at::Tensor>& bias);

// The widest that the processor has is taken; its results differ from another's in the last bits.
enum class VectorWidth { k16, k8, k4 };

// Those that the processor has, the widest first.
std::vector<VectorWidth> VectorWidths();

// For tests and measurements: y [rows, out] = x [rows, in] · w [out, in]ᵀ + bias [out], row-major;
// `bias` may be null. rows: 1 to kMaxFewRows; in: at least 1.
void FewRowsProduct(VectorWidth width, const float* x, const float* w, const float* bias, float* y,
                    int64_t rows, int64_t in, int64_t out);

}  // namespace braid
