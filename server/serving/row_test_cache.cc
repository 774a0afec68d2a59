#include "server/serving/row_test_cache.h"

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"
#include "server/base/atomic_file.h"
#include "server/base/status.h"
#include "server/base/torch_version.h"
#include "server/models/archive/model_archive.h"
#include "server/storage/checksum.h"
#include "server/storage/model_files.h"
#include "server/telemetry/log.h"

namespace braid {
namespace {

using nlohmann::json;

constexpr size_t kMaxTests = 1024;
// Version of the test; results of other versions are ignored.
constexpr int kTestVersion = 2;

std::string Describe(const TensorSpec& spec) {
  return absl::StrCat(
      spec.name, " ", static_cast<int>(spec.type), "[", absl::StrJoin(spec.dims, ","), "]",
      spec.reshape ? absl::StrCat("->[", absl::StrJoin(*spec.reshape, ","), "]") : "",
      spec.range ? absl::StrCat(" in ", spec.range->min, "..", spec.range->max) : "",
      spec.broadcast ? " broadcast" : "", spec.scalar ? " scalar" : "");
}

std::string Describe(const ModelConfig& config) {
  std::string text = absl::StrCat(config.max_batch_size);
  for (const auto* specs : {&config.inputs, &config.outputs}) {
    for (const TensorSpec& spec : *specs) {
      absl::StrAppend(&text, ";", Describe(spec));
    }
  }
  for (const Warmup& warmup : config.warmups) {
    for (const auto& [name, input] : warmup.inputs) {
      absl::StrAppend(&text, ";", name, "[", absl::StrJoin(input.dims, ","), "]");
    }
  }
  return text;
}

// Size and modification time of the weights of an exported pair; empty if there are none.
std::string DescribeWeights(const std::string& path) {
  struct stat file = {};
  if (stat(WeightsBeside(path).c_str(), &file) != 0) {
    return "";
  }
  return absl::StrCat(file.st_ino, " ", file.st_size, " ", file.st_mtim.tv_sec, ".",
                      file.st_mtim.tv_nsec);
}

std::optional<RowTest> FromJson(const json& entry) {
  const auto text = [&entry](const char* key) {
    const auto found = entry.find(key);
    return found != entry.end() && found->is_string() ? found->get<std::string>() : "";
  };
  RowTest test;
  const std::string result = text("result");
  if (result == "proven") {
    test.result = RowIndependence::kProven;
  } else if (result == "dependent" || result == "approximate") {
    test.result = RowIndependence::kDependent;
    test.approximate = result == "approximate";
  } else {
    return std::nullopt;
  }
  test.reason = text("reason");
  test.one_number = entry.value("one_number", json(false)) == json(true);
  test.narrow_integers = entry.value("narrow_integers", json(false)) == json(true);
  return test;
}

}  // namespace

absl::StatusOr<std::string> RowTestKey(const std::string& path, const ModelConfig& config,
                                       c10::Device device) {
  BRAID_ASSIGN_OR_RETURN(const std::string stored, StoredChecksum(path));
  return ChecksumOf(absl::StrCat(kTestVersion, "|", stored, "|", DescribeWeights(path), "|",
                                 Describe(config), "|", kTorchVersion, "|",
                                 c10::DeviceTypeName(device.type())));
}

RowTestCache::RowTestCache(std::string path) : path_(std::move(path)) {
  if (path_.empty()) {
    return;
  }
  std::ifstream file(path_);
  const json entries = json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!entries.is_array()) {
    return;
  }
  const absl::MutexLock lock(&mu_);
  for (const json& entry : entries) {
    if (!entry.is_object() || !entry.contains("key") || !entry["key"].is_string()) {
      continue;
    }
    if (const auto test = FromJson(entry)) {
      Insert(entry["key"].get<std::string>(), *test);
    }
  }
}

std::optional<RowTest> RowTestCache::Find(const std::string& key) const {
  const absl::MutexLock lock(&mu_);
  const auto found = tests_.find(key);
  return found == tests_.end() ? std::nullopt : std::optional(found->second);
}

void RowTestCache::Add(const std::string& key, const RowTest& test) {
  if (test.result == RowIndependence::kUnproven) {
    return;  // The next load may fare better.
  }
  const absl::MutexLock lock(&mu_);
  Insert(key, test);
  if (path_.empty()) {
    return;
  }
  if (const absl::Status status = WriteFileAtomically(path_, ToJson()); !status.ok()) {
    Log(LogModule::kModels).warn("{}: cannot be written: {}", path_, std::string(status.message()));
  }
}

void RowTestCache::Insert(const std::string& key, const RowTest& test) {
  if (tests_.insert_or_assign(key, test).second) {
    order_.push_back(key);
  }
  if (order_.size() > kMaxTests) {
    tests_.erase(order_.front());
    order_.pop_front();
  }
}

std::string RowTestCache::ToJson() const {
  json entries = json::array();
  for (const std::string& key : order_) {
    const RowTest& test = tests_.at(key);
    entries.push_back({{"key", key},
                       {"result", test.result == RowIndependence::kProven ? "proven"
                                  : test.approximate                      ? "approximate"
                                                                          : "dependent"},
                       {"reason", test.reason},
                       {"one_number", test.one_number},
                       {"narrow_integers", test.narrow_integers}});
  }
  return entries.dump(1) + "\n";
}

}  // namespace braid
