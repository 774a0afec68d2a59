#include "server/models/config/config_batching.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "server/base/status.h"

namespace braid {
namespace {

constexpr uint64_t kMaxDelayMicroseconds = 60'000'000;
constexpr uint64_t kMaxTimeoutMicroseconds = 1'000'000'000'000;  // 11 days
constexpr uint64_t kMaxPriorityLevels = 65536;

absl::StatusOr<QueuePolicy> ToPolicy(const inference::ModelQueuePolicy& text,
                                     bool preserve_ordering, const std::string& where) {
  QueuePolicy policy;
  const uint64_t timeout = text.default_timeout_microseconds();
  if (timeout > kMaxTimeoutMicroseconds) {
    return InvalidField(where + ".default_timeout_microseconds",
                        absl::StrCat(timeout, "; expected at most ", kMaxTimeoutMicroseconds));
  }
  policy.default_timeout = absl::Microseconds(static_cast<int64_t>(timeout));
  policy.allow_timeout_override = text.allow_timeout_override();
  policy.max_queue_size = text.max_queue_size();
  switch (text.timeout_action()) {
    case inference::ModelQueuePolicy::REJECT:
      policy.timeout_action = QueuePolicy::TimeoutAction::kReject;
      break;
    case inference::ModelQueuePolicy::DELAY:
      policy.timeout_action = QueuePolicy::TimeoutAction::kDelay;
      break;
    default:
      return InvalidField(where + ".timeout_action",
                          absl::StrCat(static_cast<int>(text.timeout_action()),
                                       " is none; expected REJECT or DELAY"));
  }
  if (preserve_ordering && policy.timeout_action == QueuePolicy::TimeoutAction::kDelay &&
      timeout > 0) {
    return InvalidField(where + ".timeout_action",
                        "DELAY changes the order that preserve_ordering asks for; expected REJECT");
  }
  return policy;
}

absl::Status ReadPreferredSizes(const inference::ModelDynamicBatching& text, ModelConfig* config) {
  for (const int64_t size : text.preferred_batch_size()) {
    if (size < 1 || size > config->max_batch_size) {
      return InvalidField(
          "dynamic_batching.preferred_batch_size",
          absl::StrCat(size, "; expected 1 to max_batch_size, which is ", config->max_batch_size));
    }
    config->preferred_batch_sizes.push_back(size);
  }
  std::vector<int64_t>& sizes = config->preferred_batch_sizes;
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  return absl::OkStatus();
}

absl::Status CheckLevels(const inference::ModelDynamicBatching& text) {
  const uint64_t levels = text.priority_levels();
  const uint64_t by_default = text.default_priority_level();
  if (levels > kMaxPriorityLevels) {
    return InvalidField("dynamic_batching.priority_levels",
                        absl::StrCat(levels, "; expected at most ", kMaxPriorityLevels));
  }
  if (levels == 0 && (by_default != 0 || text.priority_queue_policy_size() > 0)) {
    return InvalidField("dynamic_batching.priority_levels",
                        "is 0, but a default level or a level's queue policy is there; expected "
                        "how many levels there are");
  }
  if (levels > 0 && (by_default < 1 || by_default > levels)) {
    return InvalidField(
        "dynamic_batching.default_priority_level",
        absl::StrCat(by_default, "; expected 1 to priority_levels, which is ", levels));
  }
  if (text.preserve_ordering() && levels > 1) {
    return InvalidField("dynamic_batching.priority_levels",
                        absl::StrCat(levels, " with preserve_ordering; expected at most 1"));
  }
  for (const auto& [level, policy] : text.priority_queue_policy()) {
    if (level < 1 || level > levels) {
      return InvalidField(
          absl::StrCat("dynamic_batching.priority_queue_policy[", level, "]"),
          absl::StrCat("is of no level; expected 1 to priority_levels, which is ", levels));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadDynamicBatching(const inference::ModelDynamicBatching& text, ModelConfig* config) {
  const uint64_t delay = text.max_queue_delay_microseconds();
  if (delay > kMaxDelayMicroseconds) {
    return InvalidField("dynamic_batching.max_queue_delay_microseconds",
                        absl::StrCat(delay, "; expected at most ", kMaxDelayMicroseconds));
  }
  config->max_queue_delay = absl::Microseconds(static_cast<int64_t>(delay));
  BRAID_RETURN_IF_ERROR(ReadPreferredSizes(text, config));
  BRAID_RETURN_IF_ERROR(CheckLevels(text));
  config->preserve_ordering = text.preserve_ordering();
  config->priority_levels = static_cast<int64_t>(text.priority_levels());
  config->default_priority_level = static_cast<int64_t>(text.default_priority_level());
  BRAID_ASSIGN_OR_RETURN(config->default_queue_policy,
                         ToPolicy(text.default_queue_policy(), text.preserve_ordering(),
                                  "dynamic_batching.default_queue_policy"));
  for (const auto& [level, policy] : text.priority_queue_policy()) {
    BRAID_ASSIGN_OR_RETURN(
        config->priority_queue_policies[static_cast<int64_t>(level)],
        ToPolicy(policy, text.preserve_ordering(),
                 absl::StrCat("dynamic_batching.priority_queue_policy[", level, "]")));
  }
  return absl::OkStatus();
}

}  // namespace braid
