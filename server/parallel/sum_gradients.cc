#include "server/parallel/sum_gradients.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "server/parallel/finite.h"

namespace braid {
namespace {

// Elements per block, so that IsFinite() reads from the L1 cache.
constexpr int64_t kBlock = 2048;

template <typename T>
void SumBlock(const std::vector<const T*>& terms, int64_t begin, int64_t size, T* sum) {
  if (terms.size() == 1) {
    std::copy_n(terms[0] + begin, size, sum);
    return;
  }
  const T* const first = terms[0] + begin;
  const T* const second = terms[1] + begin;
  for (int64_t i = 0; i < size; ++i) {
    sum[i] = first[i] + second[i];
  }
  for (size_t t = 2; t < terms.size(); ++t) {
    const T* const term = terms[t] + begin;
    for (int64_t i = 0; i < size; ++i) {
      sum[i] += term[i];
    }
  }
}

// Compares the bits of the exponent: integer operations vectorize without reordering floats.
template <typename T>
bool IsFinite(const T* values, int64_t size) {
  using Bits = std::conditional_t<sizeof(T) == sizeof(uint32_t), uint32_t, uint64_t>;
  constexpr auto kExponent = std::bit_cast<Bits>(std::numeric_limits<T>::infinity());
  Bits bad = 0;
  for (int64_t i = 0; i < size; ++i) {
    const auto exponent = static_cast<Bits>(std::bit_cast<Bits>(values[i]) & kExponent);
    bad |= exponent == kExponent ? 1 : 0;
  }
  return bad == 0;
}

template <typename T>
bool SumInto(const std::vector<at::Tensor>& tensors, const at::Tensor& sum) {
  std::vector<const T*> terms;
  terms.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    terms.push_back(tensor.const_data_ptr<T>());
  }
  T* const out = sum.mutable_data_ptr<T>();
  bool finite = true;
  for (int64_t begin = 0; begin < sum.numel(); begin += kBlock) {
    const int64_t size = std::min(kBlock, sum.numel() - begin);
    SumBlock(terms, begin, size, out + begin);
    finite = IsFinite(out + begin, size) && finite;
  }
  return finite;
}

// Returns whether the sum is finite.
bool Sum(const std::vector<at::Tensor>& terms, const at::Tensor& sum) {
  if (terms.empty()) {
    sum.zero_();
    return true;
  }
  if (sum.scalar_type() == at::kFloat) {
    return SumInto<float>(terms, sum);
  }
  if (sum.scalar_type() == at::kDouble) {
    return SumInto<double>(terms, sum);
  }
  sum.copy_(terms[0]);
  for (size_t t = 1; t < terms.size(); ++t) {
    sum.add_(terms[t]);
  }
  return std::isfinite(RangeShare(sum));
}

}  // namespace

bool SumGradients(const std::vector<std::vector<at::Tensor>>& gradients, const FlatParameters& flat,
                  size_t buffer, const Slice& slice) {
  bool finite = true;
  std::vector<at::Tensor> terms;
  for (size_t p = 0; p < flat.slots().size(); ++p) {
    const FlatSlot& slot = flat.slots()[p];
    const int64_t begin = std::max(slot.offset, slice.begin);
    const int64_t end = std::min(slot.offset + slot.numel, slice.end);
    if (slot.buffer != buffer || begin >= end) {
      continue;
    }
    terms.clear();
    for (const std::vector<at::Tensor>& replica : gradients) {
      if (replica[p].defined()) {
        terms.push_back(replica[p].view(-1).narrow(0, begin - slot.offset, end - begin));
      }
    }
    finite = Sum(terms, flat.gradients()[buffer].narrow(0, begin, end - begin)) && finite;
  }
  return finite;
}

}  // namespace braid
