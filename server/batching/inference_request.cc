#include "server/batching/inference_request.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/base/status.h"

namespace braid {
namespace {

// Compares numbers and None. Larger broadcast inputs are never shared: comparing their bytes would
// cost too much.
bool EqualScalars(const HostTensor& a, const HostTensor& b) {
  const bool scalar = a.broadcast && (a.shape.empty() || a.bytes == 0);
  return scalar && b.broadcast && a.shape == b.shape && a.bytes == b.bytes &&
         std::memcmp(a.data, b.data, a.bytes) == 0;
}

// True if the shapes differ in dim 0 at most.
bool EqualButRows(const HostTensor& a, const HostTensor& b) {
  return a.shape.size() == b.shape.size() && !a.shape.empty() &&
         std::equal(a.shape.begin() + 1, a.shape.end(), b.shape.begin() + 1) && !a.broadcast;
}

}  // namespace

bool InferenceRequest::SharesBatchWith(const InferenceRequest& other) const {
  return this == &other ||
         std::equal(inputs_.begin(), inputs_.end(), other.inputs_.begin(), other.inputs_.end(),
                    [](const HostTensor& a, const HostTensor& b) {
                      return EqualButRows(a, b) || EqualScalars(a, b);
                    });
}

void InferenceRequest::EnterQueue(std::shared_ptr<Queue> queue, Place place) {
  const absl::MutexLock lock(&mu_);
  queue_ = std::move(queue);
  place_ = place;
}

InferenceRequest::Place InferenceRequest::place() const {
  const absl::MutexLock lock(&mu_);
  return place_;
}

bool InferenceRequest::TryStart(absl::Time now) {
  const absl::MutexLock lock(&mu_);
  if (!error_.ok() || completed_) {
    return false;
  }
  ++running_;
  started_ = std::min(started_, now);
  return true;
}

absl::Status InferenceRequest::error() const {
  const absl::MutexLock lock(&mu_);
  return error_;
}

absl::Time InferenceRequest::started() const {
  const absl::MutexLock lock(&mu_);
  return started_;
}

void InferenceRequest::Finish(int64_t start, int64_t rows, std::vector<HostTensor> outputs,
                              std::string device, int64_t version,
                              const BatchDurations& durations) {
  {
    const absl::MutexLock lock(&mu_);
    --running_;
    rows_done_ += rows;
    chunks_.emplace(start, Chunk{{std::move(device), rows}, std::move(outputs), durations});
  }
  CompleteIfDone(version);
}

void InferenceRequest::Fail(const absl::Status& status) {
  {
    const absl::MutexLock lock(&mu_);
    running_ = std::max<int64_t>(running_ - 1, 0);
  }
  Abandon(status);
}

void InferenceRequest::Cancel() {
  Abandon(absl::CancelledError("the client cancelled the request"));
}

void InferenceRequest::Abandon(const absl::Status& status) {
  std::shared_ptr<Queue> queue;
  {
    const absl::MutexLock lock(&mu_);
    error_.Update(status);
    queue = queue_;
  }
  if (queue != nullptr) {
    queue->Remove(*this);
  }
  CompleteIfDone(/*version=*/0);
}

void InferenceRequest::CompleteIfDone(int64_t version) {
  Done done;
  absl::Status error;
  Chunks chunks;
  std::shared_ptr<Queue> queue;
  {
    const absl::MutexLock lock(&mu_);
    if (completed_ || running_ > 0 || (error_.ok() && rows_done_ < rows_)) {
      return;
    }
    completed_ = true;
    done = std::move(done_);
    error = error_;
    chunks = std::exchange(chunks_, {});
    queue = std::exchange(queue_, nullptr);
  }
  absl::StatusOr<InferenceResult> result =
      error.ok() ? Assemble(std::move(chunks), version) : std::move(error);
  if (queue != nullptr) {
    queue->Complete(*this, std::move(done), std::move(result));
  } else {
    done(std::move(result));
  }
}

absl::StatusOr<InferenceResult> InferenceRequest::Assemble(Chunks chunks, int64_t version) {
  InferenceResult result;
  result.version = version;
  for (auto& [start, chunk] : chunks) {
    result.chunks.push_back(std::move(chunk.report));
    result.durations += chunk.durations;
  }
  const size_t outputs = chunks.begin()->second.outputs.size();
  for (size_t o = 0; o < outputs; ++o) {
    std::vector<HostTensor> parts;
    parts.reserve(chunks.size());
    for (auto& [start, chunk] : chunks) {
      parts.push_back(std::move(chunk.outputs[o]));
    }
    BRAID_ASSIGN_OR_RETURN(GatheredTensor output, Gather(std::move(parts)));
    result.outputs.push_back(std::move(output));
  }
  return result;
}

absl::StatusOr<GatheredTensor> Gather(std::vector<HostTensor> chunks) {
  const HostTensor& first = chunks.front();
  GatheredTensor whole{first.name, first.type, first.shape, first.bytes, {}};
  for (size_t c = 1; c < chunks.size(); ++c) {
    const HostTensor& chunk = chunks[c];
    if (!EqualButRows(chunk, first)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "output '", whole.name, "': cannot gather chunks of shapes ", ShapeString(first.shape),
          " and ", ShapeString(chunk.shape), " (all chunks must agree except in dim 0)"));
    }
    whole.shape[0] += chunk.shape[0];
    whole.bytes += chunk.bytes;
  }
  whole.pieces = std::move(chunks);
  return whole;
}

}  // namespace braid
