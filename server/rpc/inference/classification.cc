#include "server/rpc/inference/classification.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/rpc/inference/tensor_codec.h"

namespace braid {
namespace {

template <typename T>
bool Larger(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    // Orders NaN last, because sorting requires a strict order.
    if (std::isnan(a) || std::isnan(b)) {
      return !std::isnan(a) && std::isnan(b);
    }
  }
  return a > b;
}

// Appends a BYTES element: 4 bytes of length, then the string.
void AppendElement(const std::string& text, std::string* raw) {
  const auto length = static_cast<uint32_t>(text.size());
  raw->append(reinterpret_cast<const char*>(&length), sizeof(length));
  raw->append(text);
}

// Appends the `classes` largest of `count` elements at `row`.
template <typename T>
void AppendRow(const T* row, size_t count, size_t classes, const std::vector<std::string>& labels,
               std::string* raw) {
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), size_t{0});
  std::partial_sort(order.begin(), order.begin() + static_cast<ptrdiff_t>(classes), order.end(),
                    [row](size_t a, size_t b) {
                      return Larger(row[a], row[b]) || (!Larger(row[b], row[a]) && a < b);
                    });
  for (size_t k = 0; k < classes; ++k) {
    const size_t index = order[k];
    std::string text = absl::StrCat(std::to_string(row[index]), ":", index);
    if (index < labels.size() && !labels[index].empty()) {
      absl::StrAppend(&text, ":", labels[index]);
    }
    AppendElement(text, raw);
  }
}

template <typename T>
void AppendRows(const HostTensor& tensor, size_t rows, size_t count, size_t classes,
                const std::vector<std::string>& labels, std::string* raw) {
  const T* const elements = static_cast<const T*>(tensor.data);
  for (size_t r = 0; r < rows; ++r) {
    AppendRow(elements + r * count, count, classes, labels, raw);
  }
}

void AppendTyped(const HostTensor& tensor, size_t rows, size_t count, size_t classes,
                 const std::vector<std::string>& labels, std::string* raw) {
  const auto append = [&]<typename T>(T) {
    AppendRows<T>(tensor, rows, count, classes, labels, raw);
  };
  switch (tensor.type) {
    case DataType::kUint8:
      return append(uint8_t{});
    case DataType::kUint16:
      return append(uint16_t{});
    case DataType::kUint32:
      return append(uint32_t{});
    case DataType::kUint64:
      return append(uint64_t{});
    case DataType::kInt8:
      return append(int8_t{});
    case DataType::kInt16:
      return append(int16_t{});
    case DataType::kInt32:
      return append(int32_t{});
    case DataType::kInt64:
      return append(int64_t{});
    case DataType::kFp32:
      return append(float{});
    case DataType::kFp64:
      return append(double{});
    case DataType::kBool:
    case DataType::kFp16:
    case DataType::kBf16:
      break;  // rejected by CanClassify()
  }
}

}  // namespace

bool CanClassify(DataType type) {
  return type != DataType::kBool && type != DataType::kFp16 && type != DataType::kBf16;
}

void WriteClasses(const GatheredTensor& tensor, const TensorSpec& spec, bool batched,
                  int64_t classes, inference::ModelInferResponse* response) {
  const size_t elements = tensor.bytes / DataTypeSize(tensor.type);
  const size_t rows = batched ? static_cast<size_t>(tensor.shape.front()) : 1;
  const size_t count = rows == 0 ? 0 : elements / rows;
  const size_t taken = std::min(static_cast<size_t>(classes), count);
  std::vector<int64_t> shape = {static_cast<int64_t>(taken)};
  if (batched) {
    shape.insert(shape.begin(), tensor.shape.front());
  }
  AddOutput(tensor.name, "BYTES", shape, response);
  std::string* raw = response->add_raw_output_contents();
  for (const HostTensor& piece : tensor.pieces) {
    const size_t piece_rows = batched ? static_cast<size_t>(piece.shape.front()) : 1;
    AppendTyped(piece, piece_rows, count, taken, spec.labels, raw);
  }
}

}  // namespace braid
