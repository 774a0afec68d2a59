#include "server/rpc/inference/infer.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/base/status.h"
#include "server/models/input_check.h"
#include "server/rpc/inference/infer_parameters.h"
#include "server/rpc/inference/model_messages.h"
#include "server/rpc/inference/requested_outputs.h"
#include "server/rpc/inference/shared_memory.h"
#include "server/rpc/inference/tensor_codec.h"
#include "server/rpc/server/transport.h"

namespace braid {
namespace {

constexpr char kReportSplit[] = "report_split";
constexpr char kSplit[] = "split";

std::string SplitText(const std::vector<ChunkReport>& chunks) {
  return absl::StrJoin(chunks, ",", [](std::string* out, const ChunkReport& chunk) {
    absl::StrAppend(out, chunk.device, "=", chunk.rows);
  });
}

// Copies inputs whose values are checked out of shared memory before the check. A client could
// change them afterwards, and an index out of range can break a GPU's context.
absl::Status CopyCheckedInputs(const ModelConfig& config, const std::vector<SharedSlice>& slices,
                               std::vector<HostTensor>* tensors) {
  for (HostTensor& tensor : *tensors) {
    const bool checked =
        std::any_of(config.inputs.begin(), config.inputs.end(),
                    [&](const TensorSpec& spec) { return spec.range && spec.name == tensor.name; });
    const bool shared = std::any_of(slices.begin(), slices.end(), [&](const SharedSlice& slice) {
      return slice.data() != nullptr && slice.data() == tensor.data;
    });
    if (checked && shared) {
      BRAID_ASSIGN_OR_RETURN(const std::shared_ptr<char[]> copy, AllocateCopy(tensor.bytes));
      std::memcpy(copy.get(), tensor.data, tensor.bytes);
      tensor.data = copy.get();
      tensor.owner = copy;
    }
  }
  return absl::OkStatus();
}

// Writes the response. slices: shared memory of the inputs, which must not have been truncated.
absl::Status WriteReply(const ModelConfig& config, const inference::ModelInferRequest& request,
                        const InferenceResult& result, const std::vector<RequestedOutput>& wanted,
                        const std::vector<SharedSlice>& slices,
                        inference::ModelInferResponse* response, CallFacts* facts) {
  for (const SharedSlice& slice : slices) {
    BRAID_RETURN_IF_ERROR(CheckWhole(slice));
  }
  response->set_model_name(request.model_name());
  response->set_model_version(absl::StrCat(result.version));
  response->set_id(request.id());
  BRAID_RETURN_IF_ERROR(WriteOutputs(config, result, wanted, response));
  const auto report = request.parameters().find(kReportSplit);
  if (report != request.parameters().end() && report->second.bool_param()) {
    (*response->mutable_parameters())[kSplit].set_string_param(SplitText(result.chunks));
  }
  if (AccessLogOn()) {
    facts->chunks = static_cast<int64_t>(result.chunks.size());
    facts->phases = {{"queue", result.queued}, {"compute", result.computed}};
  }
  return CheckReplySize(response);
}

}  // namespace

InferContext ForCaller(const InferContext& context, const Caller& caller) {
  InferContext allowed = context;
  if (!caller.MayAll(Role::kInfer)) {
    allowed.regions = nullptr;
  }
  return allowed;
}

void RecordRequestId(const inference::ModelInferRequest& request, CallFacts* facts) {
  if (AccessLogOn()) {
    facts->request_id = request.id();
  }
}

absl::Time DeadlineOf(std::chrono::system_clock::time_point deadline) {
  // gRPC represents "no deadline" as a time in the year 2262.
  return deadline == std::chrono::system_clock::time_point::max() ? absl::InfiniteFuture()
                                                                  : absl::FromChrono(deadline);
}

absl::StatusOr<std::shared_ptr<RequestQueue>> FindQueue(
    const ServedModels& models, const inference::ModelInferRequest& request) {
  return FindVersion(models, request.model_name(), request.model_version(), "model_version");
}

absl::StatusOr<std::shared_ptr<InferenceRequest>> SubmitRequest(
    const InferContext& context, const std::shared_ptr<RequestQueue>& queue,
    const inference::ModelInferRequest& request, absl::Time deadline,
    inference::ModelInferResponse* response, CallFacts* facts, InferDone done) {
  const ModelConfig& config = queue->config();
  BRAID_RETURN_IF_ERROR(CheckParameters(request.parameters()));
  std::vector<SharedSlice> slices;
  BRAID_ASSIGN_OR_RETURN(std::vector<HostTensor> tensors,
                         ReadInputs(request, context.regions, &slices));
  BRAID_RETURN_IF_ERROR(CopyCheckedInputs(config, slices, &tensors));
  BRAID_RETURN_IF_ERROR(AddScalars(config, request.parameters(), &tensors));
  BRAID_ASSIGN_OR_RETURN(std::vector<HostTensor> inputs,
                         CheckInputs(config, std::move(tensors), "inputs"));
  const int64_t rows = config.merges_requests() ? RowsOf(inputs) : 1;
  facts->rows = config.batched() ? RowsOf(inputs) : 1;
  BRAID_ASSIGN_OR_RETURN(std::vector<RequestedOutput> wanted,
                         ReadRequestedOutputs(config, request, context.regions));
  BRAID_ASSIGN_OR_RETURN(const InferenceRequest::Schedule schedule,
                         ReadSchedule(request.parameters(), deadline));
  auto queued = std::make_shared<InferenceRequest>(
      std::move(inputs), rows, schedule,
      [queue, &request, response, facts, wanted = std::move(wanted), slices = std::move(slices),
       done = std::move(done)](absl::StatusOr<InferenceResult> result) mutable {
        done(result.ok()
                 ? WriteReply(queue->config(), request, *result, wanted, slices, response, facts)
                 : std::move(result).status());
      });
  BRAID_RETURN_IF_ERROR(queue->Push(queued, context.run_mode));
  return queued;
}

}  // namespace braid
