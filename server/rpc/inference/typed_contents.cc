#include "server/rpc/inference/typed_contents.h"

#include <cstdint>
#include <limits>
#include <memory>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "server/base/status.h"

namespace braid {
namespace {

using google::protobuf::FieldDescriptor;
using inference::InferTensorContents;

// Returns the field for elements of `type`; empty for types that require raw contents.
absl::string_view FieldFor(DataType type) {
  switch (type) {
    case DataType::kBool:
      return "bool_contents";
    case DataType::kInt8:
    case DataType::kInt16:
    case DataType::kInt32:
      return "int_contents";
    case DataType::kInt64:
      return "int64_contents";
    case DataType::kUint8:
    case DataType::kUint16:
    case DataType::kUint32:
      return "uint_contents";
    case DataType::kUint64:
      return "uint64_contents";
    case DataType::kFp32:
      return "fp32_contents";
    case DataType::kFp64:
      return "fp64_contents";
    case DataType::kFp16:
    case DataType::kBf16:
      return "";
  }
  return "";
}

// Rejects contents in other fields, which would be ignored silently.
absl::Status CheckFields(const InferTensorContents& contents, const std::string& field,
                         const HostTensor& tensor) {
  const absl::string_view expected = FieldFor(tensor.type);
  if (expected.empty()) {
    return InvalidField(field, absl::StrCat("cannot hold ", DataTypeName(tensor.type), " of '",
                                            tensor.name, "' (use raw_input_contents)"));
  }
  std::vector<const FieldDescriptor*> set;
  contents.GetReflection()->ListFields(contents, &set);
  for (const FieldDescriptor* other : set) {
    if (other->name() != expected) {
      return InvalidField(absl::StrCat(field, ".", other->name()),
                          absl::StrCat("set for '", tensor.name, "' (expected ", expected, " for ",
                                       DataTypeName(tensor.type), ")"));
    }
  }
  return absl::OkStatus();
}

template <typename To, typename Values>
absl::Status Fill(const Values& values, const std::string& field, HostTensor* tensor) {
  using From = typename Values::value_type;
  const size_t expected = tensor->bytes / sizeof(To);
  if (static_cast<size_t>(values.size()) != expected) {
    return InvalidField(
        field, absl::StrCat("has ", values.size(), " elements for '", tensor->name, "' (expected ",
                            expected, " for shape ", ShapeString(tensor->shape), ")"));
  }
  if constexpr (std::is_same_v<From, To>) {
    tensor->data = values.data();
    return absl::OkStatus();
  }
  const std::shared_ptr<To[]> copy(new To[expected]);
  for (size_t i = 0; i < expected; ++i) {
    const From value = values[static_cast<int>(i)];
    if (value < From{std::numeric_limits<To>::lowest()} ||
        value > From{std::numeric_limits<To>::max()}) {
      return InvalidField(
          field, absl::StrCat("element ", i, " of '", tensor->name, "' is ", value, ", which ",
                              DataTypeName(tensor->type), " cannot hold"));
    }
    copy[i] = static_cast<To>(value);
  }
  tensor->data = copy.get();
  tensor->owner = copy;
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadTypedContents(const InferTensorContents& contents, const std::string& field,
                               HostTensor* tensor) {
  BRAID_RETURN_IF_ERROR(CheckFields(contents, field, *tensor));
  switch (tensor->type) {
    case DataType::kBool:
      return Fill<bool>(contents.bool_contents(), field, tensor);
    case DataType::kInt8:
      return Fill<int8_t>(contents.int_contents(), field, tensor);
    case DataType::kInt16:
      return Fill<int16_t>(contents.int_contents(), field, tensor);
    case DataType::kInt32:
      return Fill<int32_t>(contents.int_contents(), field, tensor);
    case DataType::kInt64:
      return Fill<int64_t>(contents.int64_contents(), field, tensor);
    case DataType::kUint8:
      return Fill<uint8_t>(contents.uint_contents(), field, tensor);
    case DataType::kUint16:
      return Fill<uint16_t>(contents.uint_contents(), field, tensor);
    case DataType::kUint32:
      return Fill<uint32_t>(contents.uint_contents(), field, tensor);
    case DataType::kUint64:
      return Fill<uint64_t>(contents.uint64_contents(), field, tensor);
    case DataType::kFp32:
      return Fill<float>(contents.fp32_contents(), field, tensor);
    case DataType::kFp64:
      return Fill<double>(contents.fp64_contents(), field, tensor);
    case DataType::kFp16:
    case DataType::kBf16:
      break;  // rejected by CheckFields()
  }
  return absl::InternalError("unreachable: a datatype without typed contents");
}

}  // namespace braid
