#include "server/jobs/dataset_input.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <numeric>
#include <optional>
#include <thread>

#include "absl/time/clock.h"
#include "arrow/record_batch.h"
#include "arrow/type.h"
#include "arrow/util/byte_size.h"
#include "server/base/field_error.h"
#include "server/base/status.h"
#include "server/data/arrow_status.h"
#include "server/data/encoded/bytes_column.h"
#include "server/data/encoded/decode_rows.h"
#include "server/data/encoded/row_assembly.h"
#include "server/data/load_ahead.h"
#include "server/data/read_ahead.h"
#include "server/data/tensor_column.h"
#include "server/data/tensor_conversion.h"
#include "server/devices/host_memory.h"

namespace braid {
namespace {

using Batch = std::shared_ptr<arrow::RecordBatch>;

// Small batches are joined until they have this size, which is about that of a large one.
constexpr int64_t kMaxJoinedBytes = int64_t{16} << 20;
// Decoded bytes of the rows of one request, and requests that are decoded ahead.
constexpr size_t kMaxDecodedBytes = size_t{64} << 20;
constexpr size_t kDecodedAhead = 3;
// Rows that a thread decodes at a time.
constexpr int64_t kPartRows = 8;
// Bytes of the texts that are sorted by length together. A token takes up to 16 bytes with its
// mask, so they are about as large as kMaxDecodedBytes when they are decoded.
constexpr int64_t kMaxSortedTextBytes = int64_t{4} << 20;

// Returns the columns without the metadata of the file's schema, which describes other columns,
// too.
Batch SelectKept(const arrow::RecordBatch& batch, const std::vector<std::string>& keep) {
  std::vector<std::shared_ptr<arrow::Field>> fields;
  std::vector<std::shared_ptr<arrow::Array>> columns;
  for (const std::string& name : keep) {
    const int index = batch.schema()->GetFieldIndex(name);
    fields.push_back(batch.schema()->field(index));
    columns.push_back(batch.column(index));
  }
  return arrow::RecordBatch::Make(arrow::schema(std::move(fields)), batch.num_rows(),
                                  std::move(columns));
}

// Returns the types of the tensors' rows, by the first row. Empty if it cannot be read.
std::vector<RowType> TypesOf(const arrow::RecordBatch& batch,
                             const std::vector<TensorColumn>& tensors) {
  std::vector<RowType> types;
  const Batch first = batch.Slice(0, 1);
  for (const TensorColumn& tensor : tensors) {
    if (tensor.decoder != nullptr) {
      continue;
    }
    const absl::StatusOr<HostTensor> row = ReadTensor(*first, tensor, 0);
    if (!row.ok()) {
      return {};
    }
    types.push_back(RowTypeOf(*row));
  }
  return types;
}

// Cuts and joins the batches of a scan. Thread-compatible.
class BatchCutter {
 public:
  // `inputs` and `path` outlive the object.
  BatchCutter(std::unique_ptr<RowScan> scan, const std::vector<TensorColumn>& inputs,
              const std::string& path)
      : scan_(std::move(scan)), inputs_(inputs), path_(path) {}

  // Returns the next rows: a slice of one batch, or a copy of slices of several small ones. Null at
  // the end.
  absl::StatusOr<Batch> Take(int64_t max_rows) {
    std::vector<Batch> pieces;
    int64_t bytes = 0;
    while (max_rows > 0 && bytes < kMaxJoinedBytes) {
      if (rest_ == nullptr || rest_->num_rows() == 0) {
        BRAID_ASSIGN_OR_RETURN(rest_, scan_.Next());
      }
      if (rest_ == nullptr || (!pieces.empty() && !Join(*pieces.front(), *rest_))) {
        break;
      }
      pieces.push_back(rest_->Slice(0, max_rows));
      rest_ = rest_->Slice(pieces.back()->num_rows());
      max_rows -= pieces.back()->num_rows();
      bytes += arrow::util::ReferencedBufferSize(*pieces.back()).ValueOr(kMaxJoinedBytes);
    }
    if (pieces.size() <= 1) {
      return pieces.empty() ? nullptr : pieces.front();
    }
    return FromArrow(arrow::ConcatenateRecordBatches(pieces), "join rows of", path_);
  }

