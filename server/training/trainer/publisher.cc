#include "server/training/trainer/publisher.h"

#include <sys/stat.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <variant>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/batching/batch_queue.h"
#include "server/models/config/version_config.h"
#include "server/models/repository.h"
#include "server/parallel/replica_set.h"
#include "server/serving/load_model.h"
#include "server/storage/names.h"
#include "server/telemetry/log.h"

namespace braid {
namespace {

// Choices of the users, in the data directory.
constexpr char kChoicesFile[] = "serving.json";
// Published versions of a model without files whose numbers a retry of the operation gets again.
constexpr size_t kMaxReserved = 256;
// A publication waits this long for the test of its rows. If that takes longer, the version serves,
// but does not merge requests until the test ends.
constexpr absl::Duration kRowTestPatience = absl::Milliseconds(20);

std::map<std::string, std::string> Describe(const VersionOrigin& origin) {
  std::map<std::string, std::string> text = {
      {"created", absl::FormatTime(origin.created, absl::UTCTimeZone())}};
  if (!origin.trainer.empty()) {
    text["trainer"] = origin.trainer;
    text["step"] = absl::StrCat(origin.step);
    text["sequence"] = absl::StrCat(origin.sequence);
    text["checkpoint"] = origin.checkpoint;
  }
  return text;
}

absl::Time ModifiedTime(const std::string& path) {
  struct stat status = {};
  return stat(path.c_str(), &status) == 0 ? absl::TimeFromTimespec(status.st_mtim)
                                          : absl::InfinitePast();
}

bool Selects(const VersionPolicy& policy, int64_t version) {
  const auto* specific = std::get_if<SpecificVersions>(&policy);
  return specific == nullptr || std::find(specific->versions.begin(), specific->versions.end(),
                                          version) != specific->versions.end();
}

// Returns how many versions the policy serves, counted from the newest.
int64_t CountOf(const VersionPolicy& policy) {
  const auto* latest = std::get_if<LatestVersions>(&policy);
  return latest == nullptr ? std::numeric_limits<int64_t>::max() : latest->count;
}

void EndPin(VersionChoices* choices) {
  choices->pinned = 0;
  choices->newest = 0;
}

Routing RoutingOf(const VersionChoices& choices, int64_t current) {
  return {current, choices.pinned != 0, choices.labels};
}

}  // namespace

absl::StatusOr<std::unique_ptr<Publisher>> Publisher::Open(
    ServedModels* models, std::string repository, const std::string& data_dir,
    std::function<absl::Status(const std::string& path)> check_file) {
  std::unique_ptr<Publisher> publisher(
      new Publisher(models, std::move(repository), std::move(check_file)));
  if (!data_dir.empty()) {
    BRAID_ASSIGN_OR_RETURN(VersionStore store, VersionStore::Open(data_dir));
    publisher->store_ = std::make_unique<VersionStore>(std::move(store));
    publisher->writer_ =
        std::make_unique<VersionWriter>(publisher->store_.get(), models->metrics());
  }
  BRAID_ASSIGN_OR_RETURN(
      publisher->choices_,
      VersionChoicesFile::Open(data_dir.empty() ? "" : absl::StrCat(data_dir, "/", kChoicesFile)));
  return publisher;
}

int64_t Publisher::NewestStored(const Sources& sources) {
  const auto newest = std::find_if(sources.rbegin(), sources.rend(),
                                   [](const Source& source) { return source.stored; });
  return newest != sources.rend() ? newest->version : 0;
}

int64_t Publisher::NewestFailed(const std::string& model) const {
  int64_t newest = 0;
  if (writer_ != nullptr) {
    for (const auto& [version, unwritten] : writer_->List(model)) {
      newest = unwritten.state.durability == Durability::kFailed ? version : newest;
    }
  }
  return newest;
}

const Publisher::Source* Publisher::Find(const Sources& sources, int64_t version) {
  const auto found = std::find_if(sources.begin(), sources.end(), [version](const Source& source) {
    return source.version == version;
  });
  return found == sources.end() ? nullptr : &*found;
}

absl::StatusOr<int64_t> Publisher::Newest(const std::string& model, const Sources& sources) const {
  BRAID_ASSIGN_OR_RETURN(const auto config, models_->FindConfig(model));
  BRAID_ASSIGN_OR_RETURN(const std::shared_ptr<BatchQueue> current,
                         models_->FindReplicas(model, 0));
  int64_t newest = 0;
  for (const Source& source : sources) {
    if (Selects(config->version_policy, source.version)) {
      newest = std::max(newest, source.version);
    }
  }
  // Published without a data directory, or its folder is gone.
  const bool has_no_file = Find(sources, current->version()) == nullptr;
  return has_no_file || newest == 0 ? std::max(newest, current->version()) : newest;
}

int64_t Publisher::NextNumber(const std::string& model, const Sources& sources) const {
  const VersionChoices choices = choices_->Read(model);
  int64_t highest = std::max(choices.used, choices.pinned);
  for (const auto& [label, version] : choices.labels) {
    highest = std::max(highest, version);
  }
  if (!sources.empty()) {
    highest = std::max(highest, sources.back().version);
  }
  if (const auto next = models_->NextVersion(model); next.ok()) {
    highest = std::max(highest, *next - 1);
  }
  return highest + 1;
}

absl::StatusOr<int64_t> Publisher::TakeNumber(const std::string& model, const Sources& sources) {
  // Also after folders that are not loaded yet.
  BRAID_RETURN_IF_ERROR(models_->ReserveVersion(model, NextNumber(model, sources) - 1));
  return models_->NextVersion(model);
}

VersionChoices Publisher::ReadChoices(const std::string& model, const Sources& sources) const {
  VersionChoices choices = choices_->Read(model);
  // A published version ends the pin. On disk, the pin ends with the version's files: if the server
  // crashes before they are complete, the pinned version serves again.
  if (std::max(NewestStored(sources), NewestFailed(model)) > choices.newest) {
    EndPin(&choices);
  }
  return choices;
}

VersionChoices Publisher::InForce(const std::string& model, const Sources& sources,
                                  VersionChoices choices) const {
  if (Find(sources, choices.pinned) == nullptr && !models_->Find(model, choices.pinned).ok()) {
    EndPin(&choices);
  }
  return choices;
}

absl::StatusOr<Publisher::Sources> Publisher::FindSources(const std::string& model) const {
  std::map<int64_t, Source> sources;
  const auto config = models_->FindConfig(model);
  const std::string filename = config.ok() ? (*config)->model_filename : "";
  // A model without a folder in the repository has no versions there.
  if (const auto entry = ScanModel(repository_, model); entry.ok()) {
    for (const RepositoryEntry::Version& version : entry->versions) {
      if (const auto path = FindModelFile(version, filename); path.ok()) {
        sources[version.version] = {version.version, *path, /*stored=*/false};
      }
    }
  }
  if (store_ != nullptr) {
    // Before the versions are listed, so that one that is being written is in either list.
    const auto unwritten = writer_->List(model);
    BRAID_ASSIGN_OR_RETURN(std::vector<int64_t> versions, store_->Versions(model));
    for (const auto& [version, each] : unwritten) {
      if (each.is_pending()) {
        versions.push_back(version);
      }
    }
    for (const int64_t version : versions) {
      sources[version].version = version;
      sources[version].stored = true;
    }
  }
  Sources list;
  for (auto& [version, source] : sources) {
    list.push_back(std::move(source));
  }
  return list;
}

std::string Publisher::WhyHidden(const std::string& model, const Source& source,
                                 const Sources& sources) const {
  const absl::StatusOr<VersionOrigin> origin = ReadOrigin(model, source.version);
  return absl::StrCat(!origin.ok() ? "a trainer published"
                      : origin->trainer.empty()
                          ? "a client uploaded"
                          : absl::StrCat("trainer '", origin->trainer, "' published"),
                      " version ", source.version, ". To serve this folder, rename it to ",
                      NextNumber(model, sources), " and reload the model");
}

absl::StatusOr<VersionOrigin> Publisher::ReadOrigin(const std::string& model,
                                                    int64_t version) const {
  const auto unwritten = writer_->List(model);
  const auto found = unwritten.find(version);
  return found == unwritten.end() ? store_->ReadOrigin(model, version) : found->second.origin;
}

absl::StatusOr<LoadedVersion> Publisher::Load(const std::string& model, const Source& source,
                                              const std::optional<ModelConfig>& declared) const {
  std::string path = source.path;
  std::map<std::string, std::string> origin;
  if (source.stored) {
    writer_->Wait(model, source.version);
    BRAID_ASSIGN_OR_RETURN(const StoredVersion stored, store_->Read(model, source.version));
    path = stored.model_path;
    origin = Describe(stored.origin);
  } else if (check_file_ != nullptr) {
    for (const std::string& file : ModelFiles(path)) {
      BRAID_RETURN_IF_ERROR(check_file_(file));
    }
  }
  BRAID_ASSIGN_OR_RETURN(
      LoadedVersion loaded,
      LoadVersion({path, absl::StrCat(repository_, "/", model), model, source.version}, declared,
                  models_->workers(), OnRowDependence::kRunAlone, models_->row_tests()));
  if (origin.contains("trainer")) {
    loaded.config.durability =
        std::make_shared<const std::atomic<Durability>>(Durability::kDurable);
  }
  loaded.origin = std::move(origin);
  return loaded;
}

Publisher::Plan Publisher::MakePlan(const Sources& sources, const VersionPolicy& policy,
                                    const VersionChoices& choices, int64_t newest,
                                    const std::vector<int64_t>& loaded) {
  Plan plan;
  for (const int64_t version : loaded) {
    const Source* source = Find(sources, version);
    // A folder of the repository that a version of the data directory hides must not be served.
    if (source != nullptr && (source->path.empty() || !source->stored)) {
      plan.loaded.insert(version);
    }
  }
  plan.current = choices.pinned == 0 ? newest : choices.pinned;
  plan.wanted.push_back(plan.current);
  for (auto source = sources.rbegin(); source != sources.rend(); ++source) {
    if (!Selects(policy, source->version)) {
      continue;
    }
    if (source->version < plan.current && std::ssize(plan.wanted) < CountOf(policy)) {
      plan.wanted.push_back(source->version);
    }
  }
  for (const auto& [label, version] : choices.labels) {
    plan.wanted.push_back(version);
  }
  return plan;
}

absl::Status Publisher::ServePlanned(const std::string& model, const Source& source,
                                     const Routing& routing, Plan* plan) {
  if (!plan->loaded.insert(source.version).second && models_->Find(model, source.version).ok()) {
    return models_->SetRouting(model, routing);
  }
  BRAID_ASSIGN_OR_RETURN(const auto config, models_->FindConfig(model));
  BRAID_ASSIGN_OR_RETURN(LoadedVersion loaded, Load(model, source, DeclaredConfig(*config)));
  return models_->ServeVersion(std::move(loaded), config, routing);
}

absl::StatusOr<std::shared_ptr<BatchQueue>> Publisher::FindOrLoad(const std::string& model,
                                                                  int64_t version) {
  // The caller keeps the queue and its configuration.
  WaitForRowTest(model, version);
  absl::StatusOr<std::shared_ptr<BatchQueue>> served = models_->FindReplicas(model, version);
  const absl::StatusOr<std::shared_ptr<const ModelConfig>> config = models_->FindConfig(model);
  if (served.ok() || version == 0 || !config.ok()) {
    return served;
  }
  BRAID_ASSIGN_OR_RETURN(const Sources sources, FindSources(model));
  const Source* source = Find(sources, version);
  if (source == nullptr) {
    return served;
  }
  BRAID_ASSIGN_OR_RETURN(LoadedVersion loaded, Load(model, *source, DeclaredConfig(**config)));
  return models_->MakeQueue(std::move(loaded));
}

absl::StatusOr<ModelConfig> Publisher::FindConfig(const std::string& model, int64_t version) const {
  const absl::StatusOr<std::shared_ptr<BatchQueue>> served = models_->FindReplicas(model, version);
  if (served.ok()) {
    return (*served)->config();
  }
  BRAID_ASSIGN_OR_RETURN(const std::shared_ptr<BatchQueue> current,
                         models_->FindReplicas(model, 0));
  BRAID_ASSIGN_OR_RETURN(const Sources sources, FindSources(model));
  return Find(sources, version) == nullptr ? absl::StatusOr<ModelConfig>(served.status())
                                           : current->config();
}

absl::StatusOr<LoadedVersion> Publisher::LoadStored(const std::string& model,
                                                    const std::optional<ModelConfig>& config) {
  const absl::MutexLock lock(&mu_);
  BRAID_ASSIGN_OR_RETURN(const Sources sources, FindSources(model));
  const VersionChoices choices = ReadChoices(model, sources);
  std::vector<int64_t> candidates = {choices.pinned};
  for (auto source = sources.rbegin(); source != sources.rend(); ++source) {
    if (Selects(config ? config->version_policy : VersionPolicy(), source->version)) {
      candidates.push_back(source->version);
    }
  }
  for (const auto& [label, version] : choices.labels) {
    candidates.push_back(version);
  }
  absl::Status failure = absl::NotFoundError("no version in the data directory");
  for (const int64_t version : candidates) {
    const Source* source = Find(sources, version);
    if (source == nullptr || !source->stored) {
      continue;
    }
    absl::StatusOr<LoadedVersion> loaded = Load(model, *source, config);
    if (loaded.ok()) {
      return loaded;
    }
    failure = loaded.status();
    Log(LogModule::kModels)
        .error("model '{}': version {} is not served: {}", model, version,
               std::string(failure.message()));
  }
  return failure;
}

absl::Status Publisher::ServeStoredModel(const std::string& model,
                                         const std::vector<int64_t>& loaded) {
  BRAID_ASSIGN_OR_RETURN(const Sources sources, FindSources(model));
  BRAID_ASSIGN_OR_RETURN(const auto config, models_->FindConfig(model));
  BRAID_ASSIGN_OR_RETURN(const int64_t newest, Newest(model, sources));
  BRAID_RETURN_IF_ERROR(models_->ReserveVersion(model, NextNumber(model, sources) - 1));
  WarnHidden(model, sources);
  const VersionChoices stored = ReadChoices(model, sources);
  const VersionChoices choices = InForce(model, sources, stored);
  if (choices.pinned != stored.pinned) {
    Log(LogModule::kModels)
        .error("model '{}': pinned version {} does not exist, serving version {}", model,
               stored.pinned, newest);
  }
  Plan plan = MakePlan(sources, config->version_policy, choices, newest, loaded);
  for (const int64_t version : plan.wanted) {
    const Source* source = Find(sources, version);
    if (source == nullptr) {
      continue;  // deleted from the repository, or published without a data directory
    }
    BRAID_ASSIGN_OR_RETURN(const auto served, models_->FindReplicas(model, 0));
    const bool is_current = version == plan.current;
    const Routing routing = RoutingOf(choices, is_current ? version : served->version());
    if (const absl::Status status = ServePlanned(model, *source, routing, &plan); !status.ok()) {
      models_->MarkFailed(model, version, status);
      Log(LogModule::kModels)
          .error("model '{}': version {} is not served: {}", model, version,
                 std::string(status.message()));
    } else if (is_current && (choices.pinned != 0 || source->stored)) {
      Log(LogModule::kModels)
          .info("model '{}' serves version {}, {}", model, version,
                choices.pinned != 0 ? "pinned" : "from the data directory");
    }
  }
  return absl::OkStatus();
}

void Publisher::WarnHidden(const std::string& model, const Sources& sources) const {
  for (const Source& source : sources) {
    if (source.stored && !source.path.empty()) {
      Log(LogModule::kModels)
          .warn("model '{}': '{}' is not served: {}", model, source.path,
                WhyHidden(model, source, sources));
    }
  }
}

void Publisher::ServeStored(const std::string& model, const std::vector<int64_t>& loaded) {
  const absl::MutexLock lock(&mu_);
  if (const absl::Status status = ServeStoredModel(model, loaded); !status.ok()) {
    Log(LogModule::kModels)
        .error("model '{}' serves only versions of the repository: {}", model,
               std::string(status.message()));
  }
}

absl::StatusOr<int64_t> Publisher::FindPublished(const std::string& model,
                                                 const VersionOrigin& origin,
                                                 const Sources& sources,
                                                 const VersionChoices& choices) const {
  const auto is_same = [&origin](const auto& other) {
    return other.trainer_id == origin.trainer_id && other.last_operator == origin.last_operator &&
           other.sequence == origin.sequence && other.history == origin.history;
  };
  for (const Source& source : sources) {
    if (!source.stored) {
      continue;
    }
    const absl::StatusOr<VersionOrigin> stored = ReadOrigin(model, source.version);
    if (stored.ok() && !stored->trainer.empty() && is_same(*stored)) {
      return source.version;
    }
  }
  const auto reserved = std::find_if(choices.reserved.begin(), choices.reserved.end(), is_same);
  return reserved == choices.reserved.end() ? 0 : reserved->version;
}

absl::Status Publisher::ReserveFor(const VersionOrigin& origin, const std::string& model,
                                   int64_t version, const Sources& sources) {
  VersionChoices choices = choices_->Read(model);
  choices.used = std::max(choices.used, version);
  // A stored version has its origin in its folder.
  std::erase_if(choices.reserved, [&](const ReservedVersion& reserved) {
    const Source* source = Find(sources, reserved.version);
    return source != nullptr && source->stored && !writer_->Find(model, reserved.version);
  });
  choices.reserved.push_back(
      {version, origin.trainer_id, origin.last_operator, origin.sequence, origin.history});
  if (choices.reserved.size() > kMaxReserved) {
    choices.reserved.erase(choices.reserved.begin());
  }
  return choices_->Write(model, choices);
}

absl::StatusOr<int64_t> Publisher::Publish(const ModelConfig& config, ReplicaSet replicas,
                                           const VersionOrigin& origin, std::vector<NewFile> files,
                                           bool must_write) {
  const std::string& model = config.name;
  if (writer_ != nullptr) {
    writer_->WaitForRoom();
  }
  // A trainer that publishes faster than versions are tested would never have its requests merged.
  WaitForRowTest(model, 0);
  const absl::MutexLock lock(&mu_);
  BRAID_ASSIGN_OR_RETURN(const auto current, models_->FindConfig(model));
  BRAID_ASSIGN_OR_RETURN(ModelConfig reconfigured, ApplyCurrentConfig(config, *current));
  BRAID_ASSIGN_OR_RETURN(const Sources sources, FindSources(model));
  VersionChoices choices = ReadChoices(model, sources);
  BRAID_ASSIGN_OR_RETURN(int64_t version, FindPublished(model, origin, sources, choices));
  const bool retried = version != 0;
  if (retried && writer_ != nullptr && models_->Find(model, version).ok() &&
      DurabilityOf(model, version).durability == Durability::kPending) {
    return version;
  }
  if (retried && (version < std::max(NewestStored(sources), NewestFailed(model)) ||
                  InForce(model, sources, choices).pinned != 0)) {
    return version;  // A retry, after another version has been chosen.
  }
  if (!retried) {
    BRAID_ASSIGN_OR_RETURN(version, TakeNumber(model, sources));
    if (store_ != nullptr) {
      BRAID_RETURN_IF_ERROR(ReserveFor(origin, model, version, sources));
    }
  }
  if (choices.pinned != 0) {
    Log(LogModule::kModels)
        .info("model '{}': publishing version {} ends the pin of version {}", model, version,
              choices.pinned);
  }
  EndPin(&choices);
  if (store_ == nullptr) {
    BRAID_RETURN_IF_ERROR(choices_->Write(model, choices));
  }
  const DurabilityState state = WaitForDurability(model, version);
  const bool writes = store_ != nullptr && state.durability != Durability::kDurable;
  const auto durability =
      std::make_shared<std::atomic<Durability>>(writes ? Durability::kPending : state.durability);
  reconfigured.durability = durability;
  BRAID_RETURN_IF_ERROR(
      Serve({std::move(reconfigured), version, std::move(replicas), Describe(origin)}, current,
            RoutingOf(choices, version)));
  if (writes) {
    writer_->Supersede(model, version,
                       [&](int64_t older) { return models_->Find(model, older).ok(); });
    writer_->Add({model, version, origin, std::move(files), must_write, durability});
  }
  return version;
}

absl::Status Publisher::Serve(LoadedVersion published,
                              const std::shared_ptr<const ModelConfig>& current, Routing routing) {
  if (!NeedsRowTest(published.config)) {
    return models_->ServeVersion(std::move(published), current, std::move(routing));
  }
  published.config.rows_untested = true;
  std::shared_ptr<BatchQueue> queue = models_->MakeQueue(std::move(published));
  const std::shared_ptr<BatchQueue> untested = queue;
  const auto test = std::make_shared<RowTestRun>();
  row_tests_.Post([models = models_, version = std::weak_ptr<BatchQueue>(untested), test] {
    if (const std::shared_ptr<BatchQueue> tested = version.lock(); tested != nullptr) {
      test->Run(*tested);
      Settle(models, tested, *test);
    }
  });
  // Ordered replies need one queue, so such a model waits for its test.
  const bool ordered = untested->config().preserve_ordering;
  if (test->done.WaitForNotificationWithTimeout(ordered ? absl::InfiniteDuration()
                                                        : kRowTestPatience)) {
    BRAID_RETURN_IF_ERROR(test->status);
    queue = models_->MakeQueue(test->config, *untested);
  }
  BRAID_RETURN_IF_ERROR(models_->ServeQueue(queue, current, std::move(routing)));
  if (test->done.HasBeenNotified()) {
    Settle(models_, untested, *test);  // The thread may have tried before the version was served.
  }
  return absl::OkStatus();
}

void Publisher::RowTestRun::Run(const BatchQueue& version) {
  const absl::StatusOr<ModelConfig> settled =
      SettlePublished(version.config(), version.version(), version.replicas());
  status = settled.status();
  config = settled.ok() ? *settled : version.config();
  if (!settled.ok()) {
    config.rows_untested = false;
    config.row_independence = RowIndependence::kDependent;
    config.row_independence_reason =
        absl::StrCat("the test of its rows failed: ", status.message());
  }
  done.Notify();
}

void Publisher::Settle(ServedModels* models, const std::shared_ptr<BatchQueue>& untested,
                       const RowTestRun& test) {
  if (models->Reconfigure(untested, test.config) && !test.status.ok()) {
    Log(LogModule::kModels)
        .error("model '{}' version {}: {}; requests are neither merged nor split", test.config.name,
               untested->version(), test.config.row_independence_reason);
  }
}

void Publisher::WaitForRowTest(const std::string& model, int64_t version) {
  while (true) {
    const absl::StatusOr<std::shared_ptr<BatchQueue>> served =
        models_->FindReplicas(model, version);
    if (!served.ok() || !(*served)->config().rows_untested) {
      return;
    }
    absl::Notification done;
    row_tests_.Post([&done] { done.Notify(); });
    done.WaitForNotification();
  }
}

DurabilityState Publisher::DurabilityOf(const std::string& model, int64_t version) const {
  if (writer_ == nullptr) {
    return {Durability::kNone, ""};
  }
  if (const std::optional<DurabilityState> state = writer_->Find(model, version)) {
    return *state;
  }
  return store_->ReadOrigin(model, version).ok()
             ? DurabilityState{Durability::kDurable, ""}
             : DurabilityState{Durability::kSuperseded,
                               "it was replaced before it was written, or deleted"};
}

bool Publisher::WasLost(const std::string& model, int64_t version) {
  const absl::MutexLock lock(&mu_);
  if (writer_ == nullptr || DurabilityOf(model, version).durability != Durability::kSuperseded) {
    return false;
  }
  return std::ranges::count(choices_->Read(model).reserved, version, &ReservedVersion::version) > 0;
}

DurabilityState Publisher::WaitForDurability(const std::string& model, int64_t version) const {
  if (writer_ != nullptr) {
    writer_->Wait(model, version);
  }
  return DurabilityOf(model, version);
}

void Publisher::WaitForTrainer(const std::string& trainer_id, int64_t sequence) const {
  if (writer_ != nullptr) {
    writer_->WaitForTrainer(trainer_id, sequence);
  }
}

void Publisher::Flush() const {
  if (writer_ != nullptr) {
    writer_->Flush();
  }
}

absl::Status Publisher::Apply(const std::string& model, int64_t version, int64_t current,
                              const Sources& sources, const VersionChoices& choices) {
  const Routing routing = RoutingOf(InForce(model, sources, choices), current);
  if (models_->Find(model, version).ok()) {
    BRAID_RETURN_IF_ERROR(choices_->Write(model, choices));
    return models_->SetRouting(model, routing);
  }
  BRAID_ASSIGN_OR_RETURN(const auto config, models_->FindConfig(model));
  const Source* source = Find(sources, version);
  if (source == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("model '", model, "' has no version ", version, "; there are ",
                     absl::StrJoin(sources, ", ", [](std::string* out, const Source& each) {
                       absl::StrAppend(out, each.version);
                     })));
  }
  BRAID_ASSIGN_OR_RETURN(LoadedVersion loaded, Load(model, *source, DeclaredConfig(*config)));
  BRAID_RETURN_IF_ERROR(choices_->Write(model, choices));
  return models_->ServeVersion(std::move(loaded), config, routing);
}

