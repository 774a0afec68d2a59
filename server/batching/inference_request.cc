#include "server/batching/inference_request.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/base/status.h"

namespace braid {
namespace {

bool SameButRows(const HostTensor& a, const HostTensor& b) {
  return a.shape.size() == b.shape.size() && !a.shape.empty() &&
         std::equal(a.shape.begin() + 1, a.shape.end(), b.shape.begin() + 1) && !a.broadcast;
}

}  // namespace

bool InferenceRequest::SharesBatchWith(const InferenceRequest& other) const {
  return this == &other || std::equal(inputs_.begin(), inputs_.end(), other.inputs_.begin(),
                                      other.inputs_.end(), SameButRows);
}

void InferenceRequest::KeepAlive(std::shared_ptr<const void> queue) {
  const absl::MutexLock lock(&mu_);
  queue_ = std::move(queue);
}

bool InferenceRequest::Begin() {
  const absl::MutexLock lock(&mu_);
  if (!error_.ok() || answered_) {
    return false;
  }
  ++running_;
  return true;
}

void InferenceRequest::Finish(int64_t start, int64_t rows, std::vector<HostTensor> outputs,
                              std::string device, int64_t version) {
  {
    const absl::MutexLock lock(&mu_);
    --running_;
    rows_done_ += rows;
    pieces_.push_back({start, rows, std::move(outputs), std::move(device)});
  }
  AnswerIfOver(version);
}

void InferenceRequest::Fail(const absl::Status& status) {
  {
    const absl::MutexLock lock(&mu_);
    running_ = std::max<int64_t>(running_ - 1, 0);
    error_.Update(status);
  }
  AnswerIfOver(0);
}

void InferenceRequest::Cancel() {
  {
    const absl::MutexLock lock(&mu_);
    error_.Update(absl::CancelledError("the client has cancelled the request"));
  }
  AnswerIfOver(0);
}

bool InferenceRequest::failed() const {
  const absl::MutexLock lock(&mu_);
  return !error_.ok();
}

void InferenceRequest::AnswerIfOver(int64_t version) {
  Done done;
  absl::Status error;
  std::vector<Piece> pieces;
  std::shared_ptr<const void> queue;
  {
    const absl::MutexLock lock(&mu_);
    if (answered_ || running_ > 0 || (error_.ok() && rows_done_ < rows_)) {
      return;
    }
    answered_ = true;
    done = std::move(done_);
    error = error_;
    pieces = std::exchange(pieces_, {});
    queue = std::exchange(queue_, nullptr);
  }
  if (!error.ok()) {
    done(std::move(error));
  } else {
    done(Assemble(std::move(pieces), version));
  }
}

absl::StatusOr<InferenceResult> InferenceRequest::Assemble(std::vector<Piece> pieces,
                                                           int64_t version) {
  std::sort(pieces.begin(), pieces.end(),
            [](const Piece& a, const Piece& b) { return a.start < b.start; });
  InferenceResult result;
  result.version = version;
  for (const Piece& piece : pieces) {
    result.chunks.push_back({piece.device, piece.rows});
  }
  for (size_t o = 0; o < pieces.front().outputs.size(); ++o) {
    std::vector<const HostTensor*> parts;
    parts.reserve(pieces.size());
    for (const Piece& piece : pieces) {
      parts.push_back(&piece.outputs[o]);
    }
    BRAID_ASSIGN_OR_RETURN(HostTensor output, ConcatenateRows(parts));
    result.outputs.push_back(std::move(output));
  }
  return result;
}

absl::StatusOr<HostTensor> ConcatenateRows(const std::vector<const HostTensor*>& pieces) {
  HostTensor whole = *pieces.front();
  if (pieces.size() == 1) {
    return whole;
  }
  whole.shape[0] = 0;
  whole.bytes = 0;
  for (const HostTensor* piece : pieces) {
    if (!SameButRows(*piece, *pieces.front())) {
      return absl::InvalidArgumentError(
          absl::StrCat("output '", whole.name, "' has shape ", ShapeString(pieces.front()->shape),
                       " for some rows of the request and ", ShapeString(piece->shape),
                       " for others: it cannot be gathered"));
    }
    whole.shape[0] += piece->shape[0];
    whole.bytes += piece->bytes;
  }
  const std::shared_ptr<char[]> bytes(new char[whole.bytes]);
  char* end = bytes.get();
  for (const HostTensor* piece : pieces) {
    std::memcpy(end, piece->data, piece->bytes);
    end += piece->bytes;
  }
  whole.data = bytes.get();
  whole.owner = bytes;
  return whole;
}

}  // namespace braid
