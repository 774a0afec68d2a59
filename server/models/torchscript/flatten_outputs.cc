#include "server/models/torchscript/flatten_outputs.h"

#include "absl/strings/str_cat.h"
#include "server/base/status.h"

namespace braid {
namespace {

std::string Join(const std::string& path, const std::string& key) {
  return path.empty() ? key : absl::StrCat(path, ".", key);
}

absl::Status FlattenInto(const c10::IValue& value, const std::string& path,
                         std::vector<OutputLeaf>* leaves);

absl::Status FlattenElement(const c10::IValue& element, const std::string& path,
                            std::vector<OutputLeaf>* leaves) {
  if (element.isNone()) {
    leaves->push_back({path, at::Tensor()});
    return absl::OkStatus();
  }
  return FlattenInto(element, path, leaves);
}

template <typename Elements>
absl::Status FlattenSequence(const Elements& elements, const std::string& path,
                             std::vector<OutputLeaf>* leaves) {
  int64_t index = 0;
  for (const c10::IValue& element : elements) {
    const std::string inner = path.empty() ? path : Join(path, absl::StrCat(index));
    BRAID_RETURN_IF_ERROR(FlattenElement(element, inner, leaves));
    ++index;
  }
  return absl::OkStatus();
}

absl::Status FlattenInto(const c10::IValue& value, const std::string& path,
                         std::vector<OutputLeaf>* leaves) {
  if (value.isTensor()) {
    leaves->push_back({path, value.toTensor()});
    return absl::OkStatus();
  }
  if (value.isTuple()) {
    return FlattenSequence(value.toTupleRef().elements().vec(), path, leaves);
  }
  if (value.isList()) {
    return FlattenSequence(value.toListRef(), path, leaves);
  }
  if (value.isGenericDict()) {
    for (const auto& entry : value.toGenericDict()) {
      if (!entry.key().isString()) {
        return absl::FailedPreconditionError(
            "the model returned a dict whose keys are not strings (expected string keys)");
      }
      BRAID_RETURN_IF_ERROR(
          FlattenElement(entry.value(), Join(path, entry.key().toStringRef()), leaves));
    }
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("the model returned a ", value.tagKind(),
                   " (expected tensors, or tuples, lists or dicts of tensors)"));
}

}  // namespace

absl::StatusOr<std::vector<OutputLeaf>> Flatten(const c10::IValue& result) {
  std::vector<OutputLeaf> leaves;
  BRAID_RETURN_IF_ERROR(FlattenInto(result, "", &leaves));
  return leaves;
}

}  // namespace braid