absl::StatusOr<VersionChange> Publisher::PinVersion(const std::string& model, int64_t version,
                                                    bool pin_newest) {
  BRAID_ASSIGN_OR_RETURN(const std::shared_ptr<BatchQueue> served, models_->FindReplicas(model, 0));
  const int64_t before = served->version();
  BRAID_ASSIGN_OR_RETURN(const Sources sources, FindSources(model));
  BRAID_ASSIGN_OR_RETURN(const int64_t newest, Newest(model, sources));
  VersionChoices choices = ReadChoices(model, sources);
  choices.pinned = version;
  choices.newest = std::max(NewestStored(sources), NewestFailed(model));
  if (version == newest && !pin_newest) {
    EndPin(&choices);
  }
  BRAID_RETURN_IF_ERROR(Apply(model, version, version, sources, choices));
  return VersionChange{before, choices.pinned != 0};
}

absl::StatusOr<VersionChange> Publisher::Rollback(const std::string& model, int64_t version) {
  const absl::MutexLock lock(&mu_);
  return PinVersion(model, version, /*pin_newest=*/false);
}

absl::StatusOr<VersionChange> Publisher::Pin(const std::string& model, int64_t version) {
  const absl::MutexLock lock(&mu_);
  return PinVersion(model, version, /*pin_newest=*/true);
}

