#include "server/data/batch_loader.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/base/status.h"
#include "server/data/encoded/row_assembly.h"

namespace braid {
namespace {

// More would not hide longer delays, but take memory for other things than rows.
constexpr size_t kMaxAhead = 64;
// Rows that a thread decodes at a time.
constexpr int64_t kMaxPartRows = 16;

}  // namespace

int64_t BatchLoader::BatchesPerEpoch(int64_t positions, int64_t batch_size, bool drop_last) {
  return positions / batch_size + (!drop_last && positions % batch_size > 0 ? 1 : 0);
}

absl::StatusOr<std::unique_ptr<BatchLoader>> BatchLoader::Create(Options options) {
  const int64_t positions = options.order->size();
  if (positions == 0) {
    return absl::InvalidArgumentError("no rows (expected at least one)");
  }
  if (BatchesPerEpoch(positions, options.batch_size, options.drop_last) == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("batch_size: ", options.batch_size, " rows exceed the ", positions,
                     " rows of an epoch (expected at most as many, because drop_last is set)"));
  }
  return std::unique_ptr<BatchLoader>(new BatchLoader(std::move(options)));
}

// Loads one batch.
class BatchLoader::Load final : public LoadAhead<Batch>::Task {
 public:
  static absl::StatusOr<std::unique_ptr<Load>> Create(const Options& options, Batch batch,
                                                      std::vector<int64_t> rows,
                                                      int64_t part_rows) {
    std::unique_ptr<Load> load(new Load(options, std::move(batch), std::move(rows), part_rows));
    if (load->parts() > 1) {
      BRAID_ASSIGN_OR_RETURN(
          load->assembly_,
          RowAssembly::Create(options.store->tensors(), static_cast<int64_t>(load->rows_.size()),
                              part_rows));
    }
    return load;
  }

  int parts() const override { return parts_; }

  absl::Status Run(int part) override {
    if (options_.stopped && options_.stopped()) {
      return absl::CancelledError("stopped while rows were loaded");
    }
    const absl::Span<const int64_t> all = rows_;
    const auto length = static_cast<size_t>(part_rows_);
    const absl::Span<const int64_t> rows =
        parts_ == 1 ? all : all.subspan(static_cast<size_t>(part) * length, length);
    BRAID_ASSIGN_OR_RETURN(
        std::vector<HostTensor> tensors,
        options_.store->Gather(
            rows, {options_.seed, batch_.epoch, options_.max_decoded_bytes},
            options_.skip_unreadable ? &skipped_[static_cast<size_t>(part)] : nullptr));
    if (parts_ == 1) {
      batch_.tensors = std::move(tensors);
    } else {
      assembly_->Put(part, tensors);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Batch> Finish() override {
    if (assembly_.has_value()) {
      batch_.tensors = assembly_->Take();
    }
    for (std::vector<SkippedRow>& skipped : skipped_) {
      std::ranges::move(skipped, std::back_inserter(batch_.skipped));
    }
    if (batch_.skipped.size() == rows_.size()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "all ", rows_.size(), " rows of batch ", batch_.number,
          " are unreadable (expected at least one row; use a larger batch_size, or remove them); ",
          batch_.skipped.front().error.message()));
    }
    return std::move(batch_);
  }

 private:
  Load(const Options& options, Batch batch, std::vector<int64_t> rows, int64_t part_rows)
      : options_(options),
        batch_(std::move(batch)),
        rows_(std::move(rows)),
        part_rows_(part_rows),
        parts_(options_.store->decodes()
                   ? RowAssembly::Parts(options_.store->tensors(),
                                        static_cast<int64_t>(rows_.size()), part_rows_)
                   : 1),
        skipped_(static_cast<size_t>(parts_)) {}

  const Options& options_;  // of the loader, which outlives this
  Batch batch_;
  const std::vector<int64_t> rows_;
  const int64_t part_rows_;
  const int parts_;
  std::optional<RowAssembly> assembly_;           // nullopt for one part
  std::vector<std::vector<SkippedRow>> skipped_;  // by part
};

BatchLoader::BatchLoader(Options options)
    : options_(std::move(options)),
      batches_per_epoch_(
          BatchesPerEpoch(options_.order->size(), options_.batch_size, options_.drop_last)),
      part_rows_(std::clamp<int64_t>(options_.batch_size / (int64_t{2} * options_.threads), 1,
                                     kMaxPartRows)),
      next_to_load_(options_.first_batch),
      ahead_(
          "loader", options_.threads,
          std::clamp<size_t>(options_.max_bytes /
                                 std::max<size_t>(1, options_.store->row_bytes() *
                                                         static_cast<size_t>(options_.batch_size)),
                             1, kMaxAhead),
          [this] { return MakeTask(); }) {}

absl::StatusOr<std::optional<BatchLoader::Batch>> BatchLoader::Next() {
  const absl::Time start = absl::Now();
  BRAID_ASSIGN_OR_RETURN(std::optional<Batch> batch, ahead_.Next());
  if (batch.has_value()) {
    batch->waited = absl::Now() - start;
  }
  return batch;
}

absl::StatusOr<std::unique_ptr<LoadAhead<BatchLoader::Batch>::Task>> BatchLoader::MakeTask() {
  if (next_to_load_ == options_.end_batch) {
    return nullptr;
  }
  Batch batch;
  batch.number = next_to_load_++;
  batch.epoch = batch.number / batches_per_epoch_;
  batch.position = batch.number % batches_per_epoch_ * options_.batch_size;
  std::vector<int64_t> rows(
      static_cast<size_t>(std::min(options_.batch_size, options_.order->size() - batch.position)));
  options_.order->Fill(batch.epoch, batch.position, absl::MakeSpan(rows));
  return Load::Create(options_, std::move(batch), std::move(rows), part_rows_);
}

}  // namespace braid
