#include "server/parallel/host_copy.h"

#include <array>
#include <memory>
#include <string>
#include <utility>

#include "ATen/ops/from_blob.h"
#include "c10/core/ScalarType.h"

namespace braid {
namespace {

constexpr std::array<std::pair<DataType, c10::ScalarType>, 13> kTypes = {{
    {DataType::kBool, c10::kBool},
    {DataType::kUint8, c10::kByte},
    {DataType::kUint16, c10::kUInt16},
    {DataType::kUint32, c10::kUInt32},
    {DataType::kUint64, c10::kUInt64},
    {DataType::kInt8, c10::kChar},
    {DataType::kInt16, c10::kShort},
    {DataType::kInt32, c10::kInt},
    {DataType::kInt64, c10::kLong},
    {DataType::kFp16, c10::kHalf},
    {DataType::kBf16, c10::kBFloat16},
    {DataType::kFp32, c10::kFloat},
    {DataType::kFp64, c10::kDouble},
}};

}  // namespace

c10::ScalarType ToScalarType(DataType type) { return kTypes[static_cast<size_t>(type)].second; }

bool FromScalarType(c10::ScalarType scalar, DataType* type) {
  for (const auto& [ours, theirs] : kTypes) {
    if (theirs == scalar) {
      *type = ours;
      return true;
    }
  }
  return false;
}

at::Tensor View(const HostTensor& host) {
  // from_blob() takes a mutable pointer, but the view is only read.
  return at::from_blob(const_cast<void*>(host.data), host.shape,
                       at::TensorOptions().dtype(ToScalarType(host.type)));
}

at::Tensor ViewRows(const HostTensor& host, int64_t start, int64_t rows) {
  if (host.broadcast) {
    return View(host);
  }
  std::vector<int64_t> shape = host.shape;
  const size_t row_bytes = host.bytes / static_cast<size_t>(shape[0]);
  shape[0] = rows;
  const char* data = static_cast<const char*>(host.data) + row_bytes * static_cast<size_t>(start);
  return at::from_blob(const_cast<char*>(data), shape,
                       at::TensorOptions().dtype(ToScalarType(host.type)));
}

at::Tensor Materialize(const at::Tensor& tensor) {
  return tensor._is_zerotensor() ? tensor.clone() : tensor.resolve_conj().resolve_neg();
}

HostTensor ToHost(const at::Tensor& tensor, std::string name) {
  auto kept = std::make_shared<at::Tensor>(Materialize(tensor).to(c10::kCPU).contiguous());
  HostTensor host;
  host.name = std::move(name);
  FromScalarType(kept->scalar_type(), &host.type);
  host.shape = kept->sizes().vec();
  host.data = kept->const_data_ptr();
  host.bytes = kept->nbytes();
  host.owner = std::shared_ptr<const void>(kept, host.data);
  return host;
}

}  // namespace braid
