// Batches of a dataset for training jobs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/data/open_data_source.h"
#include "server/data/row_cache.h"
#include "server/data/row_order.h"
#include "server/data/row_store.h"
#include "server/jobs/dataset.h"
#include "server/jobs/training_job.h"

namespace braid {

// Reads a dataset in an order that depends on the seed, the epoch and the number of rows only.
// Memory: the batches that are loaded ahead, and 8 bytes per
// row for sample weights.
class DatasetBatches final : public BatchSource {
 public:
  struct Options {
    DatasetOptions data;
    int64_t batch_size = 1;
    uint64_t seed = 0;
    // Share of the rows for validation, in [0, 1), the same for equal seeds and numbers of rows.
    double validation_split = 0;
    // True: one pass, in order, over the validation rows; over all rows if validation_split is 0.
    // False: training without end, without the validation rows.
    bool evaluation = false;

    // For training only.
    bool shuffle = true;
    bool drop_last = false;
    // Column of sample weights; empty: none. Rows are then drawn with replacement.
    std::string weight_column = {};

    // Threads of a stream, and limit on the bytes of its batches that are loaded ahead. 0 threads:
    // one per core if rows are decoded, else 2.
    int threads = 0;
    size_t max_bytes = size_t{64} << 20;
  };

  // `cache` outlives the object.
  DatasetBatches(Options options, DataDirectories directories, RowCache* cache)
      : options_(std::move(options)), directories_(std::move(directories)), cache_(cache) {}

  // Opens the data. Packs a table, which takes as long as reading it. INVALID_ARGUMENT for the
  // field of data that cannot be used; RESOURCE_EXHAUSTED if the packed rows exceed the cache.
  absl::StatusOr<int64_t> Rows(JobContext* context, std::string* identity) override;
  absl::StatusOr<std::unique_ptr<BatchStream>> Open(int64_t first) override;
  absl::Status CheckUnchanged() override;
  // Checks that both parts of the split have rows. The error names spec.train.validation_split.
  static absl::Status CheckSplit(const RowSplit& split, double share, int64_t rows);
  // Checks that the column of sample weights has numbers. The error names spec.train.weight_column.
  static absl::Status CheckWeights(const std::vector<Column>& columns, const std::string& column);
  int64_t DatasetRow(int64_t batch, int64_t row) const override;

 private:
  absl::StatusOr<RowOrder::Options> MakeOrder(JobContext* context, DataSource* source,
                                              int64_t rows) const;

  const Options options_;
  const DataDirectories directories_;
  RowCache* const cache_;

  // Set by Rows().
  const JobContext* context_ = nullptr;
  size_t inputs_ = 0;             // tensors of a batch that are inputs
  size_t max_decoded_bytes_ = 0;  // half of the free memory, see CheckBatchMemory()
  // Identity of the source. Empty for arrays, whose reads check the files, and for a copy of
  // objects, which does not change.
  std::string packed_identity_;
  // Null before Rows(). The source keeps the copy of objects.
  std::unique_ptr<DataSource> source_;
  std::shared_ptr<const RowStore> store_;
  std::shared_ptr<const RowOrder> order_;
};

}  // namespace braid
