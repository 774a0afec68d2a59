#include "server/jobs/dataset_batches.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "arrow/record_batch.h"
#include "server/base/field_error.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/data/batch_loader.h"
#include "server/data/read_ahead.h"
#include "server/data/tensor_column.h"
#include "server/devices/host_memory.h"
#include "server/remote/object_path.h"

namespace braid {
namespace {

constexpr absl::string_view kWeightField = "spec.train.weight_column";
constexpr absl::string_view kSplitField = "spec.train.validation_split";

class LoaderStream final : public BatchStream {
 public:
  // `inputs`: tensors of a batch that are inputs; the others are targets.
  LoaderStream(std::unique_ptr<BatchLoader> loader, size_t inputs, std::string field)
      : loader_(std::move(loader)), inputs_(inputs), field_(std::move(field)) {}

  absl::StatusOr<std::optional<TrainingBatch>> Next() override {
    absl::StatusOr<std::optional<BatchLoader::Batch>> loaded = loader_->Next();
    if (!loaded.ok()) {
      return WithField(field_, loaded.status());
    }
    if (!loaded->has_value()) {
      return std::nullopt;
    }
    std::vector<HostTensor>& tensors = (*loaded)->tensors;
    TrainingBatch batch;
    batch.rows = tensors.front().rows();
    batch.waited = (*loaded)->waited;
    batch.skipped = std::move((*loaded)->skipped);
    const auto targets = tensors.begin() + static_cast<std::ptrdiff_t>(inputs_);
    batch.inputs.assign(std::make_move_iterator(tensors.begin()), std::make_move_iterator(targets));
    batch.targets.assign(std::make_move_iterator(targets), std::make_move_iterator(tensors.end()));
    return batch;
  }

 private:
  const std::unique_ptr<BatchLoader> loader_;
  const size_t inputs_;
  const std::string field_;
};

// Returns true if the rows are files, such as those of a folder of images.
bool HasFiles(const DataSource& source) {
  return std::any_of(source.columns().begin(), source.columns().end(),
                     [&](const Column& column) { return !source.PathColumn(column.name).empty(); });
}

// Logs how far a table is packed, and ends it when the job must stop. Does not log for a folder of
// images, of which only the paths and labels are packed.
class PackingLog {
 public:
  PackingLog(JobContext* context, const DataSource& source)
      : context_(context), logs_(!HasFiles(source)), total_(source.KnownRows()) {}

  absl::Status operator()(int64_t rows) {
    BRAID_RETURN_IF_ERROR(CheckStop(*context_));
    if (rows > rows_) {
      rows_ = rows;
      context_->NoteActivity();
    }
    if (const absl::Time now = absl::Now(); logs_ && now >= next_) {
      next_ = now + kInterval;
      context_->AddLog(JobLogLevel::kInfo,
                       total_ ? absl::StrCat("packing the table: ", rows, " of ", *total_, " rows")
                              : absl::StrCat("packing the table: ", rows, " rows"));
    }
    return absl::OkStatus();
  }

  static absl::Status CheckStop(const JobContext& context) {
    return context.stop() == JobStop::kNone
               ? absl::OkStatus()
               : absl::CancelledError("stopped while the data was prepared");
  }

 private:
  static constexpr absl::Duration kInterval = absl::Seconds(10);

