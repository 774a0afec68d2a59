#include "server/jobs/served_job_model.h"

#include <algorithm>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/base/status.h"
#include "server/batching/batch_queue.h"
#include "server/batching/inference_request.h"
#include "server/models/input_check.h"
#include "server/models/model_config.h"

namespace braid {
namespace {

// Rows of a request to a model that does not merge requests.
int64_t WholeRows(const ModelConfig& config, int64_t batch_size) {
  if (config.fixed_rows) {
    return config.inputs.front().dims.front();
  }
  return config.batched() ? std::max(batch_size, config.min_rows) : 1;
}

// Removes dim 0, of 1 row, where the model's input has no such dim. Returns true if it did so.
bool DropRowDim(const ModelConfig& config, std::vector<HostTensor>* inputs) {
  bool dropped = false;
  for (HostTensor& input : *inputs) {
    const bool drops =
        std::any_of(config.inputs.begin(), config.inputs.end(), [&](const TensorSpec& spec) {
          return spec.name == input.name && input.shape.size() == spec.dims.size() + 1;
        });
    if (drops && input.rows() == 1) {
      input.shape.erase(input.shape.begin());
      dropped = true;
    }
  }
  return dropped;
}

void AddRowDim(InferenceResult* result) {
  for (GatheredTensor& output : result->outputs) {
    output.shape.insert(output.shape.begin(), 1);
    for (HostTensor& piece : output.pieces) {
      piece.shape.insert(piece.shape.begin(), 1);
    }
  }
}

absl::StatusOr<InferenceResult> CheckRows(absl::StatusOr<InferenceResult> result, int64_t rows) {
  if (!result.ok()) {
    return result;
  }
  for (const GatheredTensor& output : result->outputs) {
    if (output.shape.empty() || output.shape.front() != rows) {
      return absl::FailedPreconditionError(absl::StrCat("output '", output.name, "': shape ",
                                                        ShapeString(output.shape), " for ", rows,
                                                        " rows (expected dim 0 to be the rows)"));
    }
  }
  return result;
}

}  // namespace

absl::StatusOr<int64_t> ServedJobModel::Open(int64_t version) {
  absl::StatusOr<std::shared_ptr<BatchQueue>> found = publisher_->FindOrLoad(name_, version);
  if (!found.ok()) {
    return absl::Status(found.status().code(),
                        absl::StrCat(version == 0 ? "spec.infer.model: " : "spec.infer.version: ",
                                     found.status().message()));
  }
  queue_ = std::make_shared<BackgroundQueue>(*std::move(found), batch_size_, metrics_);
  queue_->Start();
  return queue_->version().version();
}

int64_t ServedJobModel::request_rows() const {
  const ModelConfig& config = queue_->version().config();
  return config.merges_requests() ? queue_->request_rows() : WholeRows(config, batch_size_);
}

size_t ServedJobModel::max_in_flight() const {
  // One for each worker, and as many as the job may be late with while it writes.
  return queue_->version().replicas().size() + 2;
}

bool ServedJobModel::independent_rows() const {
  return queue_->version().config().merges_requests();
}

void ServedJobModel::Infer(std::vector<HostTensor> inputs, int64_t rows, Done done) {
  const ModelConfig& config = queue_->version().config();
  const bool dropped = !config.batched() && DropRowDim(config, &inputs);
  absl::StatusOr<std::vector<HostTensor>> checked =
      CheckInputs(config, std::move(inputs), "inputs");
  if (!checked.ok()) {
    done(checked.status());
    return;
  }
  InferenceRequest::Schedule schedule;
  schedule.arrival = absl::Now();
  queue_->Push(std::make_shared<InferenceRequest>(
      *std::move(checked), config.merges_requests() ? rows : 1, schedule,
      [rows, dropped, done = std::move(done)](absl::StatusOr<InferenceResult> result) mutable {
        if (result.ok() && dropped) {
          AddRowDim(&*result);
        }
        done(CheckRows(std::move(result), rows));
      }));
}

}  // namespace braid
