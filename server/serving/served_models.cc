#include "server/serving/served_models.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/batching/batch_queue.h"
#include "server/devices/worker.h"
#include "server/serving/load_model.h"
#include "server/serving/row_test_cache.h"

namespace braid {

ServedModels::ServedModels(std::vector<Worker*> workers, Metrics* metrics,
                           std::string row_tests_path)
    : workers_(std::move(workers)),
      metrics_(metrics),
      row_tests_(std::make_unique<RowTestCache>(std::move(row_tests_path))) {}

ServedModels::~ServedModels() = default;

std::shared_ptr<BatchQueue> ServedModels::MakeQueue(LoadedVersion version) const {
  ModelConfig config = std::move(version.config);
  config.origin = std::move(version.origin);
  auto queue = std::make_shared<BatchQueue>(std::move(config), version.version,
                                            std::move(version.replicas), metrics_, expiries_.get());
  Start(queue);
  return queue;
}

std::shared_ptr<BatchQueue> ServedModels::MakeQueue(ModelConfig config,
                                                    const BatchQueue& before) const {
  auto queue = std::make_shared<BatchQueue>(std::move(config), before, metrics_, expiries_.get());
  Start(queue);
  return queue;
}

void ServedModels::Start(const std::shared_ptr<BatchQueue>& queue) {
  for (Worker* worker : queue->replicas().workers()) {
    worker->AddSource(queue);
  }
}

const std::shared_ptr<BatchQueue>& ServedModels::Entry::current() const {
  const auto found = served.find(routing.current);
  return found == served.end() ? served.rbegin()->second : found->second;
}

bool ServedModels::Entry::has_label(int64_t version) const {
  return std::any_of(routing.labels.begin(), routing.labels.end(),
                     [version](const auto& label) { return label.second == version; });
}

void ServedModels::Add(const std::shared_ptr<BatchQueue>& queue, Entry* entry, Removed* removed) {
  if (std::shared_ptr<BatchQueue> before = std::exchange(entry->served[queue->version()], queue);
      before != nullptr) {
    removed->push_back(std::move(before));
  }
  entry->highest = std::max(entry->highest, queue->version());
  entry->reasons.erase(queue->version());
  entry->reasons.erase(0);
}

void ServedModels::Trim(Entry* entry, Removed* removed) {
  if (entry->served.empty()) {
    return;
  }
  const int64_t current = entry->current()->version();
  const auto* latest = std::get_if<LatestVersions>(&entry->config->version_policy);
  int64_t room = latest == nullptr ? std::numeric_limits<int64_t>::max() : latest->count;
  for (auto version = entry->served.end(); version != entry->served.begin();) {
    --version;
    const bool selected = room > 0 && version->first <= current;
    room -= selected ? 1 : 0;
    if (!selected && !entry->has_label(version->first)) {
      removed->push_back(std::move(version->second));
      version = entry->served.erase(version);
    }
  }
}

void ServedModels::Replace(std::vector<LoadedVersion> versions) {
  const auto config = std::make_shared<const ModelConfig>(versions.back().config);
  std::vector<std::shared_ptr<BatchQueue>> queues;
  for (LoadedVersion& version : versions) {
    queues.push_back(MakeQueue(std::move(version)));
  }
  Removed removed;
  const absl::MutexLock lock(&mu_);
  Entry& entry = entries_[config->name];
  auto before = std::exchange(entry.served, {});
  entry.config = config;
  entry.reasons.clear();
  for (const std::shared_ptr<BatchQueue>& queue : queues) {
    Add(queue, &entry, &removed);
  }
  const int64_t highest = queues.back()->version();
  int64_t current = highest;
  for (auto& [version, queue] : before) {
    const bool published = version > highest && !queue->config().origin.empty();
    const bool pinned = entry.routing.pinned && version == entry.routing.current;
    if ((published || pinned || entry.has_label(version)) && !entry.served.contains(version)) {
      Add(queue, &entry, &removed);
      current = published ? version : current;
    }
    removed.push_back(std::move(queue));
  }
  if (!entry.routing.pinned) {
    entry.routing.current = current;
  }
  Trim(&entry, &removed);
}

void ServedModels::Serve(LoadedVersion version) {
  auto config = std::make_shared<const ModelConfig>(version.config);
  const auto queue = MakeQueue(std::move(version));
  Removed removed;
  const absl::MutexLock lock(&mu_);
  Entry& entry = entries_[config->name];
  entry.config = std::move(config);
  entry.routing.current = queue->version();
  Add(queue, &entry, &removed);
  Trim(&entry, &removed);
}

absl::Status ServedModels::ServeVersion(LoadedVersion version,
                                        const std::shared_ptr<const ModelConfig>& config,
                                        Routing routing) {
  return ServeQueue(MakeQueue(std::move(version)), config, std::move(routing));
}

absl::Status ServedModels::ServeQueue(const std::shared_ptr<BatchQueue>& queue,
                                      const std::shared_ptr<const ModelConfig>& config,
                                      Routing routing) {
  const std::string& name = config->name;
  Removed removed;
  const absl::MutexLock lock(&mu_);
  BRAID_ASSIGN_OR_RETURN(const Entry* found, FindEntry(name));
  if (found->config != config) {
    return absl::UnavailableError(absl::StrCat("model '", name, "' was reloaded meanwhile"));
  }
  Entry& entry = entries_.find(name)->second;
  entry.routing = std::move(routing);
  Add(queue, &entry, &removed);
  Trim(&entry, &removed);
  return absl::OkStatus();
}

std::shared_ptr<BatchQueue>* ServedModels::FindPlace(const BatchQueue& queue) {
  const auto entry = entries_.find(queue.config().name);
  if (entry == entries_.end()) {
    return nullptr;
  }
  const auto served = entry->second.served.find(queue.version());
  return served != entry->second.served.end() && served->second.get() == &queue ? &served->second
                                                                                : nullptr;
}

bool ServedModels::Reconfigure(const std::shared_ptr<const BatchQueue>& queue,
                               const ModelConfig& config) {
  {
    const absl::MutexLock lock(&mu_);
    if (FindPlace(*queue) == nullptr) {
      return false;
    }
  }
  std::shared_ptr<BatchQueue> next = MakeQueue(config, *queue);
  const absl::MutexLock lock(&mu_);
  std::shared_ptr<BatchQueue>* const place = FindPlace(*queue);
  if (place != nullptr) {
    place->swap(next);
  }
  return place != nullptr;
}

absl::Status ServedModels::SetRouting(absl::string_view name, Routing routing) {
  Removed removed;
  const absl::MutexLock lock(&mu_);
  BRAID_RETURN_IF_ERROR(FindEntry(name).status());
  Entry& entry = entries_.find(name)->second;
  entry.routing = std::move(routing);
  Trim(&entry, &removed);
  return absl::OkStatus();
}

void ServedModels::RemoveVersion(absl::string_view name, int64_t version) {
  Removed removed;
  const absl::MutexLock lock(&mu_);
  const auto found = entries_.find(name);
  if (found == entries_.end()) {
    return;
  }
  Entry& entry = found->second;
  entry.reasons.erase(version);
  const auto served = entry.served.find(version);
  if (served != entry.served.end() && served->second != entry.current() &&
      !entry.has_label(version)) {
    removed.push_back(std::move(served->second));
    entry.served.erase(served);
  }
}

absl::Status ServedModels::Remove(absl::string_view name, absl::string_view reason) {
  Removed removed;
  const absl::MutexLock lock(&mu_);
  const auto found = entries_.find(name);
  if (found == entries_.end()) {
    return FindEntry(name).status();
  }
  Entry& entry = found->second;
  for (auto& [version, queue] : entry.served) {
    entry.reasons.erase(0);
    entry.reasons[version] = std::string(reason);
    removed.push_back(std::move(queue));
  }
  entry.served.clear();
  return absl::OkStatus();
}

void ServedModels::Forget(absl::string_view name) {
  std::map<std::string, Entry, std::less<>>::node_type removed;
  const absl::MutexLock lock(&mu_);
  if (const auto found = entries_.find(name); found != entries_.end()) {
    removed = entries_.extract(found);
  }
}

absl::StatusOr<int64_t> ServedModels::NextVersion(absl::string_view name) const {
  const absl::MutexLock lock(&mu_);
  BRAID_ASSIGN_OR_RETURN(const Entry* entry, FindEntry(name));
  const int64_t next = entry->highest + 1;
  const auto* policy = std::get_if<SpecificVersions>(&entry->config->version_policy);
  if (policy != nullptr &&
      std::find(policy->versions.begin(), policy->versions.end(), next) == policy->versions.end()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "version ", next, " of model '", name, "' would not be served (version_policy allows ",
        absl::StrJoin(policy->versions, ", "), ")"));
  }
  return next;
}

