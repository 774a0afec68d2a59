#include "server/rpc/infer.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/models/input_check.h"
#include "server/rpc/model_messages.h"
#include "server/rpc/tensor_codec.h"

namespace braid {
namespace {

using Parameters = google::protobuf::Map<std::string, inference::InferParameter>;

constexpr char kReportSplit[] = "report_split";
constexpr char kSplit[] = "split";

// Extensions that change what a tensor's bytes mean: ignoring one would give a wrong answer.
absl::Status RefuseExtensions(const Parameters& parameters, const std::string& field) {
  for (const char* extension : {"shared_memory_region", "classification"}) {
    if (parameters.contains(extension)) {
      return absl::UnimplementedError(
          absl::StrCat(field, ".parameters: '", extension, "' is not offered by this server"));
    }
  }
  return absl::OkStatus();
}

// Which of the model's outputs are asked for, in the order of the request; all of them if none is
// named.
absl::StatusOr<std::vector<size_t>> RequestedOutputs(const ModelConfig& config,
                                                     const inference::ModelInferRequest& request) {
  std::vector<size_t> wanted;
  for (int i = 0; i < request.outputs_size(); ++i) {
    const auto& output = request.outputs(i);
    const std::string field = absl::StrCat("outputs[", i, "]");
    BRAID_RETURN_IF_ERROR(RefuseExtensions(output.parameters(), field));
    const auto found = std::find_if(config.outputs.begin(), config.outputs.end(),
                                    [&](const TensorSpec& s) { return s.name == output.name(); });
    if (found == config.outputs.end()) {
      const auto name = [](std::string* out, const TensorSpec& spec) {
        absl::StrAppend(out, "'", spec.name, "'");
      };
      return InvalidField(field + ".name", absl::StrCat("model '", config.name, "' has no output '",
                                                        Excerpt(output.name()), "'; it has ",
                                                        absl::StrJoin(config.outputs, ", ", name)));
    }
    const auto index = static_cast<size_t>(found - config.outputs.begin());
    if (std::find(wanted.begin(), wanted.end(), index) != wanted.end()) {
      return InvalidField(field + ".name", absl::StrCat("output '", output.name(),
                                                        "' is there twice; expected once"));
    }
    wanted.push_back(index);
  }
  for (size_t o = 0; request.outputs_size() == 0 && o < config.outputs.size(); ++o) {
    wanted.push_back(o);
  }
  return wanted;
}

std::string SplitText(const std::vector<ChunkReport>& chunks) {
  return absl::StrJoin(chunks, ",", [](std::string* out, const ChunkReport& chunk) {
    absl::StrAppend(out, chunk.device, "=", chunk.rows);
  });
}

void FillResponse(const inference::ModelInferRequest& request, const InferenceResult& result,
                  const std::vector<size_t>& wanted, inference::ModelInferResponse* response) {
  response->set_model_name(request.model_name());
  response->set_model_version(absl::StrCat(result.version));
  response->set_id(request.id());
  for (const size_t output : wanted) {
    WriteOutput(result.outputs[output], response);
  }
  const auto report = request.parameters().find(kReportSplit);
  if (report != request.parameters().end() && report->second.bool_param()) {
    (*response->mutable_parameters())[kSplit].set_string_param(SplitText(result.chunks));
  }
}

}  // namespace

absl::Status StartInfer(const ServedModels& models, const inference::ModelInferRequest& request,
                        absl::Time deadline, inference::ModelInferResponse* response,
                        std::shared_ptr<UnaryCall> call) {
  BRAID_ASSIGN_OR_RETURN(const int64_t version,
                         ParseVersion(request.model_version(), "model_version"));
  BRAID_ASSIGN_OR_RETURN(const std::shared_ptr<RequestQueue> queue,
                         models.Find(request.model_name(), version));
  for (int i = 0; i < request.inputs_size(); ++i) {
    BRAID_RETURN_IF_ERROR(
        RefuseExtensions(request.inputs(i).parameters(), absl::StrCat("inputs[", i, "]")));
  }
  const ModelConfig& config = queue->config();
  BRAID_ASSIGN_OR_RETURN(std::vector<HostTensor> tensors, ReadInputs(request));
  BRAID_ASSIGN_OR_RETURN(std::vector<HostTensor> inputs,
                         CheckInputs(config, std::move(tensors), "inputs"));
  BRAID_ASSIGN_OR_RETURN(std::vector<size_t> wanted, RequestedOutputs(config, request));
  const int64_t rows = config.batched() ? RowsOf(inputs) : 1;
  InferenceRequest::Schedule schedule;
  schedule.arrival = absl::Now();
  schedule.deadline = deadline;
  return queue->Push(std::make_shared<InferenceRequest>(
      std::move(inputs), rows, schedule,
      [&request, response, call = std::move(call),
       wanted = std::move(wanted)](absl::StatusOr<InferenceResult> result) {
        if (result.ok()) {
          FillResponse(request, *result, wanted, response);
        }
        call->Finish(result.status());
      }));
}

}  // namespace braid
