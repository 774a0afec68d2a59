#include "client/cli/training_run.h"

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "client/cli/split.h"

namespace braid::cli {
namespace {

using Json = nlohmann::ordered_json;

struct UnderWay {
  client::Stream::Future<client::LossResult> result;
  int64_t rows;
};

void AnnounceSplit(const v1::OperationStatus& status, ProgressReporter& progress) {
  Json chunks = Json::array();
  for (const v1::Chunk& chunk : status.chunks()) {
    const std::vector<std::string> inputs(chunk.input_shapes().begin(), chunk.input_shapes().end());
    const std::vector<std::string> outputs(chunk.output_shapes().begin(),
                                           chunk.output_shapes().end());
    chunks.push_back({{"stage", chunk.stage()},
                      {"device", chunk.device()},
                      {"rows", chunk.rows()},
                      {"inputs", inputs},
                      {"outputs", outputs}});
  }
  const std::vector<v1::Chunk> split(status.chunks().begin(), status.chunks().end());
  const std::string table = FormatSplit(split);
  progress.Message(std::string(absl::StripSuffix(table, "\n")),
                   {{"event", "split"}, {"chunks", std::move(chunks)}});
}

// Adds the option that leaves an epoch's last batch out, where that is too small for the model.
absl::Status NameLastBatch(const absl::Status& status, int64_t rows, int64_t batch_size) {
  if (rows == batch_size || !absl::StrContains(status.message(), "drop_last")) return status;
  return absl::Status(status.code(),
                      absl::StrCat(status.message(), "; the batch is an epoch's last, of ", rows,
                                   " rows: --drop-last leaves it out"));
}

// Waits for the first of them.
absl::Status Collect(const TrainingPlan& plan, std::deque<UnderWay>& under_way,
                     ProgressReporter& progress) {
  absl::StatusOr<client::LossResult> result = under_way.front().result.get();
  if (!result.ok()) {
    return NameLastBatch(result.status(), under_way.front().rows, plan.batch_size);
  }
  if (result->status.chunks_size() > 0) AnnounceSplit(result->status, progress);
  std::optional<double> loss = result->loss;
  if (result->reply_lost || result->status.skipped()) loss.reset();
  progress.Step(loss, under_way.front().rows, absl::Now());
  under_way.pop_front();
  return progress.ok() ? absl::OkStatus() : absl::DataLossError("cannot write to stdout");
}

}  // namespace

int64_t StepsPerEpoch(const TrainingPlan& plan, int64_t rows) {
  return plan.drop_last ? rows / plan.batch_size : (rows + plan.batch_size - 1) / plan.batch_size;
}

int64_t BatchesTaken(const v1::Trainer& trainer) { return trainer.step() + trainer.skipped(); }

absl::Status RunSteps(const TrainingPlan& plan, const Dataset& dataset, int64_t made,
                      client::Trainer& trainer, ProgressReporter& progress,
                      absl::FunctionRef<bool()> stop) {
  absl::StatusOr<std::unique_ptr<client::Stream>> stream =
      trainer.OpenStream({.depth = plan.depth});
  if (!stream.ok()) return stream.status();
  const int64_t steps = StepsPerEpoch(plan, dataset.rows());
  const auto batch_size = static_cast<size_t>(plan.batch_size);
  std::deque<UnderWay> under_way;
  std::vector<int64_t> order;
  int64_t ordered = -1;
  for (int64_t step = made; step < plan.epochs * steps && !stop(); ++step) {
    const int64_t epoch = step / steps;
    if (std::exchange(ordered, epoch) != epoch) {
      order = EpochOrder(dataset.rows(), plan.shuffle, plan.seed, epoch);
    }
    const auto indices = absl::MakeConstSpan(order).subspan(
        static_cast<size_t>(step % steps) * batch_size, batch_size);
    client::Batch batch = dataset.Gather(indices);
    if (under_way.size() >= plan.depth) {
      if (absl::Status status = Collect(plan, under_way, progress); !status.ok()) return status;
    }
    const client::StepOptions options = {.report_split = plan.report_split && step == made};
    under_way.push_back(
        {(*stream)->Step(std::move(batch.inputs), std::move(batch.targets), options),
         static_cast<int64_t>(indices.size())});
  }
  while (!under_way.empty()) {
    if (absl::Status status = Collect(plan, under_way, progress); !status.ok()) return status;
  }
  return (*stream)->Finish();
}

}  // namespace braid::cli