 private:
  // Returns true if the inputs of both batches have the same shape: their lists may have other
  // lengths.
  bool Join(const arrow::RecordBatch& a, const arrow::RecordBatch& b) const {
    return TypesOf(a, inputs_) == TypesOf(b, inputs_);
  }

  ReadAhead scan_;
  const std::vector<TensorColumn>& inputs_;
  const std::string& path_;
  Batch rest_;  // of the last batch of the scan
};

// Options and columns that both kinds of streams use.
struct StreamData {
  const DatasetInput::Options& options;
  const std::vector<TensorColumn>& inputs;  // with their decoders
  const JobContext& context;
  size_t max_decoded_bytes;

  absl::Status InData(const absl::Status& status) const {
    return WithField(options.data.path_field, status);
  }
};

// Rows whose columns have numbers.
class ScanStream final : public RowStream {
 public:
  ScanStream(std::unique_ptr<RowScan> scan, int64_t first_row, const StreamData& data)
      : cutter_(std::move(scan), data.inputs, data.options.data.path),
        next_row_(first_row),
        data_(data) {}

  absl::StatusOr<std::optional<InputRows>> Next(int64_t max_rows,
                                                int64_t /*window_rows*/) override {
    const absl::Time start = absl::Now();
    const absl::StatusOr<Batch> taken = cutter_.Take(max_rows);
    if (!taken.ok()) {
      return data_.InData(taken.status());
    }
    const Batch& batch = *taken;
    if (batch == nullptr) {
      return std::nullopt;
    }
    InputRows rows;
    rows.waited = absl::Now() - start;
    rows.first = next_row_;
    rows.count = batch->num_rows();
    InputRows::Request& request = rows.requests.emplace_back();
    for (const TensorColumn& input : data_.inputs) {
      absl::StatusOr<HostTensor> tensor = ReadTensor(*batch, input, next_row_);
      if (!tensor.ok()) {
        return data_.InData(tensor.status());
      }
      request.inputs.push_back(*std::move(tensor));
    }
    if (!data_.options.keep.empty()) {
      rows.kept = SelectKept(*batch, data_.options.keep);
    }
    next_row_ += rows.count;
    return rows;
  }

 private:
  BatchCutter cutter_;
  int64_t next_row_;
  const StreamData data_;
};

// Rows that were decoded.
struct DecodedRows {
  int64_t first = 0;                // row of the dataset, which may be one that was left out
  std::vector<int64_t> rows;        // of the dataset, without those that were left out
  std::vector<SkippedRow> skipped;  // ascending
  std::vector<InputRows::Request> requests;  // empty if `rows` is
  Batch kept;                                // null: no columns are kept

