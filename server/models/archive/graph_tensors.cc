#include "server/models/archive/graph_tensors.h"

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/base/status.h"
#include "server/base/text.h"

namespace braid {
namespace {

// Datatype numbers of torch.export's schema.
constexpr std::array kSchemaTypes = {
    std::pair<int64_t, DataType>{1, DataType::kUint8},
    std::pair<int64_t, DataType>{2, DataType::kInt8},
    std::pair<int64_t, DataType>{3, DataType::kInt16},
    std::pair<int64_t, DataType>{4, DataType::kInt32},
    std::pair<int64_t, DataType>{5, DataType::kInt64},
    std::pair<int64_t, DataType>{6, DataType::kFp16},
    std::pair<int64_t, DataType>{7, DataType::kFp32},
    std::pair<int64_t, DataType>{8, DataType::kFp64},
    std::pair<int64_t, DataType>{12, DataType::kBool},
    std::pair<int64_t, DataType>{13, DataType::kBf16},
    std::pair<int64_t, DataType>{28, DataType::kUint16},
    std::pair<int64_t, DataType>{34, DataType::kUint32},
    std::pair<int64_t, DataType>{35, DataType::kUint64},
};

// Layout number of dense tensors in torch.export's schema.
constexpr int64_t kSchemaStrided = 7;

absl::Status ReadSize(const JsonField& size, GraphTensor* tensor) {
  tensor->shape.push_back(-1);
  tensor->expressions.emplace_back();
  if (size.Has("as_int")) {
    BRAID_ASSIGN_OR_RETURN(const JsonField number, size.Get("as_int"));
    BRAID_ASSIGN_OR_RETURN(tensor->shape.back(), number.Integer());
    return absl::OkStatus();
  }
  BRAID_ASSIGN_OR_RETURN(const JsonField expression, size.Get("as_expr"));
  BRAID_ASSIGN_OR_RETURN(const JsonField text, expression.Get("expr_str"));
  BRAID_ASSIGN_OR_RETURN(tensor->expressions.back(), text.String());
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<GraphTensor> ReadGraphTensor(const JsonField& argument, const JsonField& values) {
  GraphTensor tensor;
  BRAID_ASSIGN_OR_RETURN(const JsonField as_tensor, argument.Get("as_tensor"));
  BRAID_ASSIGN_OR_RETURN(const JsonField name, as_tensor.Get("name"));
  BRAID_ASSIGN_OR_RETURN(tensor.name, name.String());
  BRAID_ASSIGN_OR_RETURN(const JsonField meta, values.Get(tensor.name.c_str()));
  BRAID_ASSIGN_OR_RETURN(const JsonField dtype, meta.Get("dtype"));
  BRAID_ASSIGN_OR_RETURN(const int64_t number, dtype.Integer());
  for (const auto& [known, type] : kSchemaTypes) {
    if (known == number) {
      tensor.type = type;
    }
  }
  BRAID_ASSIGN_OR_RETURN(const JsonField device, meta.Get("device"));
  BRAID_ASSIGN_OR_RETURN(const JsonField device_type, device.Get("type"));
  BRAID_ASSIGN_OR_RETURN(const std::string kind, device_type.String());
  tensor.on_cpu = kind == "cpu";
  BRAID_ASSIGN_OR_RETURN(const JsonField layout, meta.Get("layout"));
  BRAID_ASSIGN_OR_RETURN(const int64_t layout_number, layout.Integer());
  tensor.dense = layout_number == kSchemaStrided;
  BRAID_ASSIGN_OR_RETURN(const JsonField sizes, meta.Get("sizes"));
  BRAID_ASSIGN_OR_RETURN(const std::vector<JsonField> items, sizes.Items());
  for (const JsonField& item : items) {
    BRAID_RETURN_IF_ERROR(ReadSize(item, &tensor));
  }
  return tensor;
}

absl::StatusOr<std::vector<JsonField>> SignatureArguments(const JsonField& signature,
                                                          const char* specs, const char* kind) {
  BRAID_ASSIGN_OR_RETURN(const JsonField list, signature.Get(specs));
  BRAID_ASSIGN_OR_RETURN(const std::vector<JsonField> items, list.Items());
  std::vector<JsonField> arguments;
  for (const JsonField& item : items) {
    if (item.Has(kind)) {
      BRAID_ASSIGN_OR_RETURN(const JsonField spec, item.Get(kind));
      BRAID_ASSIGN_OR_RETURN(JsonField argument, spec.Get("arg"));
      arguments.push_back(std::move(argument));
    }
  }
  return arguments;
}

}  // namespace braid
