#include "server/storage/checkpoint_store.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/base/abbreviate_names.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/storage/files.h"
#include "server/storage/names.h"
#include "server/storage/staging.h"
#include "server/telemetry/log.h"

namespace braid {
namespace {

constexpr char kKind[] = "checkpoint";
constexpr char kStep[] = "step";
constexpr char kSequence[] = "sequence";
constexpr char kSerial[] = "serial";
// Line of the checkpoint, and line of the checkpoints after it.
constexpr char kLine[] = "line";
constexpr char kNextLine[] = "next_line";
constexpr char kAutomatic[] = "automatic";

std::string NameOf(int64_t step, int64_t sequence, int64_t line) {
  const std::string name = absl::StrCat("step-", absl::Dec(step, absl::kZeroPad9), "-sequence-",
                                        absl::Dec(sequence, absl::kZeroPad9));
  return line == 0 ? name : absl::StrCat(name, "-line-", line);
}

// Returns `fallback` if the manifest lacks the number: older servers wrote no lines.
int64_t NumberOr(const Manifest& manifest, const char* key, int64_t fallback) {
  const auto found = manifest.numbers.find(key);
  return found != manifest.numbers.end() ? found->second : fallback;
}

CheckpointInfo InfoOf(const Manifest& manifest) {
  CheckpointInfo info;
  info.step = manifest.numbers.at(kStep);
  info.sequence = manifest.numbers.at(kSequence);
  info.name = NameOf(info.step, info.sequence, NumberOr(manifest, kLine, 0));
  info.created = manifest.created;
  info.line = NumberOr(manifest, kNextLine, manifest.numbers.at(kSerial));
  info.automatic = NumberOr(manifest, kAutomatic, 0) != 0;
  for (const auto& [name, file] : manifest.files) {
    info.bytes += file.bytes;
  }
  return info;
}

// Reads the manifest at `path` and checks that it belongs to the checkpoint `name`.
absl::StatusOr<Manifest> ReadManifestOf(const std::string& path, absl::string_view name) {
  BRAID_ASSIGN_OR_RETURN(Manifest manifest, ReadManifest(path, kKind));
  const std::map<std::string, int64_t>& numbers = manifest.numbers;
  if (!numbers.contains(kStep) || !numbers.contains(kSequence) || !numbers.contains(kSerial) ||
      InfoOf(manifest).name != name) {
    return absl::DataLossError(
        absl::StrCat("'", path, "': manifest belongs to another checkpoint"));
  }
  return manifest;
}

bool IsDamage(const absl::Status& status) { return absl::IsDataLoss(status); }

template <typename Listed>
auto FindNamed(const std::vector<Listed>& listed, absl::string_view name) {
  return std::find_if(listed.begin(), listed.end(),
                      [name](const Listed& one) { return one.name == name; });
}

// Returns those of `infos` that CheckpointRetention::history does not keep. `infos`: the oldest
// first.
std::vector<CheckpointInfo> NotInHistory(std::vector<CheckpointInfo> infos,
                                         const JournalPosition& start) {
  std::vector<CheckpointInfo> removed;
  std::vector<CheckpointInfo> kept;
  for (CheckpointInfo& info : infos) {
    const JournalPosition next{info.line, info.sequence + 1};
    (next < start ? removed : kept).push_back(std::move(info));
  }
  std::ranges::stable_sort(kept, {}, &CheckpointInfo::created);  // a restored one is last
  // Removes the one whose neighbours are closest in time.
  while (kept.size() > kHistoryCheckpoints) {
    size_t least = 1;
    const auto gap = [&kept](size_t i) { return kept[i + 1].created - kept[i - 1].created; };
    for (size_t i = 2; i + 1 < kept.size(); ++i) {
      least = gap(i) < gap(least) ? i : least;
    }
    removed.push_back(kept[least]);
    kept.erase(kept.begin() + static_cast<std::ptrdiff_t>(least));
  }
  return removed;
}

}  // namespace

absl::StatusOr<std::unique_ptr<CheckpointStore>> CheckpointStore::Open(std::string directory,
                                                                       SharedFiles* shared) {
  BRAID_RETURN_IF_ERROR(MakeDirectories(directory));
  BRAID_RETURN_IF_ERROR(RemoveLeftovers(directory));
  std::unique_ptr<CheckpointStore> store(new CheckpointStore(std::move(directory), shared));
  BRAID_RETURN_IF_ERROR(store->Scan());
  return store;
}

CheckpointStore::CheckpointStore(std::string directory, SharedFiles* shared)
    : directory_(std::move(directory)), shared_(shared) {}

absl::Status CheckpointStore::Share(const std::vector<NewFile>& files) {
  std::vector<NamedSharedFile> shared;
  for (const NewFile& file : files) {
    BRAID_ASSIGN_OR_RETURN(std::shared_ptr<const SharedFile> added, shared_->Add(file));
    shared.push_back({file.name, std::move(added)});
  }
  shared_files_ = std::move(shared);
  return absl::OkStatus();
}

absl::Status CheckpointStore::Scan() {
  BRAID_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListDirectories(directory_));
  struct Found {
    int64_t serial = 0;
    CheckpointInfo info;
  };
  std::vector<Found> found;
  for (const std::string& name : names) {
    if (!IsPlainName(name)) {
      continue;
    }
    const absl::StatusOr<Manifest> manifest = ReadManifestOf(PathOf(name), name);
    if (!manifest.ok()) {
      SetAside(name, manifest.status());
      continue;
    }
    const int64_t serial = manifest->numbers.at(kSerial);
    found.push_back({serial, InfoOf(*manifest)});
    next_serial_ = std::max(next_serial_, serial + 1);
  }
  std::sort(found.begin(), found.end(),
            [](const Found& a, const Found& b) { return a.serial < b.serial; });
  for (Found& one : found) {
    line_ = one.info.line;
    PutLast(std::move(one.info));
  }
  return absl::OkStatus();
}

