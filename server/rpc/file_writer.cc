#include "server/rpc/file_writer.h"

#include <algorithm>
#include <utility>

namespace braid {
namespace {

constexpr size_t kPieceBytes = 1 << 20;

}  // namespace

void FileWriter::Start(absl::StatusOr<std::string> file) {
  if (!refused_.ok() || !file.ok()) {
    End(refused_.ok() ? file.status() : refused_);
    return;
  }
  file_ = *std::move(file);
  WriteNext();
}

void FileWriter::OnWriteDone(bool ok) {
  if (!ok) {
    End(absl::CancelledError("the client is gone"));
    return;
  }
  WriteNext();
}

void FileWriter::WriteNext() {
  if (offset_ == file_.size()) {
    End(absl::OkStatus());
    return;
  }
  const size_t size = std::min(kPieceBytes, file_.size() - offset_);
  piece_.set_total_bytes(static_cast<int64_t>(file_.size()));
  piece_.set_offset(static_cast<int64_t>(offset_));
  piece_.set_data(file_.data() + offset_, size);
  offset_ += size;
  StartWrite(&piece_);
}

void FileWriter::End(const absl::Status& status) {
  caller_.Audit(status);
  Finish(record_.End(status, caller_, caller_.model()));
}

}  // namespace braid
