// Tables and array files for tests.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "arrow/api.h"
#include "arrow/io/api.h"
#include "arrow/ipc/api.h"
#include "arrow/json/from_string.h"
#include "gtest/gtest.h"
#include "parquet/arrow/writer.h"
#include "parquet/properties.h"
#include "server/base/host_tensor.h"
#include "server/data/data_source.h"
#include "tests/fakes/host_tensors.h"
#include "tests/fakes/status_matchers.h"

namespace braid {

// Column "name" of `type` with the values of a JSON list.
struct TestColumn {
  std::string name;
  std::shared_ptr<arrow::DataType> type;
  std::string values;
};

inline std::shared_ptr<arrow::RecordBatch> MakeBatch(const std::vector<TestColumn>& columns) {
  std::vector<std::shared_ptr<arrow::Field>> fields;
  std::vector<std::shared_ptr<arrow::Array>> arrays;
  for (const TestColumn& column : columns) {
    fields.push_back(arrow::field(column.name, column.type));
    arrays.push_back(arrow::json::ArrayFromJSONString(column.type, column.values).ValueOrDie());
  }
  const int64_t rows = arrays.front()->length();
  return arrow::RecordBatch::Make(arrow::schema(std::move(fields)), rows, std::move(arrays));
}

// Column "id" of int64 with begin, …, end - 1, and "x" of float pairs [id, id + 0.5].
inline std::shared_ptr<arrow::RecordBatch> MakeIds(int64_t begin, int64_t end) {
  std::string ids;
  std::string pairs;
  for (int64_t id = begin; id < end; ++id) {
    absl::StrAppend(&ids, ids.empty() ? "" : ",", id);
    absl::StrAppend(&pairs, pairs.empty() ? "[" : ",[", id, ",", id, ".5]");
  }
  return MakeBatch({{"id", arrow::int64(), "[" + ids + "]"},
                    {"x", arrow::fixed_size_list(arrow::float32(), 2), "[" + pairs + "]"}});
}

inline void WriteParquet(const std::string& path, const arrow::RecordBatch& batch,
                         int64_t row_group_rows = 1024) {
  const auto table = arrow::Table::FromRecordBatches({batch.Slice(0)}).ValueOrDie();
  const auto stream = arrow::io::FileOutputStream::Open(path).ValueOrDie();
  const auto properties = parquet::ArrowWriterProperties::Builder().store_schema()->build();
  ASSERT_TRUE(parquet::arrow::WriteTable(*table, arrow::default_memory_pool(), stream,
                                         row_group_rows, parquet::default_writer_properties(),
                                         properties)
                  .ok());
  ASSERT_TRUE(stream->Close().ok());
}

inline void WriteIpc(const std::string& path,
                     const std::vector<std::shared_ptr<arrow::RecordBatch>>& batches) {
  const auto stream = arrow::io::FileOutputStream::Open(path).ValueOrDie();
  const auto writer = arrow::ipc::MakeFileWriter(stream, batches.front()->schema()).ValueOrDie();
  for (const auto& batch : batches) {
    ASSERT_TRUE(writer->WriteRecordBatch(*batch).ok());
  }
  ASSERT_TRUE(writer->Close().ok());
  ASSERT_TRUE(stream->Close().ok());
}

// Reads all rows of a scan as one batch. Null if there are none.
inline absl::StatusOr<std::shared_ptr<arrow::RecordBatch>> ReadAll(DataSource* source,
                                                                   const ScanOptions& options) {
  BRAID_ASSIGN_OR_RETURN(const auto scan, source->Scan(options));
  std::vector<std::shared_ptr<arrow::RecordBatch>> batches;
  while (true) {
    BRAID_ASSIGN_OR_RETURN(auto batch, scan->Next());
    if (batch == nullptr) {
      break;
    }
    if (options.batch_rows > 0) {
      EXPECT_LE(batch->num_rows(), options.batch_rows);
    }
    EXPECT_GT(batch->num_rows(), 0);
    batches.push_back(std::move(batch));
  }
  if (batches.empty()) {
    return nullptr;
  }
  return arrow::ConcatenateRecordBatches(batches).ValueOrDie();
}

// Column of int64 as numbers.
inline std::vector<int64_t> Int64s(const arrow::RecordBatch& batch, const std::string& column) {
  const auto array = std::static_pointer_cast<arrow::Int64Array>(batch.GetColumnByName(column));
  return {array->raw_values(), array->raw_values() + array->length()};
}

inline std::vector<int64_t> Count(int64_t begin, int64_t end) {
  std::vector<int64_t> numbers;
  for (int64_t i = begin; i < end; ++i) {
    numbers.push_back(i);
  }
  return numbers;
}

}  // namespace braid
