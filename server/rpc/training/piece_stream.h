// A reply in pieces, one message each, at the pace of the client.
#pragma once

#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/rpc/call.h"

namespace braid {

// `Pieces` cuts: it has the types Content, from which it is made, and Piece, a message, and
// Next(Piece*), which is false when there is none left.
//
// Deletes itself when the call is over. gRPC calls its methods one at a time, but for Start().
template <typename Pieces>
class PieceStream final : public grpc::ServerWriteReactor<typename Pieces::Piece> {
 public:
  template <typename Request>
  PieceStream(const RpcContext& rpc, const grpc::CallbackServerContext& context,
              absl::string_view method, const Request& request)
      : record_(rpc.metrics, method), caller_(rpc.access, context, method) {
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
  void Start(absl::StatusOr<typename Pieces::Content> content) {
    if (!refused_.ok() || !content.ok()) {
      End(refused_.ok() ? content.status() : refused_);
      return;
    }
    pieces_.emplace(*std::move(content));
    WriteNext();
  }

  void OnWriteDone(bool ok) override {
    if (ok) {
      WriteNext();
    } else {
      End(absl::CancelledError("the client is gone"));
    }
  }
  void OnDone() override { delete this; }

 private:
  void WriteNext() {
    if (pieces_->Next(&piece_)) {
      this->StartWrite(&piece_);
    } else {
      End(absl::OkStatus());
    }
  }
  void End(const absl::Status& status) {
    caller_.Audit(status);
    this->Finish(record_.End(status, caller_, caller_.model()));
  }

  CallRecord record_;
  Caller caller_;
  Ticket ticket_;
  absl::Status refused_;
  std::optional<Pieces> pieces_;
  typename Pieces::Piece piece_;
};

}  // namespace braid
