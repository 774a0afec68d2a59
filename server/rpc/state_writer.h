// GetStateDict: tensors cut into pieces, one message each, at the pace of the client.
#pragma once

#include <cstddef>
#include <vector>

#include "absl/status/statusor.h"
#include "braid/v1/training.grpc.pb.h"
#include "server/rpc/call.h"
#include "server/training/operation.h"

namespace braid {

// Bytes of a tensor in one message at most.
inline constexpr size_t kStatePieceBytes = 1 << 20;

// Deletes itself when the call is over. gRPC calls its methods one at a time, but for Start().
class StateWriter final : public grpc::ServerWriteReactor<braid::v1::GetStateDictResponse> {
 public:
  StateWriter(const RpcContext& rpc, absl::string_view model)
      : timer_(rpc.metrics, "GetStateDict") {
    timer_.set_model(model);
    if (absl::StatusOr<Ticket> ticket = rpc.admission->Admit(0); ticket.ok()) {
      ticket_ = *std::move(ticket);
    } else {
      refused_ = ticket.status();
    }
  }

  // Begins to write, or ends the call with the error. Called once, from any thread.
  void Start(absl::StatusOr<std::vector<StateTensor>> state);

  void OnWriteDone(bool ok) override;
  void OnDone() override { delete this; }

 private:
  // Writes the next piece, or ends the call.
  void WriteNext();

  CallTimer timer_;
  Ticket ticket_;
  absl::Status refused_;
  std::vector<StateTensor> state_;
  size_t tensor_ = 0;
  size_t offset_ = 0;
  braid::v1::GetStateDictResponse piece_;
};

}  // namespace braid
