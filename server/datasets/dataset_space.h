// Bytes that datasets may take on the disk.
#pragma once

#include <atomic>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace braid {

// Counts the bytes below the dataset root against a quota. Thread-safe.
class DatasetSpace {
 public:
  // quota: 0 for none.
  explicit DatasetSpace(int64_t quota) : quota_(quota) {}

  int64_t quota() const { return quota_; }
  int64_t used() const { return used_.load(); }

  // RESOURCE_EXHAUSTED if `bytes` more would exceed the quota.
  absl::Status Check(int64_t bytes) const { return CheckFor(used(), bytes); }
  // Counts `bytes` more, or returns the error of Check().
  absl::Status Take(int64_t bytes) {
    int64_t used = used_.load();
    do {
      if (absl::Status status = CheckFor(used, bytes); !status.ok()) {
        return status;
      }
    } while (!used_.compare_exchange_weak(used, used + bytes));
    return absl::OkStatus();
  }
  void Release(int64_t bytes) { used_ -= bytes; }

  // Corrects the count after a walk over the files, which found `found` bytes. before: used() when
  // the walk began. Keeps changes since then.
  void Recount(int64_t before, int64_t found) { used_ += found - before; }

 private:
  absl::Status CheckFor(int64_t used, int64_t bytes) const {
    if (quota_ == 0 || bytes <= quota_ - used) {
      return absl::OkStatus();
    }
    return absl::ResourceExhaustedError(absl::StrCat(
        "files: ", bytes, " more bytes do not fit: datasets and unfinished uploads use ", used,
        " bytes (expected at most ", quota_, " in all: --dataset_quota); delete a dataset first"));
  }

  const int64_t quota_;
  std::atomic<int64_t> used_ = 0;
};

}  // namespace braid
