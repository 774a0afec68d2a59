// Results of row independence tests, kept so that a version is tested once and not at each load.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "c10/core/Device.h"
#include "server/models/model_config.h"
#include "server/serving/row_independence.h"

namespace braid {

// Names what a test's result depends on: the file at `path` by the checksums that it stores, and
// the weights next to it by size and modification time; inputs, outputs and warm-up shapes of
// `config`; the version of PyTorch; the kind of device. Error if the file is not an archive.
absl::StatusOr<std::string> RowTestKey(const std::string& path, const ModelConfig& config,
                                       c10::Device device);

// Holds the newest 1024 results. Thread-safe.
class RowTestCache {
 public:
  // Reads and writes `path`, a JSON file. A missing or unreadable file is an empty cache. Empty:
  // the results live as long as the cache.
  explicit RowTestCache(std::string path);

  std::optional<RowTest> Find(const std::string& key) const ABSL_LOCKS_EXCLUDED(mu_);
  // Logs a warning if the file cannot be written; the result is kept in memory.
  void Add(const std::string& key, const RowTest& test) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Insert(const std::string& key, const RowTest& test) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::string ToJson() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::string path_;
  mutable absl::Mutex mu_;
  std::map<std::string, RowTest> tests_ ABSL_GUARDED_BY(mu_);
  std::deque<std::string> order_ ABSL_GUARDED_BY(mu_);  // oldest first
};

}  // namespace braid
