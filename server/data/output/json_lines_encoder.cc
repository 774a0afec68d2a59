// JSON lines: one JSON object per row.

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "arrow/record_batch.h"
#include "arrow/type.h"
#include "server/base/status.h"
#include "server/data/output/growing_file.h"
#include "server/data/output/json_rows.h"
#include "server/data/output/row_encoder.h"

namespace braid {
namespace {

class JsonLinesEncoder final : public RowEncoder {
 public:
  JsonLinesEncoder(const arrow::Schema& schema, std::unique_ptr<GrowingFile> file)
      : rows_(schema), file_(std::move(file)) {}

  absl::Status Write(const arrow::RecordBatch& batch) override {
    std::string text;
    for (int64_t row = 0; row < batch.num_rows(); ++row) {
      BRAID_RETURN_IF_ERROR(rows_.Append(batch, row, &text));
      text.push_back('\n');
    }
    return file_->Write(text);
  }

  absl::StatusOr<std::vector<StoredFile>> FinishPart() override {
    BRAID_ASSIGN_OR_RETURN(StoredFile file, file_->FinishPart());
    return std::vector<StoredFile>{std::move(file)};
  }

  absl::Status Finish(const std::vector<OutputPart>&) override { return absl::OkStatus(); }

 private:
  const JsonRows rows_;
  const std::unique_ptr<GrowingFile> file_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RowEncoder>> OpenJsonLinesEncoder(
    const std::string& directory, const arrow::Schema& schema,
    const std::vector<OutputPart>& parts) {
  BRAID_ASSIGN_OR_RETURN(
      auto file, GrowingFile::Open(absl::StrCat(directory, "/data"), 0, PartsOfFile(parts, 0)));
  return std::make_unique<JsonLinesEncoder>(schema, std::move(file));
}

}  // namespace braid
