#include "server/rpc/tensor_codec.h"

#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/rpc/typed_contents.h"

namespace braid {
namespace {

using Input = inference::ModelInferRequest::InferInputTensor;

constexpr int kMaxRank = 64;
constexpr size_t kMaxName = 1024;

// Name, datatype and shape; `bytes` is what they ask for.
template <typename Message>
absl::StatusOr<HostTensor> ReadHeader(const Message& message, const std::string& field) {
  HostTensor tensor;
  if (message.name().size() > kMaxName) {
    return InvalidField(field + ".name", absl::StrCat("has ", message.name().size(),
                                                      " bytes; expected at most ", kMaxName));
  }
  tensor.name = message.name();
  const std::optional<DataType> type = DataTypeFromName(message.datatype());
  if (!type) {
    return InvalidField(field + ".datatype",
                        absl::StrCat("'", Excerpt(message.datatype()), "' of '", tensor.name,
                                     "' is not supported; expected one of ", AllDataTypeNames()));
  }
  tensor.type = *type;
  if (message.shape_size() > kMaxRank) {
    return InvalidField(field + ".shape", absl::StrCat("has ", message.shape_size(),
                                                       " dimensions; expected at most ", kMaxRank));
  }
  tensor.shape.assign(message.shape().begin(), message.shape().end());
  const std::optional<size_t> bytes = BytesOf(tensor.type, tensor.shape);
  if (!bytes) {
    return InvalidField(field + ".shape",
                        absl::StrCat(ShapeString(tensor.shape), " of '", tensor.name,
                                     "' is negative or too large; expected sizes of "
                                     "at least 0"));
  }
  tensor.bytes = *bytes;
  return tensor;
}

absl::Status SetData(const std::string& data, const std::string& field, HostTensor* tensor) {
  if (data.size() != tensor->bytes) {
    return InvalidField(field, absl::StrCat("holds ", data.size(), " bytes for '", tensor->name,
                                            "'; ", DataTypeName(tensor->type), " ",
                                            ShapeString(tensor->shape), " takes ", tensor->bytes));
  }
  tensor->data = data.data();
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<HostTensor>> ReadInputs(const inference::ModelInferRequest& request) {
  const bool raw = request.raw_input_contents_size() > 0;
  if (raw && request.raw_input_contents_size() != request.inputs_size()) {
    return InvalidField("raw_input_contents",
                        absl::StrCat("has ", request.raw_input_contents_size(), " entries for ",
                                     request.inputs_size(), " inputs; expected one for each"));
  }
  std::vector<HostTensor> tensors;
  for (int i = 0; i < request.inputs_size(); ++i) {
    const Input& input = request.inputs(i);
    const std::string field = absl::StrCat("inputs[", i, "]");
    BRAID_ASSIGN_OR_RETURN(HostTensor tensor, ReadHeader(input, field));
    if (raw && input.has_contents()) {
      return InvalidField(field + ".contents",
                          absl::StrCat("is there for '", tensor.name,
                                       "' beside raw_input_contents; expected one of the two"));
    }
    if (raw) {
      BRAID_RETURN_IF_ERROR(SetData(request.raw_input_contents(i),
                                    absl::StrCat("raw_input_contents[", i, "]"), &tensor));
    } else {
      BRAID_RETURN_IF_ERROR(ReadTypedContents(input.contents(), field + ".contents", &tensor));
    }
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

void WriteOutput(const HostTensor& tensor, inference::ModelInferResponse* response) {
  auto* output = response->add_outputs();
  output->set_name(tensor.name);
  output->set_datatype(std::string(DataTypeName(tensor.type)));
  output->mutable_shape()->Assign(tensor.shape.begin(), tensor.shape.end());
  response->add_raw_output_contents(tensor.data, tensor.bytes);
}

absl::StatusOr<std::vector<HostTensor>> ReadTensors(
    const google::protobuf::RepeatedPtrField<braid::v1::Tensor>& tensors, absl::string_view field) {
  std::vector<HostTensor> read;
  for (int i = 0; i < tensors.size(); ++i) {
    const std::string element = absl::StrCat(field, "[", i, "]");
    BRAID_ASSIGN_OR_RETURN(HostTensor tensor, ReadHeader(tensors[i], element));
    BRAID_RETURN_IF_ERROR(SetData(tensors[i].data(), element + ".data", &tensor));
    read.push_back(std::move(tensor));
  }
  return read;
}

void WriteTensor(const HostTensor& tensor, braid::v1::Tensor* message) {
  message->set_name(tensor.name);
  message->set_datatype(std::string(DataTypeName(tensor.type)));
  message->mutable_shape()->Assign(tensor.shape.begin(), tensor.shape.end());
  message->set_data(tensor.data, tensor.bytes);
}

}  // namespace braid
