#include "server/rpc/training/piece_stream.h"

#include <algorithm>
#include <cstdint>

#include "server/rpc/training/training_messages.h"

namespace braid {
namespace {

constexpr size_t kPieceBytes = 1 << 20;
constexpr size_t kPieceOperations = 1000;

}  // namespace

bool FilePieces::Next(Piece* piece) {
  if (offset_ == file_.size()) {
    return false;
  }
  const size_t size = std::min(kPieceBytes, file_.size() - offset_);
  piece->set_total_bytes(static_cast<int64_t>(file_.size()));
  piece->set_offset(static_cast<int64_t>(offset_));
  piece->set_data(file_.data() + offset_, size);
  offset_ += size;
  return true;
}

bool StatePieces::Next(Piece* piece) {
  if (tensor_ == state_.size()) {
    return false;
  }
  const auto& [tensor, is_parameter] = state_[tensor_];
  const size_t size = std::min(kPieceBytes, tensor.bytes - offset_);
  piece->set_name(tensor.name);
  piece->set_datatype(std::string(DataTypeName(tensor.type)));
  piece->mutable_shape()->Assign(tensor.shape.begin(), tensor.shape.end());
  piece->set_parameter(is_parameter);
  piece->set_offset(static_cast<int64_t>(offset_));
  piece->set_data(static_cast<const char*>(tensor.data) + offset_, size);
  offset_ += size;
  if (offset_ == tensor.bytes) {
    ++tensor_;
    offset_ = 0;
  }
  return true;
}

bool HistoryPieces::Next(Piece* piece) {
  if (next_ == history_.size()) {
    return false;
  }
  piece->Clear();
  const size_t end = std::min(history_.size(), next_ + kPieceOperations);
  for (; next_ < end; ++next_) {
    WriteRecorded(history_[next_], piece->add_operations());
  }
  return true;
}

}  // namespace braid