absl::StatusOr<int64_t> Publisher::Unpin(const std::string& model) {
  const absl::MutexLock lock(&mu_);
  BRAID_ASSIGN_OR_RETURN(const std::shared_ptr<BatchQueue> served, models_->FindReplicas(model, 0));
  BRAID_ASSIGN_OR_RETURN(const Sources sources, FindSources(model));
  VersionChoices choices = ReadChoices(model, sources);
  if (choices.pinned == 0) {
    return served->version();
  }
  EndPin(&choices);
  BRAID_ASSIGN_OR_RETURN(const int64_t newest, Newest(model, sources));
  BRAID_RETURN_IF_ERROR(Apply(model, newest, newest, sources, choices));
  return newest;
}

absl::StatusOr<int64_t> Publisher::SetLabel(const std::string& model, const std::string& label,
                                            int64_t version) {
  if (!IsVersionLabel(label)) {
    return InvalidField("label",
                        absl::StrCat("invalid label '", absl::Utf8SafeCHexEscape(Excerpt(label)),
                                     "' (expected 1 to 128 letters, digits, '_', '-' and '.', with "
                                     "at least one letter)"));
  }
  const absl::MutexLock lock(&mu_);
  BRAID_ASSIGN_OR_RETURN(const std::shared_ptr<BatchQueue> served, models_->FindReplicas(model, 0));
  BRAID_ASSIGN_OR_RETURN(const Sources sources, FindSources(model));
  VersionChoices choices = ReadChoices(model, sources);
  const auto found = choices.labels.find(label);
  const int64_t before = found == choices.labels.end() ? 0 : found->second;
  const int64_t current = served->version();
  if (version != 0) {
    choices.labels[label] = version;
    BRAID_RETURN_IF_ERROR(Apply(model, version, current, sources, choices));
    return before;
  }
  if (before == 0) {
    return absl::NotFoundError(absl::StrCat("model '", model, "' has no label '", label, "'"));
  }
  choices.labels.erase(found);
  BRAID_RETURN_IF_ERROR(Apply(model, current, current, sources, choices));
  return before;
}

