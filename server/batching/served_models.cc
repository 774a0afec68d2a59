#include "server/batching/served_models.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/batching/batch_queue.h"
#include "server/devices/worker.h"
#include "server/models/model.h"

namespace braid {

ServedModels::ServedModels(std::vector<Worker*> workers, Metrics* metrics)
    : workers_(std::move(workers)), metrics_(metrics) {}

ServedModels::~ServedModels() = default;

void ServedModels::Serve(std::shared_ptr<const Model> model, int64_t version,
                         std::vector<std::unique_ptr<Replica>> replicas,
                         std::map<std::string, std::string> origin) {
  ModelConfig config = model->config();
  config.origin = std::move(origin);
  const std::string name = config.name;
  auto queue = std::make_shared<BatchQueue>(std::move(config), version,
                                            ReplicaSet(workers_, std::move(replicas)), metrics_);
  for (Worker* worker : workers_) {
    worker->AddSource(queue);
  }
  std::shared_ptr<BatchQueue> before;  // freed, if nobody waits in it, after the lock
  const absl::MutexLock lock(&mu_);
  Entry& entry = entries_[name];
  before = std::exchange(entry.queue, std::move(queue));
  entry.model = std::move(model);
  entry.version = version;
  entry.highest = std::max(entry.highest, version);
  entry.reason.clear();
}

absl::Status ServedModels::ServeVersion(absl::string_view name, int64_t version,
                                        std::vector<std::unique_ptr<Replica>> replicas,
                                        std::map<std::string, std::string> origin) {
  BRAID_ASSIGN_OR_RETURN(std::shared_ptr<const Model> model, FindModel(name));
  Serve(std::move(model), version, std::move(replicas), std::move(origin));
  return absl::OkStatus();
}

absl::StatusOr<int64_t> ServedModels::NextVersion(absl::string_view name) const {
  const absl::MutexLock lock(&mu_);
  BRAID_ASSIGN_OR_RETURN(const Entry* entry, FindEntry(name));
  return entry->highest + 1;
}

absl::Status ServedModels::ReserveVersion(absl::string_view name, int64_t version) {
  const absl::MutexLock lock(&mu_);
  BRAID_RETURN_IF_ERROR(FindEntry(name).status());
  Entry& entry = entries_.find(name)->second;
  entry.highest = std::max(entry.highest, version);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const Model>> ServedModels::FindModel(absl::string_view name) const {
  const absl::MutexLock lock(&mu_);
  BRAID_ASSIGN_OR_RETURN(const Entry* entry, FindEntry(name));
  return entry->model;
}

void ServedModels::ServeNot(std::string name, int64_t version, const absl::Status& why) {
  const absl::MutexLock lock(&mu_);
  Entry& entry = entries_[std::move(name)];
  entry.version = version;
  entry.reason = std::string(why.message());
}

absl::StatusOr<const ServedModels::Entry*> ServedModels::FindEntry(absl::string_view name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) {
    std::vector<std::string> names;
    names.reserve(entries_.size());
    for (const auto& [other, entry] : entries_) {
      names.push_back(absl::StrCat("'", other, "'"));
    }
    return absl::NotFoundError(absl::StrCat("there is no model '", Excerpt(name),
                                            "'; the repository holds ",
                                            names.empty() ? "none" : absl::StrJoin(names, ", ")));
  }
  if (found->second.queue == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("model '", name, "' is not served: ", found->second.reason));
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
  if (version != 0 && version != entry->version) {
    return absl::NotFoundError(absl::StrCat("model '", name, "' has no version ", version,
                                            " that is served; served is ", entry->version));
  }
  return entry->queue;
}

std::vector<ModelState> ServedModels::List() const {
  const absl::MutexLock lock(&mu_);
  std::vector<ModelState> states;
  states.reserve(entries_.size());
  for (const auto& [name, entry] : entries_) {
    states.push_back({name, entry.version, entry.queue != nullptr, entry.reason});
  }
  return states;
}

}  // namespace braid