  // True if the rows are in one request, in order.
  bool ordered() const { return requests.front().positions.empty(); }
};

// Returns true if the tensors of the column's rows are as long as the longest of a request.
bool IsPadded(const TensorColumn& input) {
  return input.decoder != nullptr && input.files == nullptr &&
         std::ranges::any_of(input.decoder->outputs(), [](const Decoder::Output& output) {
           return std::ranges::count(output.row.shape, kUnknownDim) > 0;
         });
}

// Returns the bytes of each row that determine how long its padded tensors are.
std::vector<int64_t> PaddedLengths(const arrow::RecordBatch& batch,
                                   const std::vector<TensorColumn>& inputs) {
  std::vector<int64_t> lengths(static_cast<size_t>(batch.num_rows()));
  for (const TensorColumn& input : inputs) {
    if (IsPadded(input)) {
      const std::shared_ptr<arrow::Array> values = batch.GetColumnByName(input.columns.front());
      for (size_t row = 0; row < lengths.size(); ++row) {
        lengths[row] += static_cast<int64_t>(
            BytesOfRow(*values, static_cast<int64_t>(row)).value_or("").size());
      }
    }
  }
  return lengths;
}

// Returns the rows of a batch with these indices, which ascend.
absl::StatusOr<Batch> TakeBatchRows(const Batch& batch, const std::vector<int64_t>& indices) {
  std::vector<Batch> runs;
  for (size_t begin = 0; begin < indices.size();) {
    size_t end = begin + 1;
    while (end < indices.size() && indices[end] == indices[end - 1] + 1) {
      ++end;
    }
    runs.push_back(batch->Slice(indices[begin], static_cast<int64_t>(end - begin)));
    begin = end;
  }
  return runs.empty() ? absl::StatusOr<Batch>(batch->Slice(0, 0))
                      : FromArrow(arrow::ConcatenateRecordBatches(runs), "join", "rows");
}

// Decodes the rows of one batch. If rows are padded and do not fit into one request, each request
// has rows of similar length, and is one part.
class DecodeTask final : public LoadAhead<DecodedRows>::Task {
 public:
  static absl::StatusOr<std::unique_ptr<DecodeTask>> Create(const StreamData& data, Batch batch,
                                                            int64_t first_row,
                                                            int64_t request_rows) {
    std::unique_ptr<DecodeTask> task(
        new DecodeTask(data, std::move(batch), first_row, request_rows));
    if (!task->sorted() && task->parts_ > 1) {
      BRAID_ASSIGN_OR_RETURN(
          task->assembly_,
          RowAssembly::Create(task->decoded_, task->batch_->num_rows(), kPartRows));
    }
    return task;
  }

  int parts() const override { return parts_; }