absl::Status Publisher::Delete(const std::string& model, int64_t version) {
  const absl::MutexLock lock(&mu_);
  BRAID_ASSIGN_OR_RETURN(const std::vector<VersionInfo> versions, ListVersions(model));
  const auto found = std::find_if(versions.begin(), versions.end(), [&](const VersionInfo& each) {
    return each.version == version && each.state != VersionInfo::State::kIgnored;
  });
  const std::string name = absl::StrCat("version ", version, " of model '", model, "'");
  if (found == versions.end()) {
    return absl::NotFoundError(absl::StrCat(name, " does not exist"));
  }
  if (found->pinned) {
    return absl::FailedPreconditionError(absl::StrCat(name, " is pinned (unpin it first)"));
  }
  if (!found->labels.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(name, " has the label '",
                                                      absl::StrJoin(found->labels, "', '"),
                                                      "' (remove or move the label first)"));
  }
  if (found->serving) {
    return absl::FailedPreconditionError(
        absl::StrCat(name, " is being served (pin or publish another version first)"));
  }
  if (found->origin == VersionInfo::Origin::kExported) {
    return absl::FailedPreconditionError(
        absl::StrCat(name, " is in the model repository (delete its folder there)"));
  }
  BRAID_ASSIGN_OR_RETURN(const Sources sources, FindSources(model));
  VersionChoices choices = choices_->Read(model);
  choices.used = NextNumber(model, sources) - 1;
  std::erase_if(choices.reserved,
                [&](const ReservedVersion& reserved) { return reserved.version == version; });
  BRAID_RETURN_IF_ERROR(choices_->Write(model, choices));
  models_->RemoveVersion(model, version);
  if (store_ == nullptr) {
    return absl::OkStatus();
  }
  writer_->Wait(model, version);
  return writer_->Forget(model, version) ? absl::OkStatus() : store_->Remove(model, version);
}

