#include "server/rpc/inference/tensor_codec.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/models/input_check.h"
#include "server/rpc/inference/bytes_contents.h"
#include "server/rpc/inference/parameter.h"
#include "server/rpc/inference/shared_memory.h"
#include "server/rpc/inference/typed_contents.h"

namespace braid {
namespace {

using Input = inference::ModelInferRequest::InferInputTensor;

constexpr int kMaxRank = 64;
constexpr size_t kMaxNameBytes = 1024;
constexpr char kBytes[] = "BYTES";

// INVALID_ARGUMENT for a BYTES tensor. hint: what else is expected.
absl::Status RejectBytes(const std::string& name, const std::string& field,
                         absl::string_view hint) {
  return InvalidField(field + ".datatype",
                      absl::StrCat("'BYTES' of '", Excerpt(name),
                                   "' is not supported, because PyTorch has no string tensors "
                                   "(expected one of ",
                                   AllDataTypeNames(), hint, ")"));
}

// Reads name, datatype and shape, and computes the size in bytes.
template <typename Message>
absl::StatusOr<HostTensor> ReadHeader(const Message& message, const std::string& field) {
  HostTensor tensor;
  if (message.name().size() > kMaxNameBytes) {
    return InvalidField(
        field + ".name",
        absl::StrCat(message.name().size(), " bytes (expected at most ", kMaxNameBytes, ")"));
  }
  tensor.name = message.name();
  if (message.datatype() == kBytes) {
    return RejectBytes(tensor.name, field, "");
  }
  const std::optional<DataType> type = DataTypeFromName(message.datatype());
  if (!type) {
    return InvalidField(
        field + ".datatype",
        absl::StrCat("'", Excerpt(message.datatype()), "' of '", tensor.name,
                     "' is not supported (expected one of ", AllDataTypeNames(), ")"));
  }
  tensor.type = *type;
  if (message.shape_size() > kMaxRank) {
    return InvalidField(
        field + ".shape",
        absl::StrCat(message.shape_size(), " dimensions (expected at most ", kMaxRank, ")"));
  }
  tensor.shape.assign(message.shape().begin(), message.shape().end());
  const std::optional<size_t> bytes = BytesOf(tensor.type, tensor.shape);
  if (!bytes) {
    return InvalidField(field + ".shape",
                        absl::StrCat(ShapeString(tensor.shape), " of '", tensor.name,
                                     "' is negative or too large (expected sizes of at least 0)"));
  }
  tensor.bytes = *bytes;
  return tensor;
}

absl::Status SetData(const std::string& data, const std::string& field, HostTensor* tensor) {
  if (data.size() != tensor->bytes) {
    return InvalidField(
        field, absl::StrCat("has ", data.size(), " bytes for '", tensor->name, "' (expected ",
                            tensor->bytes, " for ", DataTypeName(tensor->type), " ",
                            ShapeString(tensor->shape), ")"));
  }
  tensor->data = data.data();
  return absl::OkStatus();
}

// Returns the shared memory of each input; empty slices for other inputs.
absl::StatusOr<std::vector<SharedSlice>> ReadSlices(const inference::ModelInferRequest& request,
                                                    const SharedRegions* regions) {
  std::vector<SharedSlice> places;
  int raw = 0;
  for (int i = 0; i < request.inputs_size(); ++i) {
    const Input& input = request.inputs(i);
    const std::string field = absl::StrCat("inputs[", i, "]");
    places.emplace_back();
    if (const Parameters& parameters = input.parameters(); !parameters.empty()) {
      BRAID_ASSIGN_OR_RETURN(places.back(), ReadSlice(regions, parameters, field));
    }
    const bool shared = places.back().region != nullptr;
    if (input.has_contents() && (shared || request.raw_input_contents_size() > 0)) {
      // Triton's wording, which its clients search for.
      return InvalidField(
          field + ".contents",
          absl::StrCat("contents field must not be specified when using ",
                       shared ? kSharedRegion : "raw_input_contents", " for '",
                       Excerpt(input.name()), "' for model '", Excerpt(request.model_name()), "'"));
    }
    raw += shared ? 0 : 1;
  }
  if (request.raw_input_contents_size() > 0 && request.raw_input_contents_size() != raw) {
    return InvalidField("raw_input_contents",
                        absl::StrCat("has ", request.raw_input_contents_size(), " entries for ",
                                     raw, " inputs (expected one per input)"));
  }
  return places;
}

absl::Status SetShared(const SharedSlice& slice, const std::string& field, HostTensor* tensor) {
  if (slice.bytes != tensor->bytes) {
    return InvalidField(
        ParameterField(field, kSharedBytes),
        absl::StrCat("is ", slice.bytes, " for '", tensor->name, "' (expected ", tensor->bytes,
                     " for ", DataTypeName(tensor->type), " ", ShapeString(tensor->shape), ")"));
  }
  if (slice.data() != nullptr &&
      reinterpret_cast<uintptr_t>(slice.data()) % DataTypeSize(tensor->type) == 0) {
    tensor->data = slice.data();
    tensor->owner = slice.region;
    return absl::OkStatus();
  }
  BRAID_ASSIGN_OR_RETURN(const std::shared_ptr<char[]> copy, AllocateCopy(slice.bytes));
  BRAID_RETURN_IF_ERROR(slice.Read(copy.get()));
  tensor->data = copy.get();
  tensor->owner = copy;
  return absl::OkStatus();
}

// Returns the input of the model that decodes `input`, which is BYTES.
absl::StatusOr<const TensorSpec*> DecodedInput(const Input& input, absl::string_view model,
                                               const EncodedInputs* encoded,
                                               const std::string& field) {
  if (encoded != nullptr) {
    const auto found = std::ranges::find(encoded->specs, input.name(), &TensorSpec::name);
    if (found == encoded->specs.end()) {
      return UnknownInput(field + ".name", model, input.name(), encoded->specs);
    }
    if (found->decoder != nullptr) {
      return &*found;
    }
  }
  return RejectBytes(input.name(), field,
                     ", or a model whose configuration decodes this input: "
                     "parameters[\"decode.<input>\"]");
}

// Returns the number of elements of a BYTES input.
absl::StatusOr<int64_t> CountElements(const Input& input, const std::string& field) {
  const auto& shape = input.shape();
  if ((shape.size() == 1 || (shape.size() == 2 && shape[1] == 1)) && shape[0] >= 1) {
    return shape[0];
  }
  return InvalidField(
      field + ".shape",
      absl::StrCat(ShapeString({shape.begin(), shape.end()}), " of BYTES input '", input.name(),
                   "' (expected [n] or [n, 1], with one encoded value for each of n rows)"));
}

// Reads a BYTES input from `slice`, if it has a region, from `raw`, if it is not null, or else from
// its typed contents.
absl::StatusOr<EncodedInput> ReadEncoded(const Input& input, const TensorSpec& spec,
                                         const SharedSlice& slice, const std::string* raw,
                                         const std::string& raw_field, const std::string& field) {
  EncodedInput encoded;
  encoded.name = spec.name;
  encoded.decoder = spec.decoder;
  BRAID_ASSIGN_OR_RETURN(const int64_t count, CountElements(input, field));
  if (slice.region != nullptr) {
    // A copy, because the client could change the bytes while they are decoded.
    BRAID_ASSIGN_OR_RETURN(const std::shared_ptr<char[]> copy, AllocateCopy(slice.bytes));
    BRAID_RETURN_IF_ERROR(slice.Read(copy.get()));
    encoded.owner = copy;
    BRAID_ASSIGN_OR_RETURN(encoded.rows,
                           SplitBytes({copy.get(), slice.bytes}, count,
                                      ParameterField(field, kSharedRegion), spec.name));
  } else if (raw != nullptr) {
    BRAID_ASSIGN_OR_RETURN(encoded.rows, SplitBytes(*raw, count, raw_field, spec.name));
  } else {
    BRAID_ASSIGN_OR_RETURN(
        encoded.rows, ReadBytesContents(input.contents(), count, field + ".contents", spec.name));
  }
  return encoded;
}

}  // namespace

absl::StatusOr<std::vector<HostTensor>> ReadInputs(const inference::ModelInferRequest& request,
                                                   const SharedRegions* regions,
                                                   std::vector<SharedSlice>* slices,
                                                   EncodedInputs* encoded) {
  BRAID_ASSIGN_OR_RETURN(std::vector<SharedSlice> places, ReadSlices(request, regions));
  const bool raw = request.raw_input_contents_size() > 0;
  std::vector<HostTensor> tensors;
  int next_raw = 0;
  for (int i = 0; i < request.inputs_size(); ++i) {
    const Input& input = request.inputs(i);
    const std::string field = absl::StrCat("inputs[", i, "]");
    SharedSlice& place = places[static_cast<size_t>(i)];
    const bool is_raw = raw && place.region == nullptr;
    const std::string raw_field = is_raw ? absl::StrCat("raw_input_contents[", next_raw, "]") : "";
    const std::string* const data = is_raw ? &request.raw_input_contents(next_raw++) : nullptr;
    if (input.datatype() == kBytes) {
      BRAID_ASSIGN_OR_RETURN(const TensorSpec* const spec,
                             DecodedInput(input, request.model_name(), encoded, field));
      BRAID_ASSIGN_OR_RETURN(EncodedInput read,
                             ReadEncoded(input, *spec, place, data, raw_field, field));
      encoded->inputs.push_back(std::move(read));
      encoded->positions.push_back(i);
      if (place.region != nullptr) {
        slices->push_back(std::move(place));
      }
      continue;
    }
    BRAID_ASSIGN_OR_RETURN(HostTensor tensor, ReadHeader(input, field));
    if (place.region != nullptr) {
      BRAID_RETURN_IF_ERROR(SetShared(place, field, &tensor));
      slices->push_back(std::move(place));
    } else if (is_raw) {
      BRAID_RETURN_IF_ERROR(SetData(*data, raw_field, &tensor));
    } else {
      BRAID_RETURN_IF_ERROR(ReadTypedContents(input.contents(), field + ".contents", &tensor));
    }
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

inference::ModelInferResponse::InferOutputTensor* AddOutput(
    absl::string_view name, absl::string_view datatype, const std::vector<int64_t>& shape,
    inference::ModelInferResponse* response) {
  auto* output = response->add_outputs();
  output->set_name(std::string(name));
  output->set_datatype(std::string(datatype));
  output->mutable_shape()->Assign(shape.begin(), shape.end());
  return output;
}

void WriteOutput(const GatheredTensor& tensor, inference::ModelInferResponse* response) {
  AddOutput(tensor.name, DataTypeName(tensor.type), tensor.shape, response);
  std::string* raw = response->add_raw_output_contents();
  raw->reserve(tensor.bytes);
  for (const HostTensor& piece : tensor.pieces) {
    raw->append(static_cast<const char*>(piece.data), piece.bytes);
  }
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
