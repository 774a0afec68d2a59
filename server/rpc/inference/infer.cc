#include "server/rpc/inference/infer.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "server/base/status.h"
#include "server/batching/ordered_replies.h"
#include "server/decode/decode_inputs.h"
#include "server/models/batch_layout.h"
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
constexpr char kReportStep[] = "report_step";
constexpr char kTrainingStep[] = "braid_training_step";

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

// A request between SubmitRequest() and `done`.
struct Submission {
  std::shared_ptr<RequestQueue> queue;
  InferCallState call;
  // A batch on the thread that pushes would delay requests that are decoded or pushed in order.
  RunMode run_mode = RunMode::kOnWorker;
  InferenceRequest::Schedule schedule;
  std::vector<RequestedOutput> wanted;
  // Shared memory of the inputs.
  std::vector<SharedSlice> slices;
  // In the order of the request, without the inputs that are being decoded.
  std::vector<HostTensor> tensors;
  // Indices of those inputs in the request.
  std::vector<int> encoded_positions;
};

// Returns true if the request has a parameter `name` that is true.
bool Asks(const inference::ModelInferRequest& request, const char* name) {
  const auto found = request.parameters().find(name);
  return found != request.parameters().end() && found->second.bool_param();
}

// Adds the training step of a version that a trainer published.
void WriteStep(const ModelConfig& config, inference::ModelInferResponse* response) {
  int64_t step = 0;
  if (const auto found = config.origin.find("step");
      found != config.origin.end() && absl::SimpleAtoi(found->second, &step)) {
    (*response->mutable_parameters())[kTrainingStep].set_int64_param(step);
  }
}

// Writes the response.
absl::Status WriteReply(const Submission& submission, const InferenceResult& result) {
  const InferCallState& call = submission.call;
  for (const SharedSlice& slice : submission.slices) {
    BRAID_RETURN_IF_ERROR(CheckWhole(slice));  // The client may have truncated it.
  }
  call.response->set_model_name(call.request->model_name());
  call.response->set_model_version(absl::StrCat(result.version));
  call.response->set_id(call.request->id());
  BRAID_RETURN_IF_ERROR(
      WriteOutputs(submission.queue->config(), result, submission.wanted, call.response));
  if (Asks(*call.request, kReportStep)) {
    WriteStep(submission.queue->config(), call.response);
  }
  if (Asks(*call.request, kReportSplit)) {
    (*call.response->mutable_parameters())[kSplit].set_string_param(SplitText(result.chunks));
  }
  if (AccessLogOn()) {
    call.facts->chunks = static_cast<int64_t>(result.chunks.size());
    call.facts->phases = {{"queue", result.queued}, {"compute", result.computed}};
    if (result.decoded > absl::ZeroDuration()) {
      call.facts->phases.insert(call.facts->phases.begin(), {"decode", result.decoded});
    }
  }
  return CheckReplySize(call.response);
}

// Adds masks, except those that the client has sent.
void AddMasks(std::vector<HostTensor> masks, std::vector<HostTensor>* tensors) {
  for (HostTensor& mask : masks) {
    if (std::none_of(tensors->begin(), tensors->end(),
                     [&](const HostTensor& sent) { return sent.name == mask.name; })) {
      tensors->push_back(std::move(mask));
    }
  }
}

// True if a tensor is one that CheckInputs() may accept once it is padded.
bool IsPadded(const TensorSpec& spec, const HostTensor& tensor) {
  return tensor.name == spec.name && spec.padding != nullptr && tensor.type == spec.type &&
         tensor.shape.size() == spec.dims.size() + 1 && tensor.bytes > 0 &&
         std::equal(tensor.shape.begin() + 2, tensor.shape.end(), spec.dims.begin() + 1);
}