absl::Status ServedModels::ReserveVersion(absl::string_view name, int64_t version) {
  const absl::MutexLock lock(&mu_);
  BRAID_RETURN_IF_ERROR(FindEntry(name).status());
  Entry& entry = entries_.find(name)->second;
  entry.highest = std::max(entry.highest, version);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const ModelConfig>> ServedModels::FindConfig(
    absl::string_view name) const {
  const absl::MutexLock lock(&mu_);
  BRAID_ASSIGN_OR_RETURN(const Entry* entry, FindEntry(name));
  return entry->config;
}

void ServedModels::MarkFailed(const std::string& name, int64_t version, const absl::Status& why) {
  const absl::MutexLock lock(&mu_);
  entries_[name].reasons[version] = std::string(why.message());
}

void ServedModels::Register(const std::string& name) {
  const absl::MutexLock lock(&mu_);
  entries_.try_emplace(name);
}

absl::StatusOr<const ServedModels::Entry*> ServedModels::FindEntry(absl::string_view name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) {
    std::vector<std::string> names;
    names.reserve(entries_.size());
    for (const auto& [other, entry] : entries_) {
      names.push_back(absl::StrCat("'", other, "'"));
    }
    return absl::NotFoundError(
        absl::StrCat("unknown model '", Excerpt(name), "' (the repository has ",
                     names.empty() ? "none" : absl::StrJoin(names, ", "), ")"));
  }
  if (found->second.served.empty()) {
    const auto& reasons = found->second.reasons;
    return absl::NotFoundError(absl::StrCat(
        "model '", name,
        "' is not served: ", reasons.empty() ? "it was not loaded" : reasons.rbegin()->second));
  }
  return &found->second;
}