absl::StatusOr<std::unique_ptr<VersionUpload>> Publisher::StartUpload(
    const std::string& model) const {
  BRAID_RETURN_IF_ERROR(models_->FindConfig(model).status());
  if (store_ == nullptr) {
    return absl::FailedPreconditionError("uploads need the server flag --data_dir");
  }
  return store_->NewUpload();
}

absl::StatusOr<UploadedVersion> Publisher::Upload(const std::string& model, VersionUpload* upload) {
  BRAID_ASSIGN_OR_RETURN(std::vector<NewFile> files, upload->Finish());
  const absl::MutexLock lock(&mu_);
  BRAID_ASSIGN_OR_RETURN(const auto config, models_->FindConfig(model));
  BRAID_ASSIGN_OR_RETURN(const Sources sources, FindSources(model));
  BRAID_ASSIGN_OR_RETURN(const int64_t version, TakeNumber(model, sources));
  VersionChoices choices = ReadChoices(model, sources);
  // Before the version is written, which would end the pin otherwise.
  choices.used = version;
  choices.newest = choices.pinned == 0 ? 0 : version;
  BRAID_RETURN_IF_ERROR(choices_->Write(model, choices));
  BRAID_RETURN_IF_ERROR(models_->ReserveVersion(model, version));
  VersionOrigin origin;
  origin.created = absl::Now();
  BRAID_RETURN_IF_ERROR(store_->Write(model, version, origin, std::move(files)));
  absl::StatusOr<LoadedVersion> loaded =
      Load(model, {version, /*path=*/"", /*stored=*/true}, DeclaredConfig(*config));
  absl::Status status = loaded.status();
  const VersionChoices in_force = InForce(model, sources, choices);
  const bool serving = in_force.pinned == 0;
  if (status.ok() && serving) {
    status = models_->ServeVersion(*std::move(loaded), config, RoutingOf(in_force, version));
  }
  if (!status.ok()) {
    if (const absl::Status removed = store_->Remove(model, version); !removed.ok()) {
      Log(LogModule::kModels)
          .error("model '{}': rejected upload {} cannot be removed: {}", model, version,
                 std::string(removed.message()));
    }
    return status;
  }
  Log(LogModule::kModels)
      .info("model '{}': version {} uploaded{}", model, version,
            serving ? "" : absl::StrCat("; version ", choices.pinned, " is pinned"));
  return UploadedVersion{version, serving};
}

