// Converts tensors between messages and HostTensor. Reading does not copy raw bytes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "braid/v1/training.pb.h"
#include "google/protobuf/repeated_ptr_field.h"
#include "inference/grpc_service.pb.h"
#include "server/base/host_tensor.h"
#include "server/decode/decode_inputs.h"
#include "server/models/model_config.h"
#include "server/shared_memory/shared_regions.h"

namespace braid {

// BYTES inputs of a request.
struct EncodedInputs {
  // Inputs of the model. Those with a decoder may be BYTES.
  const std::vector<TensorSpec>& specs;
  std::vector<EncodedInput> inputs = {};
  // Index of each of `inputs` in the request. Ascending.
  std::vector<int> positions = {};
};

// Reads a request's inputs from raw contents, typed contents or shared memory. The tensors point
// into `request`, which must outlive them. Copies typed contents whose element size differs in
// memory (INT8, BOOL, …), and shared memory that is misaligned or on a GPU. Appends the shared
// memory used to `slices`. regions: null if shared memory is disabled. INVALID_ARGUMENT, naming the
// field, for an unknown datatype, a negative dimension, two kinds of contents, or a wrong count.
//
// Appends BYTES inputs to `encoded` instead, with one row per element; their shape is [n] or
// [n, 1]. The rows point into `request`, or are copies of shared memory. INVALID_ARGUMENT for one
// that the model does not have or does not decode. Without `encoded`, they are rejected.
absl::StatusOr<std::vector<HostTensor>> ReadInputs(const inference::ModelInferRequest& request,
                                                   const SharedRegions* regions = nullptr,
                                                   std::vector<SharedSlice>* slices = nullptr,
                                                   EncodedInputs* encoded = nullptr);

// Adds an output to the reply, without contents.
inference::ModelInferResponse::InferOutputTensor* AddOutput(
    absl::string_view name, absl::string_view datatype, const std::vector<int64_t>& shape,
    inference::ModelInferResponse* response);

// Adds `tensor` to the reply as raw contents. This is the only copy of its bytes.
void WriteOutput(const GatheredTensor& tensor, inference::ModelInferResponse* response);

// Reads the tensors of a training request; they point into `tensors`. field: "inputs" or "targets",
// for errors. INVALID_ARGUMENT, naming the field.
absl::StatusOr<std::vector<HostTensor>> ReadTensors(
    const google::protobuf::RepeatedPtrField<braid::v1::Tensor>& tensors, absl::string_view field);

void WriteTensor(const HostTensor& tensor, braid::v1::Tensor* message);

}  // namespace braid