absl::StatusOr<CheckpointInfo> CheckpointStore::Write(int64_t step, int64_t sequence,
                                                      std::string state,
                                                      const std::vector<NewFile>& files,
                                                      bool automatic) {
  return WriteOnLine(line_, step, sequence, std::move(state), files, automatic);
}

absl::StatusOr<CheckpointInfo> CheckpointStore::WriteRestored(int64_t step, int64_t sequence,
                                                              std::string state,
                                                              const std::vector<NewFile>& files) {
  const int64_t line = next_serial_;
  BRAID_ASSIGN_OR_RETURN(CheckpointInfo info, WriteOnLine(line, step, sequence, std::move(state),
                                                          files, /*automatic=*/false));
  line_ = line;
  return info;
}

absl::StatusOr<CheckpointInfo> CheckpointStore::WriteOnLine(int64_t line, int64_t step,
                                                            int64_t sequence, std::string state,
                                                            const std::vector<NewFile>& files,
                                                            bool automatic) {
  Manifest manifest;
  manifest.kind = kKind;
  manifest.created = absl::Now();
  manifest.numbers = {{kStep, step},
                      {kSequence, sequence},
                      {kSerial, next_serial_},
                      {kLine, line},
                      {kNextLine, line}};
  if (automatic) {
    manifest.numbers[kAutomatic] = 1;
  }
  manifest.state = std::move(state);
  BRAID_ASSIGN_OR_RETURN(manifest, WriteSealedDirectory(directory_, NameOf(step, sequence, line),
                                                        std::move(manifest), files, shared_files_));
  ++next_serial_;
  CheckpointInfo info = InfoOf(manifest);
  PutLast(info);
  return info;
}

void CheckpointStore::SkipLines(int64_t last) { next_serial_ = std::max(next_serial_, last + 1); }

absl::Status CheckpointStore::CopyTo(absl::string_view name, const std::string& directory) const {
  BRAID_ASSIGN_OR_RETURN(const std::string known, Find(name));
  const std::string path = PathOf(known);
  BRAID_ASSIGN_OR_RETURN(Manifest manifest, ReadManifestOf(path, known));
  manifest.numbers.erase(kAutomatic);
  std::vector<NamedSharedFile> files;
  for (const auto& [file, stored] : manifest.files) {
    files.push_back(
        {file, std::make_shared<const SharedFile>(absl::StrCat(path, "/", file), stored)});
  }
  BRAID_RETURN_IF_ERROR(MakeDirectories(directory));
  return WriteSealedDirectory(directory, known, std::move(manifest), {}, files).status();
}

absl::StatusOr<LoadedCheckpoint> CheckpointStore::Read(absl::string_view name) {
  BRAID_ASSIGN_OR_RETURN(const std::string known, Find(name));
  absl::StatusOr<LoadedCheckpoint> loaded = Load(known);
  if (IsDamage(loaded.status())) {
    SetAside(known, loaded.status());
  }
  return loaded;
}

absl::StatusOr<LoadedCheckpoint> CheckpointStore::ReadNewest() {
  for (bool skipped = false;; skipped = true) {
    BRAID_RETURN_IF_ERROR(Unreadable());
    const std::optional<CheckpointInfo> info = newest();
    if (!info) {
      const size_t lost = damaged().size();
      return lost == 0 ? absl::NotFoundError(absl::StrCat("'", directory_, "': no checkpoints"))
                       : absl::DataLossError(absl::StrCat("'", directory_, "': all ", lost,
                                                          " checkpoints are damaged"));
    }
    absl::StatusOr<LoadedCheckpoint> loaded = Read(info->name);
    if (!IsDamage(loaded.status())) {
      if (skipped && loaded.ok()) {
        line_ = loaded->info.line;
      }
      return loaded;
    }
  }
}

