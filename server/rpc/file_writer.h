// DownloadModel: a file cut into pieces, one message each, at the pace of the client.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "braid/v1/training.grpc.pb.h"
#include "server/rpc/call.h"

namespace braid {

// Deletes itself when the call is over. gRPC calls its methods one at a time, but for Start().
class FileWriter final : public grpc::ServerWriteReactor<braid::v1::DownloadModelResponse> {
 public:
  FileWriter(const RpcContext& rpc, const grpc::CallbackServerContext& context,
             const braid::v1::DownloadModelRequest& request)
      : timer_(rpc.metrics, "DownloadModel"), caller_(rpc.access, context, "DownloadModel") {
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
  void Start(absl::StatusOr<std::string> file);

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
  std::string file_;
  size_t offset_ = 0;
  braid::v1::DownloadModelResponse piece_;
};

}  // namespace braid
