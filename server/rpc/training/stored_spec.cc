#include "server/rpc/training/stored_spec.h"

#include "braid/v1/training.pb.h"
#include "server/rpc/training/spec_messages.h"

namespace braid {

absl::StatusOr<TrainerSpec> ReadStoredSpec(const std::string& request) {
  braid::v1::CreateTrainerRequest message;
  if (!message.ParseFromString(request)) {
    return absl::DataLossError("cannot parse the stored CreateTrainerRequest");
  }
  return ReadSpec(message);
}

}  // namespace braid
