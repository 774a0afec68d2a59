// Waits for the result of an asynchronous call.
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "absl/synchronization/notification.h"

namespace braid {

// Pending<absl::StatusOr<int>> sum;  Add(1, 2, sum.done());  EXPECT_THAT(sum.Wait(), IsOk());
template <typename Result>
class Pending {
 public:
  // A callback; to be called once. It may outlive this object.
  auto done() {
    return [state = state_](Result result) {
      state->result = std::move(result);
      state->answered.Notify();  // dies if it was called before
    };
  }
  bool answered() const { return state_->answered.HasBeenNotified(); }
  const Result& Wait() const {
    state_->answered.WaitForNotification();
    return *state_->result;
  }

 private:
  struct State {
    std::optional<Result> result;
    absl::Notification answered;
  };
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace braid