absl::StatusOr<int64_t> Publisher::Reserve(const std::string& model) {
  if (!IsFolderName(model)) {
    return InvalidField(
        "model", absl::StrCat("invalid model name '", absl::Utf8SafeCHexEscape(Excerpt(model)),
                              "' (expected 1 to 255 bytes without '/', not "
                              "starting with '.')"));
  }
  const absl::MutexLock lock(&mu_);
  BRAID_ASSIGN_OR_RETURN(const Sources sources, FindSources(model));
  const int64_t version = NextNumber(model, sources);
  VersionChoices choices = choices_->Read(model);
  choices.used = version;
  BRAID_RETURN_IF_ERROR(choices_->Write(model, choices));
  // A model that is not served learns the number when it is loaded.
  models_->ReserveVersion(model, version).IgnoreError();
  return version;
}

VersionInfo Publisher::InfoOf(const std::string& model, const Source& source) const {
  VersionInfo info;
  info.version = source.version;
  if (!source.stored) {
    info.created = ModifiedTime(source.path);
    return info;
  }
  info.origin = VersionInfo::Origin::kPublished;
  const absl::StatusOr<VersionOrigin> origin = ReadOrigin(model, source.version);
  if (!origin.ok()) {
    info.state = VersionInfo::State::kUnavailable;
    info.reason = std::string(origin.status().message());
    return info;
  }
  info.origin =
      origin->trainer.empty() ? VersionInfo::Origin::kUploaded : VersionInfo::Origin::kPublished;
  info.trainer = origin->trainer;
  info.step = origin->step;
  info.created = origin->created;
  if (!origin->trainer.empty()) {
    info.durability = DurabilityOf(model, source.version);
  }
  return info;
}

