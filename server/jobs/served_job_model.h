// Model of a job: a version that the server serves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "server/base/host_tensor.h"
#include "server/batching/background_queue.h"
#include "server/jobs/inference_job.h"
#include "server/telemetry/metrics.h"
#include "server/training/trainer/publisher.h"

namespace braid {

// Rows get the results that ModelInfer gives them.
//
// - If the model merges requests, rows are computed in the batches that measure best.
// - If its rows depend on each other, or if it has no batch dimension, each request is computed
//   whole, as one of ModelInfer would be. It has `batch_size` rows, 1 by default, or as many as the
//   package was exported for. A model whose inputs have no dim for rows gets one row without it.
//
// Thread-compatible.
class ServedJobModel final : public JobModel {
 public:
  // `batch_size`: most rows of a forward pass; 0: no limit besides a configured max_batch_size.
  // `publisher` and `metrics` outlive the object.
  ServedJobModel(Publisher* publisher, std::string name, int64_t batch_size, Metrics* metrics)
      : publisher_(publisher), name_(std::move(name)), batch_size_(batch_size), metrics_(metrics) {}

  // Loads a version that is not
  // served. NOT_FOUND naming spec.infer.model or spec.infer.version.
  absl::StatusOr<int64_t> Open(int64_t version) override;
  int64_t request_rows() const override;
  size_t max_in_flight() const override;
  bool independent_rows() const override;
  void Infer(std::vector<HostTensor> inputs, int64_t rows, Done done) override;

 private:
  Publisher* const publisher_;
  const std::string name_;
  const int64_t batch_size_;
  Metrics* const metrics_;

  std::shared_ptr<BackgroundQueue> queue_;  // set by Open()
};

}  // namespace braid
