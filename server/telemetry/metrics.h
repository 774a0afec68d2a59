// Every metric of the server, by its Prometheus name, in one table. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace prometheus {
class Registry;
}  // namespace prometheus

namespace braid {

// What a worker is busy with.
enum class Phase {
  kLoad,
  kCopyIn,
  kForward,
  kLoss,
  kBackward,
  kReduce,
  kUpdate,
  kBroadcast,
  kCopyOut,
};
inline constexpr int kPhases = 9;
absl::string_view PhaseName(Phase phase);

class Metrics {
 public:
  Metrics();
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // A request came to its end: `method` without the package ("ModelInfer"), `code` "OK",
  // "NOT_FOUND"…
  void CountRequest(absl::string_view method, absl::string_view code, absl::Duration duration);
  // `rows` rows went through a forward pass as one batch of `model`.
  void CountBatch(absl::string_view model, int64_t rows);
  // Rows that wait in `model`'s queue changed by `delta`.
  void AddQueuedRows(absl::string_view model, int64_t delta);
  // `device` spent `busy` on `phase`.
  void AddBusy(absl::string_view device, Phase phase, absl::Duration busy);
  // A trainer made an update.
  void CountTrainingStep(absl::string_view trainer);
  // A trainer computed a loss over `rows` rows.
  void RecordLoss(absl::string_view trainer, double loss, int64_t rows);
  // Steps of a trainer waited for `pause` while its state was copied for a checkpoint.
  void RecordCheckpointPause(absl::string_view trainer, absl::Duration pause);
  // A checkpoint was written, or failed, after `duration`.
  void RecordCheckpoint(absl::string_view trainer, bool written, absl::Duration duration);
  // Drops the series of a trainer that is gone.
  void ForgetTrainer(absl::string_view trainer);

  // What a scrape reads.
  const std::shared_ptr<prometheus::Registry>& registry() const;

 private:
  struct Families;
  std::unique_ptr<Families> families_;
};

}  // namespace braid
