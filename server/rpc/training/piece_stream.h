// Server-streaming reply that is sent in pieces of at most 1 MiB, with flow control.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "braid/v1/training.pb.h"
#include "server/rpc/call.h"
#include "server/training/trainer/operation.h"
#include "server/training/trainer/trainer_history.h"

namespace braid {

// A file, for DownloadModel.
class FilePieces {
 public:
  using Content = std::string;
  using Piece = braid::v1::DownloadModelResponse;

  explicit FilePieces(std::string file) : file_(std::move(file)) {}

  bool Next(Piece* piece);

 private:
  std::string file_;
  size_t offset_ = 0;
};

// The tensors of a state_dict, for GetStateDict. A piece belongs to one tensor.
class StatePieces {
 public:
  using Content = std::vector<StateTensor>;
  using Piece = braid::v1::GetStateDictResponse;

  explicit StatePieces(std::vector<StateTensor> state) : state_(std::move(state)) {}

  bool Next(Piece* piece);

 private:
  std::vector<StateTensor> state_;
  size_t tensor_ = 0;
  size_t offset_ = 0;
};

// The operations of a journal, for GetHistory.
class HistoryPieces {
 public:
  using Content = std::vector<RecordedOperation>;
  using Piece = braid::v1::GetHistoryResponse;

  explicit HistoryPieces(std::vector<RecordedOperation> history) : history_(std::move(history)) {}

  bool Next(Piece* piece);

 private:
  std::vector<RecordedOperation> history_;
  size_t next_ = 0;
};

// Pieces: class with the types Content (its constructor's argument) and Piece (a message), and
// bool Next(Piece*), which returns false at the end.
//
// Deletes itself when the call is over. gRPC calls the reactor methods one at a time.
template <typename Pieces>
class PieceStream final : public grpc::ServerWriteReactor<typename Pieces::Piece> {
 public:
  template <typename Request>
  PieceStream(const RpcContext& rpc, const grpc::CallbackServerContext& context,
              absl::string_view method, const Request& request)
      : record_(rpc.metrics, method), caller_(rpc.access, context, method) {
    error_ = caller_.Check(request);
    if (error_.ok()) {
      absl::StatusOr<Ticket> ticket = rpc.admission->Admit(0, caller_.client());
      error_ = ticket.status();
      ticket_ = ticket.ok() ? *std::move(ticket) : Ticket();
    }
  }

  // Error of authorization or admission. The caller then only calls Start().
  const absl::Status& error() const { return error_; }
  // Starts to write, or ends the call with an error. Call once, from any thread.
  void Start(absl::StatusOr<typename Pieces::Content> content) {
    if (!error_.ok() || !content.ok()) {
      End(error_.ok() ? content.status() : error_);
      return;
    }
    pieces_.emplace(*std::move(content));
    WriteNext();
  }

  void OnWriteDone(bool ok) override {
    if (ok) {
      WriteNext();
    } else {
      End(absl::CancelledError("the client disconnected or cancelled the call"));
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
  absl::Status error_;
  std::optional<Pieces> pieces_;
  typename Pieces::Piece piece_;
};

}  // namespace braid
