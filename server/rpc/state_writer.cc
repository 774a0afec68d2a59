#include "server/rpc/state_writer.h"

#include <algorithm>
#include <string>
#include <utility>

namespace braid {

void StateWriter::Start(absl::StatusOr<std::vector<StateTensor>> state) {
  if (!refused_.ok() || !state.ok()) {
    End(refused_.ok() ? state.status() : refused_);
    return;
  }
  state_ = *std::move(state);
  WriteNext();
}

void StateWriter::OnWriteDone(bool ok) {
  if (!ok) {
    End(absl::CancelledError("the client is gone"));
    return;
  }
  WriteNext();
}

void StateWriter::WriteNext() {
  if (tensor_ == state_.size()) {
    End(absl::OkStatus());
    return;
  }
  const auto& [tensor, is_parameter] = state_[tensor_];
  const size_t size = std::min(kStatePieceBytes, tensor.bytes - offset_);
  piece_.set_name(tensor.name);
  piece_.set_datatype(std::string(DataTypeName(tensor.type)));
  piece_.mutable_shape()->Assign(tensor.shape.begin(), tensor.shape.end());
  piece_.set_parameter(is_parameter);
  piece_.set_offset(static_cast<int64_t>(offset_));
  piece_.set_data(static_cast<const char*>(tensor.data) + offset_, size);
  offset_ += size;
  if (offset_ == tensor.bytes) {
    ++tensor_;
    offset_ = 0;
  }
  StartWrite(&piece_);
}

void StateWriter::End(const absl::Status& status) {
  caller_.Audit(status);
  Finish(record_.End(status, caller_, caller_.model()));
}

}  // namespace braid