absl::StatusOr<std::shared_ptr<RequestQueue>> ServedModels::Find(absl::string_view name,
                                                                 int64_t version) const {
  return FindReplicas(name, version);
}

absl::StatusOr<std::shared_ptr<BatchQueue>> ServedModels::FindReplicas(absl::string_view name,
                                                                       int64_t version) const {
  const absl::MutexLock lock(&mu_);
  BRAID_ASSIGN_OR_RETURN(const Entry* entry, FindEntry(name));
  if (version == 0) {
    return entry->current();
  }
  if (const auto found = entry->served.find(version); found != entry->served.end()) {
    return found->second;
  }
  return absl::NotFoundError(absl::StrCat(
      "model '", name, "': version ", version, " is not served (served: ",
      absl::StrJoin(
          entry->served, ", ",
          [](std::string* out, const auto& served) { absl::StrAppend(out, served.first); }),
      ")"));
}

absl::StatusOr<std::shared_ptr<RequestQueue>> ServedModels::FindLabel(
    absl::string_view name, absl::string_view label) const {
  const absl::MutexLock lock(&mu_);
  BRAID_ASSIGN_OR_RETURN(const Entry* entry, FindEntry(name));
  const std::map<std::string, int64_t>& labels = entry->routing.labels;
  const auto found = labels.find(std::string(label));
  if (found == labels.end()) {
    return absl::NotFoundError(
        absl::StrCat("model '", name, "' has no label '", Excerpt(label), "' (labels: ",
                     labels.empty() ? "none"
                                    : absl::StrJoin(labels, ", ",
                                                    [](std::string* out, const auto& each) {
                                                      absl::StrAppend(out, each.first);
                                                    }),
                     ")"));
  }
  const auto version = entry->served.find(found->second);
  if (version == entry->served.end()) {
    return absl::NotFoundError(absl::StrCat("model '", name, "': version ", found->second,
                                            ", label '", label, "', is not served"));
  }
  return version->second;
}

absl::StatusOr<std::vector<int64_t>> ServedModels::Versions(absl::string_view name) const {
  const absl::MutexLock lock(&mu_);
  BRAID_ASSIGN_OR_RETURN(const Entry* entry, FindEntry(name));
  std::vector<int64_t> versions;
  for (const auto& [version, queue] : entry->served) {
    versions.push_back(version);
  }
  return versions;
}

void ServedModels::AddStates(const std::string& name, const Entry& entry,
                             std::vector<ModelState>* states) {
  std::map<int64_t, ModelState> versions;
  for (const auto& [version, reason] : entry.reasons) {
    versions[version] = {name, version, false, reason};
  }
  for (const auto& [version, queue] : entry.served) {
    auto failure = entry.reasons.find(version);
    if (failure == entry.reasons.end() && version == entry.served.rbegin()->first) {
      failure = entry.reasons.find(0);
    }
    versions[version] = {name, version, true,
                         failure == entry.reasons.end()
                             ? ""
                             : absl::StrCat("the last load failed: ", failure->second)};
    versions.erase(0);
  }
  if (versions.empty()) {
    versions[0] = {name, 0, false, ""};
  }
  for (auto& [version, state] : versions) {
    states->push_back(std::move(state));
  }
}

std::vector<ModelState> ServedModels::States(absl::string_view name) const {
  const absl::MutexLock lock(&mu_);
  std::vector<ModelState> states;
  if (const auto found = entries_.find(name); found != entries_.end()) {
    AddStates(found->first, found->second, &states);
  }
  return states;
}

std::vector<ModelState> ServedModels::List() const {
  const absl::MutexLock lock(&mu_);
  std::vector<ModelState> states;
  for (const auto& [name, entry] : entries_) {
    AddStates(name, entry, &states);
  }
  return states;
}

std::vector<ServedVersion> ServedModels::Served() const {
  const absl::MutexLock lock(&mu_);
  std::vector<ServedVersion> all;
  for (const auto& [name, entry] : entries_) {
    for (const auto& [version, queue] : entry.served) {
      ServedVersion& served = all.emplace_back(ServedVersion{name, version, {}});
      for (size_t r = 0; r < queue->bytes().size(); ++r) {
        served.memory.emplace_back(queue->replicas().worker(r).name(), queue->bytes()[r]);
      }
    }
  }
  return all;
}

}  // namespace braid