// Pads inputs as the model's configuration says, and adds their masks. Counts the bytes in
// `ticket`.
absl::Status PadInputs(const ModelConfig& config, Ticket* ticket,
                       std::vector<HostTensor>* tensors) {
  std::vector<HostTensor> masks;
  for (HostTensor& tensor : *tensors) {
    const auto spec =
        std::find_if(config.inputs.begin(), config.inputs.end(),
                     [&](const TensorSpec& candidate) { return IsPadded(candidate, tensor); });
    if (spec == config.inputs.end()) {
      continue;
    }
    std::vector<EncodedRow> rows;
    const size_t row_bytes = tensor.bytes / static_cast<size_t>(tensor.rows());
    for (int64_t row = 0; row < tensor.rows(); ++row) {
      const auto* const data = static_cast<const char*>(tensor.data);
      rows.push_back({{data + static_cast<size_t>(row) * row_bytes, row_bytes}, row});
    }
    BRAID_ASSIGN_OR_RETURN(std::vector<HostTensor> padded, spec->padding->Decode(rows, {}));
    for (const HostTensor& made : padded) {
      BRAID_RETURN_IF_ERROR(ticket->Add(made.bytes));
    }
    padded.front().name = tensor.name;
    tensor = std::move(padded.front());
    masks.insert(masks.end(), std::make_move_iterator(padded.begin() + 1),
                 std::make_move_iterator(padded.end()));
  }
  AddMasks(std::move(masks), tensors);
  return absl::OkStatus();
}

// Adds scalars to the tensors, and checks them and brings them into the model's order.
absl::Status CompleteInputs(Submission* submission) {
  const ModelConfig& config = submission->queue->config();
  BRAID_RETURN_IF_ERROR(PadInputs(config, submission->call.ticket, &submission->tensors));
  BRAID_RETURN_IF_ERROR(
      AddScalars(config, submission->call.request->parameters(), &submission->tensors));
  BRAID_ASSIGN_OR_RETURN(submission->tensors,
                         CheckInputs(config, std::move(submission->tensors), "inputs"));
  return absl::OkStatus();
}

// Pushes a request whose inputs are complete.
absl::Status Push(const std::shared_ptr<Submission>& submission) {
  const std::shared_ptr<RequestQueue> queue = submission->queue;
  const std::shared_ptr<Cancellation> cancellation = submission->call.cancellation;
  std::vector<HostTensor> inputs = std::move(submission->tensors);
  const int64_t rows = queue->config().merges_requests() ? RowsOf(inputs) : 1;
  const auto request = std::make_shared<InferenceRequest>(
      std::move(inputs), rows, submission->schedule,
      [submission](absl::StatusOr<InferenceResult> result) {
        submission->call.done(result.ok() ? WriteReply(*submission, *result)
                                          : std::move(result).status());
      });
  BRAID_RETURN_IF_ERROR(queue->Push(request, submission->run_mode));
  cancellation->OnQueued(request);
  return absl::OkStatus();
}

// Same, and passes an error to `done`.
void PushOrReply(const std::shared_ptr<Submission>& submission) {
  if (const absl::Status status = Push(submission); !status.ok()) {
    submission->call.done(status);
  }
}

// Takes the request's place in the order of arrival; 0 if any order is fine.
OrderedReplies::Slot ReserveSlot(const RequestQueue& queue) {
  return queue.arrivals() == nullptr ? 0 : queue.arrivals()->Reserve();
}

void ReleaseSlot(const RequestQueue& queue, OrderedReplies::Slot slot) {
  if (queue.arrivals() != nullptr) {
    queue.arrivals()->Skip(slot);
  }
}

// Pushes the request once all requests before `slot` are pushed.
void PushInOrder(OrderedReplies::Slot slot, const std::shared_ptr<Submission>& submission) {
  const std::shared_ptr<RequestQueue> queue = submission->queue;
  if (queue->arrivals() == nullptr) {
    PushOrReply(submission);
  } else {
    queue->arrivals()->Provide(slot, [submission] { PushOrReply(submission); });
  }
}

// Adds decoded tensors to the request. A mask that the client has sent replaces the decoder's.
absl::Status AddDecoded(DecodedInputs decoded, Submission* submission) {
  std::vector<HostTensor>& tensors = submission->tensors;
  for (size_t i = 0; i < decoded.tensors.size(); ++i) {
    tensors.insert(tensors.begin() + submission->encoded_positions[i],
                   std::move(decoded.tensors[i]));
  }
  AddMasks(std::move(decoded.masks), &tensors);
  submission->schedule.decoding = decoded.duration;
  return CompleteInputs(submission);
}

