#include "server/training/trainer/version_writer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/telemetry/log.h"

namespace braid {
namespace {

// A version keeps its weights in memory until it is written.
constexpr int64_t kMaxPending = 8;
// Versions of a model without files, and not served, whose state is kept.
constexpr size_t kMaxGone = 8;

bool IsPending(const DurabilityState& state) { return state.durability == Durability::kPending; }

}  // namespace

VersionWriter::VersionWriter(const VersionStore* store, Metrics* metrics)
    : store_(store), metrics_(metrics), thread_("version writer") {}

VersionWriter::~VersionWriter() = default;

int64_t VersionWriter::CountPending() const {
  return std::count_if(entries_.begin(), entries_.end(),
                       [](const auto& entry) { return IsPending(entry.second.state); });
}

void VersionWriter::WaitForRoom() const {
  const absl::MutexLock lock(&mu_);
  const auto has_room = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return CountPending() < kMaxPending;
  };
  mu_.Await(absl::Condition(&has_room));
}

void VersionWriter::Add(VersionToWrite version) {
  const Key key = {version.model, version.version};
  const absl::MutexLock lock(&mu_);
  Entry& entry = entries_[key];
  entry.version = std::move(version);
  entry.state = {Durability::kPending, ""};
  entry.added = absl::Now();
  entry.metrics = std::make_unique<ModelMetrics>(metrics_, key.first);
  entry.metrics->AddPendingVersions(1);
  *entry.version.durability = Durability::kPending;
  thread_.Post([this, key] { Write(key); });
}

void VersionWriter::Write(const Key& key) {
  Entry* entry = nullptr;
  {
    const absl::MutexLock lock(&mu_);
    const auto found = entries_.find(key);
    if (found == entries_.end() || !IsPending(found->second.state)) {
      return;  // superseded
    }
    entry = &found->second;
    // From now on, the version is this thread's until it is settled.
    entry->writing = true;
  }
  // Keeps the weights, which are freed without the lock.
  const absl::Status written =
      store_->Write(key.first, key.second, entry->version.origin, std::move(entry->version.files));
  if (!written.ok()) {
    Log(LogModule::kModels)
        .error("model '{}': version {} is served, but was not written to the data directory: {}",
               key.first, key.second, std::string(written.message()));
  }
  const absl::MutexLock lock(&mu_);
  Settle(key, written.ok() ? DurabilityState{Durability::kDurable, ""}
                           : DurabilityState{Durability::kFailed, std::string(written.message())});
}

void VersionWriter::Settle(const Key& key, DurabilityState state) {
  const auto found = entries_.find(key);
  Entry& entry = found->second;
  *entry.version.durability = state.durability;
  entry.metrics->AddPendingVersions(-1);
  entry.metrics->CountVersion(NameOf(state.durability), absl::Now() - entry.added);
  entry.writing = false;
  const bool durable = state.durability == Durability::kDurable;
  entry.state = std::move(state);
  if (durable) {
    entries_.erase(found);
  }
}

void VersionWriter::Supersede(const std::string& model, int64_t newer,
                              absl::FunctionRef<bool(int64_t version)> is_served) {
  std::vector<std::vector<NewFile>> freed;  // after the lock is released
  const absl::MutexLock lock(&mu_);
  std::vector<Key> gone;
  const auto end = entries_.lower_bound({model, newer});
  for (auto entry = entries_.lower_bound({model, 0}); entry != end; ++entry) {
    const Key& key = entry->first;
    Entry& value = entry->second;
    if (is_served(key.second)) {
      continue;
    }
    if (IsPending(value.state) && !value.writing && !value.version.must_write) {
      freed.push_back(std::move(value.version.files));
      Settle(key, {Durability::kSuperseded,
                   absl::StrCat("version ", newer, " replaced it before it was written")});
    }
    if (!IsPending(value.state)) {
      gone.push_back(key);
    }
  }
  for (size_t i = 0; i + kMaxGone < gone.size(); ++i) {
    entries_.erase(gone[i]);
  }
}

std::optional<DurabilityState> VersionWriter::Find(const std::string& model,
                                                   int64_t version) const {
  const absl::MutexLock lock(&mu_);
  const auto found = entries_.find({model, version});
  return found == entries_.end() ? std::nullopt : std::optional(found->second.state);
}

std::map<int64_t, VersionWriter::Unwritten> VersionWriter::List(const std::string& model) const {
  const absl::MutexLock lock(&mu_);
  std::map<int64_t, Unwritten> unwritten;
  for (auto entry = entries_.lower_bound({model, 0});
       entry != entries_.end() && entry->first.first == model; ++entry) {
    unwritten[entry->first.second] = {entry->second.version.origin, entry->second.state};
  }
  return unwritten;
}

bool VersionWriter::Forget(const std::string& model, int64_t version) {
  const absl::MutexLock lock(&mu_);
  const auto found = entries_.find({model, version});
  if (found == entries_.end() || IsPending(found->second.state)) {
    return false;
  }
  entries_.erase(found);
  return true;
}

void VersionWriter::Wait(const std::string& model, int64_t version) {
  const Key key = {model, version};
  const absl::MutexLock lock(&mu_);
  if (const auto found = entries_.find(key); found != entries_.end()) {
    found->second.version.must_write = true;
  }
  const auto is_settled = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const auto found = entries_.find(key);
    return found == entries_.end() || !IsPending(found->second.state);
  };
  mu_.Await(absl::Condition(&is_settled));
}

void VersionWriter::WaitForTrainer(const std::string& trainer_id, int64_t sequence) const {
  const absl::MutexLock lock(&mu_);
  const auto are_settled = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return std::none_of(entries_.begin(), entries_.end(), [&](const auto& entry) {
      const VersionOrigin& origin = entry.second.version.origin;
      return IsPending(entry.second.state) && origin.trainer_id == trainer_id &&
             origin.sequence <= sequence;
    });
  };
  mu_.Await(absl::Condition(&are_settled));
}

void VersionWriter::Flush() const {
  const absl::MutexLock lock(&mu_);
  const auto is_idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return CountPending() == 0; };
  mu_.Await(absl::Condition(&is_idle));
}

}  // namespace braid