  JobContext* const context_;
  const bool logs_;
  const std::optional<int64_t> total_;  // rows, if they are known
  int64_t rows_ = 0;                    // packed so far
  absl::Time next_ = absl::InfinitePast();
};

// Reads a column of numbers.
absl::StatusOr<std::vector<double>> ReadWeights(JobContext* context, DataSource* source,
                                                const std::string& column) {
  const TensorColumn tensor{"weight", {column}, DataType::kFp64};
  BRAID_ASSIGN_OR_RETURN(auto rows, source->Scan({.columns = {column}}));
  ReadAhead scan(std::move(rows));
  std::vector<double> weights;
  while (true) {
    BRAID_RETURN_IF_ERROR(PackingLog::CheckStop(*context));
    BRAID_ASSIGN_OR_RETURN(const std::shared_ptr<arrow::RecordBatch> batch, scan.Next());
    if (batch == nullptr) {
      return weights;
    }
    context->NoteActivity();
    BRAID_ASSIGN_OR_RETURN(const HostTensor read,
                           ReadTensor(*batch, tensor, static_cast<int64_t>(weights.size())));
    const auto* const values = static_cast<const double*>(read.data);
    weights.insert(weights.end(), values, values + read.rows());
  }
}

absl::StatusOr<std::shared_ptr<const WeightedDraw>> ReadDraw(JobContext* context,
                                                             DataSource* source,
                                                             const std::string& column,
                                                             const std::optional<RowSplit>& split) {
  BRAID_ASSIGN_OR_RETURN(std::vector<double> weights, ReadWeights(context, source, column));
  if (split.has_value()) {
    // Finds an invalid weight while its index is the row of the data.
    BRAID_RETURN_IF_ERROR(WeightedDraw::Create(weights).status());
    const auto rows = static_cast<size_t>(split->training_rows());
    for (size_t i = 0; i < rows; ++i) {
      weights[i] = weights[static_cast<size_t>(split->TrainingRow(static_cast<int64_t>(i)))];
    }
    weights.resize(rows);
  }
  BRAID_ASSIGN_OR_RETURN(WeightedDraw draw, WeightedDraw::Create(weights));
  return std::make_shared<const WeightedDraw>(std::move(draw));
}

}  // namespace

absl::StatusOr<int64_t> DatasetBatches::Rows(JobContext* context, std::string* identity) {
  BRAID_ASSIGN_OR_RETURN(Dataset dataset,
                         OpenDataset(options_.data, directories_, LogCopying(context)));
  BRAID_RETURN_IF_ERROR(CheckSameData(options_.data, dataset, identity));
  std::vector<TensorColumn> tensors = dataset.input_columns;
  inputs_ = 0;
  for (const TensorColumn& input : dataset.input_columns) {
    inputs_ += input.decoder == nullptr ? 1 : input.decoder->outputs().size();
  }
  tensors.insert(tensors.end(), dataset.target_columns.begin(), dataset.target_columns.end());
  absl::StatusOr<std::shared_ptr<const RowStore>> store =
      cache_->Rows(dataset.source.get(), tensors, PackingLog(context, *dataset.source));
  if (!store.ok()) {
    return WithField(options_.data.path_field, store.status());
  }
  BRAID_ASSIGN_OR_RETURN(RowOrder::Options order,
                         MakeOrder(context, dataset.source.get(), (*store)->rows()));
  const auto memory = static_cast<size_t>(ReachableHostBytes("/"));
  max_decoded_bytes_ = memory / 2;
  const bool random = !options_.evaluation && (options_.shuffle || !options_.weight_column.empty());
  if (random && (*store)->stored_bytes() > memory) {
    // Pages that are read ahead would be dropped before their rows are used.
    (*store)->ExpectRandomAccess();
  }
  if (random && (*store)->pads()) {
    order.length = [store = *store](int64_t row) { return store->PaddedLength(row); };
    order.batch_size = options_.batch_size;
  }
  const bool checked = dataset.source->arrays() != nullptr || IsObjectPath(options_.data.path);
  packed_identity_ = checked ? "" : dataset.source->Identity();
  context_ = context;
  store_ = *std::move(store);
  order_ = std::make_shared<const RowOrder>(std::move(order));
  source_ = std::move(dataset.source);
  return order_->size();
}

absl::StatusOr<std::unique_ptr<BatchStream>> DatasetBatches::Open(int64_t first) {
  const bool drop_last = options_.drop_last && !options_.evaluation;
  BatchLoader::Options loader{
      .store = store_,
      .order = order_,
      .batch_size = options_.batch_size,
      .drop_last = drop_last,
      .first_batch = first,
      .end_batch = std::numeric_limits<int64_t>::max(),
      .threads = options_.threads,
      .max_bytes = options_.max_bytes,
      .max_decoded_bytes = max_decoded_bytes_,
      .seed = options_.seed,
      .skip_unreadable = options_.data.skip_unreadable,
      .stopped = [context = context_] { return context->stop() != JobStop::kNone; }};
  if (loader.threads == 0) {
    // Copying rows takes little time, decoding takes all cores.
    loader.threads =
        store_->decodes() ? std::max(2, static_cast<int>(std::thread::hardware_concurrency())) : 2;
  }
  if (options_.evaluation) {
    loader.end_batch =
        BatchLoader::BatchesPerEpoch(order_->size(), options_.batch_size, /*drop_last=*/false);
  }
  absl::StatusOr<std::unique_ptr<BatchLoader>> batches = BatchLoader::Create(std::move(loader));
  if (!batches.ok()) {
    return WithField(options_.data.path_field, batches.status());
  }
  return std::make_unique<LoaderStream>(*std::move(batches), inputs_, options_.data.path_field);
}

absl::Status DatasetBatches::CheckUnchanged() {
  return packed_identity_.empty() ? absl::OkStatus()
                                  : CheckSameSource(options_.data, directories_, packed_identity_);
}

int64_t DatasetBatches::DatasetRow(int64_t batch, int64_t row) const {
  const int64_t per_epoch =
      BatchLoader::BatchesPerEpoch(order_->size(), options_.batch_size, options_.drop_last);
  int64_t dataset_row = 0;
  order_->Fill(batch / per_epoch, batch % per_epoch * options_.batch_size + row,
               absl::MakeSpan(&dataset_row, 1));
  return dataset_row;
}

absl::Status DatasetBatches::CheckSplit(const RowSplit& split, double share, int64_t rows) {
  if (split.validation_rows() > 0 && split.training_rows() > 0) {
    return absl::OkStatus();
  }
  return InvalidField(kSplitField,
                      absl::StrCat(share, " of ", rows, " rows leaves no rows for ",
                                   split.training_rows() == 0 ? "training (expected less)"
                                                              : "validation (expected more)"));
}

absl::Status DatasetBatches::CheckWeights(const std::vector<Column>& columns,
                                          const std::string& column) {
  const absl::StatusOr<RowType> row = TensorRowType(columns, {"weight", {column}});
  if (row.ok() && !row->shape.empty()) {
    return InvalidField(kWeightField, absl::StrCat("column '", Excerpt(column), "' has rows of ",
                                                   RowTypeString(*row), " (expected numbers)"));
  }
  return WithField(kWeightField, row.status());
}

absl::StatusOr<RowOrder::Options> DatasetBatches::MakeOrder(JobContext* context, DataSource* source,
                                                            int64_t rows) const {
  RowOrder::Options order{.rows = rows,
                          .seed = options_.seed,
                          .shuffle = options_.shuffle && !options_.evaluation,
                          .validation = options_.evaluation};
  if (options_.validation_split > 0) {
    order.split.emplace(rows, options_.validation_split, options_.seed);
    BRAID_RETURN_IF_ERROR(CheckSplit(*order.split, options_.validation_split, rows));
  }
  if (!options_.weight_column.empty() && !options_.evaluation) {
    BRAID_RETURN_IF_ERROR(CheckWeights(source->columns(), options_.weight_column));
    absl::StatusOr<std::shared_ptr<const WeightedDraw>> draw =
        ReadDraw(context, source, options_.weight_column, order.split);
    if (!draw.ok()) {
      return WithField(kWeightField, draw.status());
    }
    order.weights = *std::move(draw);
  }
  return order;
}

}  // namespace braid
