// Tensors between the wire's messages and the engine. Reading copies no raw bytes.
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
#include "server/shared_memory/shared_regions.h"

namespace braid {

// A request's inputs, from raw or typed contents. They point into `request`, which outlives them;
// typed contents narrower on the wire's terms than in memory (INT8, BOOL, …) are copied. An input
// in shared memory points there, is copied if it is not aligned or a GPU's, and adds itself to
// `slices`;
// `regions` is ReadSlice()'s. INVALID_ARGUMENT naming the field for an unknown datatype, a negative
// dimension, two kinds of contents, or a wrong count.
absl::StatusOr<std::vector<HostTensor>> ReadInputs(const inference::ModelInferRequest& request,
                                                   const SharedRegions* regions = nullptr,
                                                   std::vector<SharedSlice>* slices = nullptr);

// Adds an output to the reply, its contents excepted.
inference::ModelInferResponse::InferOutputTensor* AddOutput(
    absl::string_view name, absl::string_view datatype, const std::vector<int64_t>& shape,
    inference::ModelInferResponse* response);

// Adds `tensor` to the reply, in raw contents: the one time that its bytes are copied.
void WriteOutput(const GatheredTensor& tensor, inference::ModelInferResponse* response);

// The tensors of a training request; `field` ("inputs", "targets") for errors. They point into
// `tensors`.
absl::StatusOr<std::vector<HostTensor>> ReadTensors(
    const google::protobuf::RepeatedPtrField<braid::v1::Tensor>& tensors, absl::string_view field);

void WriteTensor(const HostTensor& tensor, braid::v1::Tensor* message);

}  // namespace braid
