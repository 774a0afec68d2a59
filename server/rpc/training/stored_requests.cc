#include "server/rpc/training/stored_requests.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "braid/v1/training.pb.h"
#include "server/base/status.h"
#include "server/rpc/training/spec_messages.h"
#include "server/rpc/training/training_messages.h"

namespace braid {
namespace {

template <typename Request>
absl::StatusOr<Operation> Parse(const std::string& request) {
  auto message = std::make_shared<Request>();
  if (!message->ParseFromString(request)) {
    return absl::DataLossError(
        absl::StrCat("cannot parse the stored ", Request::descriptor()->name()));
  }
  BRAID_ASSIGN_OR_RETURN(Operation operation, ReadOperation(*message));
  operation.request = std::move(message);
  return operation;
}

}  // namespace

absl::StatusOr<TrainerSpec> ReadStoredSpec(const std::string& request) {
  braid::v1::CreateTrainerRequest message;
  if (!message.ParseFromString(request)) {
    return absl::DataLossError("cannot parse the stored CreateTrainerRequest");
  }
  return ReadSpec(message);
}

absl::StatusOr<Operation> ReadStoredOperation(OperationKind kind, const std::string& request) {
  switch (kind) {
    case OperationKind::kStep:
      return Parse<braid::v1::StepRequest>(request);
    case OperationKind::kForwardBackward:
      return Parse<braid::v1::ForwardBackwardRequest>(request);
    case OperationKind::kOptimStep:
      return Parse<braid::v1::OptimStepRequest>(request);
    case OperationKind::kForward:
      return Parse<braid::v1::ForwardRequest>(request);
    case OperationKind::kBackward:
      return Parse<braid::v1::BackwardRequest>(request);
    case OperationKind::kPublish:
      return Parse<braid::v1::PublishRequest>(request);
  }
  return absl::InternalError("unknown kind of operation");
}

}  // namespace braid