absl::StatusOr<CheckpointInfo> CheckpointStore::MakeNewest(absl::string_view name,
                                                           std::string state) {
  BRAID_ASSIGN_OR_RETURN(const std::string known, Find(name));
  const std::string path = PathOf(known);
  BRAID_ASSIGN_OR_RETURN(Manifest manifest, ReadManifestOf(path, known));
  manifest.numbers[kSerial] = next_serial_;
  manifest.numbers[kNextLine] = next_serial_;
  manifest.numbers.erase(kAutomatic);
  manifest.state = std::move(state);
  BRAID_RETURN_IF_ERROR(ReplaceManifest(path, manifest));
  line_ = next_serial_;
  ++next_serial_;
  CheckpointInfo info = InfoOf(manifest);
  PutLast(info);
  return info;
}

absl::Status CheckpointStore::Retain(const CheckpointRetention& retention) {
  const std::vector<CheckpointInfo> infos = List();
  std::vector<CheckpointInfo> removed;
  int64_t count = 0;
  for (size_t age = 0; age < infos.size(); ++age) {
    const CheckpointInfo& info = infos[infos.size() - 1 - age];
    if (info.name == retention.name) {
      continue;
    }
    if (info.automatic) {
      if (age > 0) {
        removed.push_back(info);
      }
    } else if (++count > retention.keep && retention.keep > 0) {
      removed.push_back(info);
    }
  }
  std::erase_if(removed, [&](const CheckpointInfo& info) { return info.name == retention.whole; });
  std::ranges::reverse(removed);
  if (retention.all) {
    return absl::OkStatus();
  }
  if (retention.history) {
    removed = NotInHistory(std::move(removed), *retention.history);
  }
  // The oldest first, as long as they can be removed.
  for (const CheckpointInfo& info : removed) {
    BRAID_RETURN_IF_ERROR(RemoveWhole(directory_, info.name));
    const absl::MutexLock lock(&mu_);
    Forget(info.name);
  }
  return absl::OkStatus();
}

std::vector<CheckpointInfo> CheckpointStore::List() const {
  const absl::MutexLock lock(&mu_);
  return infos_;
}

std::optional<CheckpointInfo> CheckpointStore::newest() const {
  const absl::MutexLock lock(&mu_);
  return infos_.empty() ? std::nullopt : std::optional(infos_.back());
}

std::vector<DamagedCheckpoint> CheckpointStore::damaged() const {
  const absl::MutexLock lock(&mu_);
  return damaged_;
}

absl::StatusOr<LoadedCheckpoint> CheckpointStore::Load(const std::string& name) const {
  const std::string path = PathOf(name);
  BRAID_ASSIGN_OR_RETURN(Manifest manifest, ReadManifestOf(path, name));
  BRAID_RETURN_IF_ERROR(CheckContents(path, manifest));
  LoadedCheckpoint loaded;
  loaded.info = InfoOf(manifest);
  loaded.state = std::move(manifest.state);
  for (const auto& [file, stored] : manifest.files) {
    loaded.files[file] = absl::StrCat(path, "/", file);
  }
  return loaded;
}

absl::StatusOr<std::string> CheckpointStore::Find(absl::string_view name) const {
  const absl::MutexLock lock(&mu_);
  if (const auto found = FindNamed(infos_, name); found != infos_.end()) {
    return found->name;
  }
  if (const auto found = FindNamed(damaged_, name); found != damaged_.end()) {
    return found->status;
  }
  std::vector<std::string> names;
  for (auto info = infos_.rbegin(); info != infos_.rend(); ++info) {
    names.push_back(info->name);
  }
  return absl::NotFoundError(absl::StrCat("unknown checkpoint '",
                                          absl::Utf8SafeCHexEscape(Excerpt(name)),
                                          "' (expected one of ", AbbreviateNames(names), ")"));
}

absl::Status CheckpointStore::Unreadable() const {
  const absl::MutexLock lock(&mu_);
  for (const DamagedCheckpoint& one : damaged_) {
    // Its serial number is unknown. Names sort by step.
    if (!IsDamage(one.status) && (infos_.empty() || one.name > infos_.back().name)) {
      return one.status;
    }
  }
  return absl::OkStatus();
}

void CheckpointStore::PutLast(CheckpointInfo info) {
  const absl::MutexLock lock(&mu_);
  if (FindNamed(damaged_, info.name) != damaged_.end()) {
    Log(LogModule::kStorage).warn("checkpoint: damaged one replaced ({})", PathOf(info.name));
  }
  Forget(info.name);
  infos_.push_back(std::move(info));
}

void CheckpointStore::SetAside(const std::string& name, const absl::Status& status) {
  Log(LogModule::kStorage).warn("checkpoint: skipped ({})", status.ToString());
  const absl::MutexLock lock(&mu_);
  Forget(name);
  damaged_.push_back({name, status});
}

void CheckpointStore::Forget(const std::string& name) {
  std::erase_if(infos_, [&](const CheckpointInfo& one) { return one.name == name; });
  std::erase_if(damaged_, [&](const DamagedCheckpoint& one) { return one.name == name; });
}

std::string CheckpointStore::PathOf(absl::string_view name) const {
  return absl::StrCat(directory_, "/", name);
}

}  // namespace braid