VersionInfo Publisher::InfoOf(int64_t version, const VersionWriter::Unwritten& unwritten) {
  VersionInfo info;
  info.version = version;
  info.origin = VersionInfo::Origin::kPublished;
  info.trainer = unwritten.origin.trainer;
  info.step = unwritten.origin.step;
  info.created = unwritten.origin.created;
  info.state = VersionInfo::State::kUnavailable;
  info.reason = unwritten.state.reason;
  info.durability = unwritten.state;
  return info;
}

void Publisher::AddState(const ModelState& state, const Sources& sources, VersionInfo* info) const {
  info->version = state.version;
  info->reason = state.reason;
  if (!state.ready) {
    info->state = VersionInfo::State::kUnavailable;
    return;
  }
  const auto queue = models_->FindReplicas(state.name, state.version);
  if (!queue.ok()) {
    return;
  }
  info->state = VersionInfo::State::kReady;
  const std::map<std::string, std::string>& origin = (*queue)->config().origin;
  if (const auto trainer = origin.find("trainer");
      trainer != origin.end() && Find(sources, state.version) == nullptr) {
    // Published without a data directory, or not written.
    info->origin = VersionInfo::Origin::kPublished;
    info->trainer = trainer->second;
    std::ignore = absl::SimpleAtoi(origin.at("step"), &info->step);
    info->durability = DurabilityOf(state.name, state.version);
  }
}

