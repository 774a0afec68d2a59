#include "server/batching/inference_request.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/base/status.h"

namespace braid {
namespace {

// An argument of forward() that is one number, or None. Others that every replica gets whole are
// not worth comparing.
bool SameScalar(const HostTensor& a, const HostTensor& b) {
  const bool brief = a.broadcast && (a.shape.empty() || a.bytes == 0);
  return brief && b.broadcast && a.shape == b.shape && a.bytes == b.bytes &&
         std::memcmp(a.data, b.data, a.bytes) == 0;
}

bool SameButRows(const HostTensor& a, const HostTensor& b) {
  return a.shape.size() == b.shape.size() && !a.shape.empty() &&
         std::equal(a.shape.begin() + 1, a.shape.end(), b.shape.begin() + 1) && !a.broadcast;
}

}  // namespace

bool InferenceRequest::SharesBatchWith(const InferenceRequest& other) const {
  return this == &other ||
         std::equal(inputs_.begin(), inputs_.end(), other.inputs_.begin(), other.inputs_.end(),
                    [](const HostTensor& a, const HostTensor& b) {
                      return SameButRows(a, b) || SameScalar(a, b);
                    });
}

void InferenceRequest::Enter(std::shared_ptr<Queue> queue, Place place) {
  const absl::MutexLock lock(&mu_);
  queue_ = std::move(queue);
  place_ = place;
}

InferenceRequest::Place InferenceRequest::place() const {
  const absl::MutexLock lock(&mu_);
  return place_;
}

bool InferenceRequest::Begin(absl::Time now) {
  const absl::MutexLock lock(&mu_);
  if (!error_.ok() || answered_) {
    return false;
  }
  ++running_;
  begun_ = std::min(begun_, now);
  return true;
}

absl::Status InferenceRequest::error() const {
  const absl::MutexLock lock(&mu_);
  return error_;
}

absl::Time InferenceRequest::begun() const {
  const absl::MutexLock lock(&mu_);
  return begun_;
}

void InferenceRequest::Finish(int64_t start, int64_t rows, std::vector<HostTensor> outputs,
                              std::string device, int64_t version,
                              const BatchDurations& durations) {
  {
    const absl::MutexLock lock(&mu_);
    --running_;
    rows_done_ += rows;
    pieces_.push_back({start, rows, std::move(outputs), std::move(device), durations});
  }
  AnswerIfOver(version);
}

void InferenceRequest::Fail(const absl::Status& status) {
  {
    const absl::MutexLock lock(&mu_);
    running_ = std::max<int64_t>(running_ - 1, 0);
  }
  GiveUp(status);
}

void InferenceRequest::Cancel() {
  GiveUp(absl::CancelledError("the client has cancelled the request"));
}

void InferenceRequest::GiveUp(const absl::Status& status) {
  std::shared_ptr<Queue> queue;
  {
    const absl::MutexLock lock(&mu_);
    error_.Update(status);
    queue = queue_;
  }
  if (queue != nullptr) {
    queue->Drop(*this);
  }
  AnswerIfOver(0);
}

void InferenceRequest::AnswerIfOver(int64_t version) {
  Done done;
  absl::Status error;
  std::vector<Piece> pieces;
  std::shared_ptr<Queue> queue;
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
  absl::StatusOr<InferenceResult> result =
      error.ok() ? Assemble(std::move(pieces), version) : std::move(error);
  if (queue != nullptr) {
    queue->Answer(*this, std::move(done), std::move(result));
  } else {
    done(std::move(result));
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
    result.durations += piece.durations;
  }
  for (size_t o = 0; o < pieces.front().outputs.size(); ++o) {
    std::vector<HostTensor> parts;
    parts.reserve(pieces.size());
    for (Piece& piece : pieces) {
      parts.push_back(std::move(piece.outputs[o]));
    }
    BRAID_ASSIGN_OR_RETURN(GatheredTensor output, Gather(std::move(parts)));
    result.outputs.push_back(std::move(output));
  }
  return result;
}

absl::StatusOr<GatheredTensor> Gather(std::vector<HostTensor> pieces) {
  GatheredTensor whole{
      pieces.front().name, pieces.front().type, pieces.front().shape, pieces.front().bytes, {}};
  for (size_t p = 1; p < pieces.size(); ++p) {
    const HostTensor& piece = pieces[p];
    if (!SameButRows(piece, pieces.front())) {
      return absl::InvalidArgumentError(
          absl::StrCat("output '", whole.name, "' has shape ", ShapeString(pieces.front().shape),
                       " for some rows of the request and ", ShapeString(piece.shape),
                       " for others: it cannot be gathered"));
    }
    whole.shape[0] += piece.shape[0];
    whole.bytes += piece.bytes;
  }
  whole.pieces = std::move(pieces);
  return whole;
}

}  // namespace braid