  absl::Status Run(int part) override {
    if (data_.context.stop() != JobStop::kNone) {
      return absl::CancelledError("stopped while rows were decoded");
    }
    Part& own = results_[static_cast<size_t>(part)];
    const int64_t begin = parts_ == 1 ? 0 : part * part_rows_;
    const int64_t end =
        parts_ == 1 ? batch_->num_rows() : std::min(batch_->num_rows(), begin + part_rows_);
    for (int64_t row = begin; row < end; ++row) {
      own.rows.push_back(first_row_ + (sorted() ? order_[static_cast<size_t>(row)] : row));
    }
    BRAID_ASSIGN_OR_RETURN(
        std::vector<std::vector<HostTensor>> columns,
        DecodeColumns(encoded_, {.max_bytes = data_.max_decoded_bytes}, &own.rows,
                      data_.options.data.skip_unreadable ? &own.skipped : nullptr));
    if (!own.rows.empty()) {
      for (std::vector<HostTensor>& column : columns) {
        std::ranges::move(column, std::back_inserter(own.tensors));
      }
    }
    if (assembly_.has_value()) {
      assembly_->Put(part, std::exchange(own.tensors, {}));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<DecodedRows> Finish() override {
    DecodedRows decoded;
    decoded.first = first_row_;
    for (Part& part : results_) {
      std::ranges::copy(part.rows, std::back_inserter(decoded.rows));
      std::ranges::move(part.skipped, std::back_inserter(decoded.skipped));
    }
    std::ranges::sort(decoded.rows);
    std::ranges::sort(decoded.skipped, {}, &SkippedRow::row);
    decoded.requests = MakeRequests(decoded.rows);
    Batch rest = batch_;
    if (!decoded.skipped.empty()) {
      std::vector<int64_t> indices;
      for (const int64_t row : decoded.rows) {
        indices.push_back(row - first_row_);
      }
      BRAID_ASSIGN_OR_RETURN(rest, TakeBatchRows(batch_, indices));
    }
    for (const TensorColumn& input : data_.inputs) {
      if (input.decoder == nullptr && !decoded.rows.empty()) {
        BRAID_ASSIGN_OR_RETURN(HostTensor tensor, ReadTensor(*rest, input, first_row_));
        for (InputRows::Request& request : decoded.requests) {
          BRAID_ASSIGN_OR_RETURN(HostTensor own, request.positions.empty()
                                                     ? absl::StatusOr<HostTensor>(tensor)
                                                     : SelectRows(tensor, request.positions));
          request.inputs.push_back(std::move(own));
        }
      }
    }
    if (!data_.options.keep.empty()) {
      decoded.kept = SelectKept(*rest, data_.options.keep);
    }
    return decoded;
  }

 private:
  struct Part {
    std::vector<int64_t> rows;
    std::vector<SkippedRow> skipped;
    std::vector<HostTensor> tensors;  // unless `assembly_` has them
  };

  DecodeTask(const StreamData& data, Batch batch, int64_t first_row, int64_t request_rows)
      : data_(data), batch_(std::move(batch)), first_row_(first_row) {
    for (const TensorColumn& input : data_.inputs) {
      if (input.decoder != nullptr) {
        encoded_.push_back(ColumnOfBatch(input, batch_, first_row_));
        std::ranges::move(TensorsOf(*input.decoder, input.name), std::back_inserter(decoded_));
      }
    }
    if (batch_->num_rows() > request_rows && std::ranges::any_of(data_.inputs, IsPadded)) {
      const std::vector<int64_t> lengths = PaddedLengths(*batch_, data_.inputs);
      order_.resize(lengths.size());
      std::iota(order_.begin(), order_.end(), 0);
      std::ranges::stable_sort(order_, {},
                               [&](int64_t row) { return lengths[static_cast<size_t>(row)]; });
      part_rows_ = request_rows;
      parts_ = static_cast<int>((batch_->num_rows() + request_rows - 1) / request_rows);
    } else {
      parts_ = RowAssembly::Parts(decoded_, batch_->num_rows(), kPartRows);
    }
    results_.resize(static_cast<size_t>(parts_));
  }

  bool sorted() const { return !order_.empty(); }

  // Returns the requests of all readable rows, without the columns that are not decoded.
  std::vector<InputRows::Request> MakeRequests(const std::vector<int64_t>& rows) {
    std::vector<InputRows::Request> requests;
    if (rows.empty()) {
      return requests;
    }
    if (!sorted()) {
      requests.push_back(
          {assembly_.has_value() ? assembly_->Take() : std::move(results_.front().tensors)});
      return requests;
    }
    for (Part& part : results_) {
      if (part.rows.empty()) {
        continue;
      }
      InputRows::Request& request = requests.emplace_back();
      request.inputs = std::move(part.tensors);
      for (const int64_t row : part.rows) {
        request.positions.push_back(std::ranges::lower_bound(rows, row) - rows.begin());
      }
    }
    return requests;
  }

  const StreamData data_;
  const Batch batch_;
  const int64_t first_row_;
  std::vector<EncodedColumn> encoded_;
  std::vector<Decoder::Output> decoded_;  // tensors of all encoded columns
  std::vector<int64_t> order_;            // rows of the batch, by length; empty: not sorted
  int64_t part_rows_ = kPartRows;
  int parts_ = 1;
  std::vector<Part> results_;
  std::optional<RowAssembly> assembly_;  // for several parts of one request
};

// Rows that are decoded ahead, by all cores.
class DecodedStream final : public RowStream {
 public:
  DecodedStream(std::unique_ptr<RowScan> scan, int64_t first_row, const StreamData& data)
      : data_(data),
        padded_(std::ranges::any_of(data.inputs, IsPadded)),
        cutter_(std::move(scan), data.inputs, data.options.data.path),
        next_row_(first_row) {
    size_t bytes = 1;
    for (const TensorColumn& input : data.inputs) {
      if (input.decoder != nullptr) {
        for (const Decoder::Output& output : input.decoder->outputs()) {
          bytes += RowBytes(output.row).value_or(0);
        }
      }
    }
    limit_ = std::max<int64_t>(1, static_cast<int64_t>(kMaxDecodedBytes / bytes));
  }

  absl::StatusOr<std::optional<InputRows>> Next(int64_t max_rows, int64_t window_rows) override {
    const absl::Time start = absl::Now();
    max_rows_ = std::min(max_rows, limit_);
    window_rows_ = padded_ ? std::clamp(window_rows, max_rows_.load(), limit_) : max_rows_.load();
    if (ahead_ == nullptr) {  // The number of rows is known from here on.
      ahead_ = std::make_unique<LoadAhead<DecodedRows>>(
          "decoder", std::max(2, static_cast<int>(std::thread::hardware_concurrency())),
          kDecodedAhead, [this] { return MakeTask(); });
    }
    // Rows that were left out belong to the readable rows after them.
    std::vector<SkippedRow> skipped;
    int64_t first = -1;
    while (rest_.rows.empty()) {
      absl::StatusOr<std::optional<DecodedRows>> decoded = ahead_->Next();
      if (!decoded.ok()) {
        return data_.InData(decoded.status());
      }
      if (!decoded->has_value()) {
        return skipped.empty() ? std::nullopt : std::optional(LeftOut(first, std::move(skipped)));
      }
      rest_ = *std::move(*decoded);
      first = first < 0 ? rest_.first : first;
      if (rest_.rows.empty()) {
        std::ranges::move(rest_.skipped, std::back_inserter(skipped));
      }
    }
    const auto count = static_cast<int64_t>(rest_.rows.size());
    InputRows rows = rest_.ordered() ? Cut(std::min(max_rows, count)) : TakeWindow();
    rows.first = first < 0 ? rows.first : first;
    rows.skipped.insert(rows.skipped.begin(), std::make_move_iterator(skipped.begin()),
                        std::make_move_iterator(skipped.end()));
    rows.waited = absl::Now() - start;
    return rows;
  }

 private:
  // Called by one thread at a time.
  absl::StatusOr<std::unique_ptr<LoadAhead<DecodedRows>::Task>> MakeTask() {
    const int64_t request_rows = max_rows_;
    BRAID_ASSIGN_OR_RETURN(Batch batch, TakeBatch(request_rows));
    if (batch == nullptr) {
      return nullptr;
    }
    const int64_t first = next_row_;
    next_row_ += batch->num_rows();
    return DecodeTask::Create(data_, std::move(batch), first, request_rows);
  }

  // Returns the rows of the next task; null at the end.
  absl::StatusOr<Batch> TakeBatch(int64_t request_rows) {
    const int64_t max_rows = std::max(request_rows, window_rows_.load());
    Batch batch = std::exchange(uncut_, nullptr);
    if (batch == nullptr) {
      BRAID_ASSIGN_OR_RETURN(batch, cutter_.Take(max_rows));
    }
    if (batch == nullptr || !padded_) {
      return batch;
    }
    int64_t rows = 0;
    int64_t bytes = 0;
    for (const int64_t length : PaddedLengths(*batch, data_.inputs)) {
      bytes += length;
      if (rows == max_rows || (rows >= request_rows && bytes > kMaxSortedTextBytes)) {
        uncut_ = batch->Slice(rows);
        return batch->Slice(0, rows);
      }
      ++rows;
    }
    return batch;
  }

  // Removes all rows of rest_, which several requests may have.
  InputRows TakeWindow() {
    InputRows rows;
    rows.first = rest_.first;
    rows.count = static_cast<int64_t>(rest_.rows.size());
    rows.skipped = std::move(rest_.skipped);
    rows.requests = std::move(rest_.requests);
    rows.kept = std::move(rest_.kept);
    rest_ = DecodedRows();
    return rows;
  }

  static InputRows LeftOut(int64_t first, std::vector<SkippedRow> skipped) {
    InputRows rows;
    rows.first = first;
    rows.skipped = std::move(skipped);
    return rows;
  }

  // Removes the first `count` rows of rest_, with the left-out ones up to the next row.
  InputRows Cut(int64_t count) {
    InputRows rows;
    rows.first = rest_.first;
    rows.count = count;
    const auto total = static_cast<int64_t>(rest_.rows.size());
    InputRows::Request& request = rows.requests.emplace_back();
    for (HostTensor& tensor : rest_.requests.front().inputs) {
      request.inputs.push_back(SliceRows(tensor, 0, count));
      tensor = SliceRows(tensor, count, total);
    }
    if (rest_.kept != nullptr) {
      rows.kept = rest_.kept->Slice(0, count);
      rest_.kept = rest_.kept->Slice(count);
    }
    rest_.rows.erase(rest_.rows.begin(), rest_.rows.begin() + count);
    const auto later = std::ranges::find_if(rest_.skipped, [&](const SkippedRow& row) {
      return !rest_.rows.empty() && row.row > rest_.rows.front();
    });
    rows.skipped.assign(std::make_move_iterator(rest_.skipped.begin()),
                        std::make_move_iterator(later));
    rest_.skipped.erase(rest_.skipped.begin(), later);
    rest_.first = rows.end();
    return rows;
  }

  const StreamData data_;
  int64_t limit_ = 1;  // rows of a request, or of several
  const bool padded_;  // rows may be sorted by length
  // Limits of the next batches.
  std::atomic<int64_t> max_rows_{1};
  std::atomic<int64_t> window_rows_{1};
  // Used by MakeTask().
  BatchCutter cutter_;
  Batch uncut_;  // rows after the last window, before those of cutter_; null: none
  int64_t next_row_;

  DecodedRows rest_;  // that Next() has not returned yet
  // Null before Next(). Last member: its threads use the others.
  std::unique_ptr<LoadAhead<DecodedRows>> ahead_;
};

}  // namespace

absl::StatusOr<int64_t> DatasetInput::Rows(JobContext* context, std::string* identity) {
  BRAID_ASSIGN_OR_RETURN(Dataset dataset,
                         OpenDataset(options_.data, directories_, LogCopying(context)));
  BRAID_RETURN_IF_ERROR(CheckSameData(options_.data, dataset, identity));
  BRAID_RETURN_IF_ERROR(CheckKept(dataset.source->columns(), options_.keep));
  context_ = context;
  source_ = std::move(dataset.source);
  max_decoded_bytes_ = static_cast<size_t>(ReachableHostBytes("/") / 2);
  identity_ = source_->KeepsFiles() ? "" : source_->Identity();
  inputs_ = std::move(dataset.input_columns);
  const absl::StatusOr<int64_t> rows = source_->Rows();
  if (!rows.ok()) {
    return WithField(options_.data.path_field, rows.status());
  }
  if (*rows == 0) {
    return InvalidField(options_.data.path_field, "no rows (expected at least one)");
  }
  return *rows;
}

absl::StatusOr<std::unique_ptr<RowStream>> DatasetInput::Open(int64_t first_row) {
  std::vector<std::string> columns = ColumnsToRead(inputs_);
  for (const std::string& name : options_.keep) {
    if (std::find(columns.begin(), columns.end(), name) == columns.end()) {
      columns.push_back(name);
    }
  }
  absl::StatusOr<std::unique_ptr<RowScan>> scan =
      source_->Scan({.columns = std::move(columns), .first_row = first_row});
  if (!scan.ok()) {
    return WithField(options_.data.path_field, scan.status());
  }
  const StreamData data{options_, inputs_, *context_, max_decoded_bytes_};
  const bool decodes = std::ranges::any_of(
      inputs_, [](const TensorColumn& input) { return input.decoder != nullptr; });
  if (decodes) {
    return std::make_unique<DecodedStream>(*std::move(scan), first_row, data);
  }
  return std::make_unique<ScanStream>(*std::move(scan), first_row, data);
}

absl::Status DatasetInput::CheckUnchanged() {
  return identity_.empty() ? absl::OkStatus()
                           : CheckSameSource(options_.data, directories_, identity_);
}

absl::Status DatasetInput::CheckKept(const std::vector<Column>& columns,
                                     const std::vector<std::string>& keep) {
  return WithField("spec.infer.output.keep", ColumnIndices(columns, keep).status());
}

}  // namespace braid