// Continues a request with the result of its decoding. rows: of all encoded inputs.
absl::Status FinishDecoding(absl::StatusOr<DecodedInputs> decoded, int64_t rows,
                            Submission* submission) {
  RequestQueue& queue = *submission->queue;
  if (absl::IsInvalidArgument(decoded.status())) {
    queue.CountDecodeFailure();
  }
  BRAID_RETURN_IF_ERROR(decoded.status());
  queue.CountDecoded(rows, decoded->busy);
  return AddDecoded(*std::move(decoded), submission);
}

// Returns the check before each part of the decoding.
CheckBeforeDecode StopsWith(const InferCallState& call) {
  return [cancellation = call.cancellation, deadline = call.deadline]() -> absl::Status {
    if (cancellation->cancelled()) {
      return absl::CancelledError("the client cancelled the request");
    }
    if (absl::Now() >= deadline) {
      return absl::DeadlineExceededError("the deadline passed before the inputs were decoded");
    }
    return absl::OkStatus();
  };
}

// Decodes `encoded`, then pushes the request.
absl::Status DecodeAndPush(EncodedInputs encoded, DecodeThreads* threads,
                           const std::shared_ptr<Submission>& submission) {
  const InferCallState& call = submission->call;
  int64_t rows = 0;
  for (const EncodedInput& input : encoded.inputs) {
    const auto spec =
        std::find_if(encoded.specs.begin(), encoded.specs.end(),
                     [&](const TensorSpec& other) { return other.name == input.name; });
    BRAID_RETURN_IF_ERROR(call.ticket->Add(DecodingBytes(input, *spec->decode, threads->count())));
    rows += static_cast<int64_t>(input.rows.size());
  }
  call.facts->rows = static_cast<int64_t>(encoded.inputs.front().rows.size());
  submission->encoded_positions = std::move(encoded.positions);
  const OrderedReplies::Slot slot = ReserveSlot(*submission->queue);
  const absl::Status started = DecodeInputs(
      threads, std::move(encoded.inputs), StopsWith(call),
      [submission, queue = submission->queue, slot, rows](absl::StatusOr<DecodedInputs> decoded) {
        const absl::Status status = FinishDecoding(std::move(decoded), rows, submission.get());
        if (status.ok()) {
          PushInOrder(slot, submission);
          return;
        }
        submission->call.done(status);
        ReleaseSlot(*queue, slot);
      });
  if (!started.ok()) {
    ReleaseSlot(*submission->queue, slot);
  }
  return started;
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

absl::Status SubmitRequest(const InferContext& context, std::shared_ptr<RequestQueue> queue,
                           InferCallState call) {
  const ModelConfig& config = queue->config();
  const inference::ModelInferRequest& request = *call.request;
  const auto submission = std::make_shared<Submission>();
  BRAID_RETURN_IF_ERROR(CheckParameters(request.parameters()));
  EncodedInputs encoded{config.inputs};
  BRAID_ASSIGN_OR_RETURN(submission->tensors,
                         ReadInputs(request, context.regions, &submission->slices, &encoded));
  BRAID_ASSIGN_OR_RETURN(const size_t moved, BatchToFront(config.inputs, &submission->tensors));
  BRAID_RETURN_IF_ERROR(call.ticket->Add(moved));
  BRAID_RETURN_IF_ERROR(CopyCheckedInputs(config, submission->slices, &submission->tensors));
  BRAID_ASSIGN_OR_RETURN(submission->wanted,
                         ReadRequestedOutputs(config, request, context.regions));
  BRAID_ASSIGN_OR_RETURN(submission->schedule, ReadSchedule(request.parameters(), call.deadline));
  submission->call = std::move(call);
  submission->queue = std::move(queue);
  if (!encoded.inputs.empty()) {
    return DecodeAndPush(std::move(encoded), context.decode_threads, submission);
  }
  BRAID_RETURN_IF_ERROR(CompleteInputs(submission.get()));
  submission->call.facts->rows = config.batched() ? RowsOf(submission->tensors) : 1;
  if (submission->queue->arrivals() == nullptr) {
    submission->run_mode = context.run_mode;
    return Push(submission);
  }
  PushInOrder(ReserveSlot(*submission->queue), submission);
  return absl::OkStatus();
}

}  // namespace braid