absl::StatusOr<std::vector<VersionInfo>> Publisher::ListVersions(const std::string& model) const {
  BRAID_ASSIGN_OR_RETURN(const Sources sources, FindSources(model));
  const std::vector<ModelState> states = models_->States(model);
  if (sources.empty() && states.empty()) {
    BRAID_RETURN_IF_ERROR(models_->FindConfig(model).status());
  }
  const VersionChoices choices = ReadChoices(model, sources);
  std::map<int64_t, VersionInfo> infos;
  for (const Source& source : sources) {
    infos[source.version] = InfoOf(model, source);
  }
  if (writer_ != nullptr) {
    for (const auto& [version, unwritten] : writer_->List(model)) {
      if (!unwritten.is_pending()) {
        infos[version] = InfoOf(version, unwritten);
      }
    }
  }
  for (const ModelState& state : states) {
    if (state.version != 0) {
      AddState(state, sources, &infos[state.version]);
    }
  }
  if (const auto current = models_->FindReplicas(model, 0); current.ok()) {
    if (const auto serving = infos.find((*current)->version()); serving != infos.end()) {
      serving->second.serving = true;
    }
  }
  // Also lists a chosen version whose files are gone.
  const auto chosen = [&infos](int64_t version) -> VersionInfo& {
    const auto [found, added] = infos.try_emplace(version);
    if (added) {
      found->second.version = version;
      found->second.origin = VersionInfo::Origin::kUnknown;
      found->second.state = VersionInfo::State::kUnavailable;
      found->second.reason = "its folder does not exist";
    }
    return found->second;
  };
  if (choices.pinned != 0) {
    chosen(choices.pinned).pinned = true;
  }
  for (const auto& [label, version] : choices.labels) {
    chosen(version).labels.push_back(label);
  }
  std::vector<VersionInfo> list;
  for (auto& [version, info] : infos) {
    list.push_back(std::move(info));
    const Source* source = Find(sources, version);
    if (source != nullptr && source->stored && !source->path.empty()) {
      VersionInfo& ignored = list.emplace_back();
      ignored.version = version;
      ignored.state = VersionInfo::State::kIgnored;
      ignored.reason = WhyHidden(model, *source, sources);
      ignored.created = ModifiedTime(source->path);
    }
  }
  return list;
}

absl::StatusOr<std::vector<std::string>> Publisher::ListModels() const {
  std::set<std::string> names;
  for (const ModelState& state : models_->List()) {
    names.insert(state.name);
  }
  if (store_ != nullptr) {
    BRAID_ASSIGN_OR_RETURN(const std::vector<std::string> stored, store_->Models());
    names.insert(stored.begin(), stored.end());
  }
  return std::vector<std::string>(names.begin(), names.end());
}

}  // namespace braid
