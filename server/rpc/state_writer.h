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
  StateWriter(const RpcContext& rpc, const grpc::CallbackServerContext& context,
              const braid::v1::GetStateDictRequest& request)
      : timer_(rpc.metrics, "GetStateDict"), caller_(rpc.access, context, "GetStateDict") {
    refused_ = caller_.Check(request);
    if (refused_.ok()) {
      absl::StatusOr<Ticket> ticket = rpc.admission->Admit(0, caller_.client());
      refused_ = ticket.status();
      ticket_ = ticket.ok() ? *std::move(ticket) : Ticket();
    }
  }

  // Whether the call may go on: an error is for Start(), and nothing else is to be done.
  const absl::Status& refused() const { return refused_; }
  // Begins to write, or ends the call with the error. Called once, from any thread.
  void Start(absl::StatusOr<std::vector<StateTensor>> state);

  void OnWriteDone(bool ok) override;
  void OnDone() override { delete this; }

 private:
  // Writes the next piece, or ends the call.
  void WriteNext();
  void End(const absl::Status& status);

  CallTimer timer_;
  Caller caller_;
  Ticket ticket_;
  absl::Status refused_;
  std::vector<StateTensor> state_;
  size_t tensor_ = 0;
  size_t offset_ = 0;
  braid::v1::GetStateDictResponse piece_;
};

}  // namespace braid
