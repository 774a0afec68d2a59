// Datasets that clients upload and delete: files and folders in one directory.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "server/base/clock.h"
#include "server/datasets/dataset_space.h"
#include "server/datasets/dataset_upload.h"
#include "server/datasets/manifest.h"
#include "server/storage/file_descriptor.h"

namespace braid {

// Stores the datasets that clients upload. Owned by the server. Thread-safe. Methods block on the
// disk and on each other.
//
//   <root>/<name>                  a dataset: a file or a folder
//   <root>/.braid/lock             held by the server
//   <root>/.braid/uploads/<sha256> staging folder of an upload (DatasetUpload)
//   <root>/.braid/records/<name>   checksums of a dataset, with the times of its files
//   <root>/.braid/removed/<id>     a dataset that is being removed
//
// A rename makes a dataset appear or disappear as a whole. Readers keep the files that they have
// open.
class DatasetStore {
 public:
  struct Options {
    std::string root;              // created if missing
    int64_t quota = 0;             // bytes of all datasets and unfinished uploads; 0: no limit
    const Clock* clock = nullptr;  // outlives the store
  };
  struct Started {
    bool complete = false;               // an equal dataset exists; no upload was started
    std::string upload = {};             // ID for Continue(): new for each call of Start()
    std::vector<int64_t> received = {};  // bytes of each file that are there
  };
  enum class Outcome { kStored, kReplaced, kUnchanged };

  // Time after which an upload that nobody continued is removed.
  static constexpr absl::Duration kUploadLifetime = absl::Hours(24);
  // Uploads that may be unfinished at the same time.
  static constexpr int kMaxUploads = 1000;

  // Creates the directory and removes what earlier servers left. FAILED_PRECONDITION if another
  // server uses the directory.
  static absl::StatusOr<std::unique_ptr<DatasetStore>> Open(const Options& options);
  ~DatasetStore();

  // Starts an upload, or continues the upload with an equal manifest. Only the ID that the last
  // call returned may be used from then on, so that nobody else writes behind the `received` bytes.
  // INVALID_ARGUMENT naming the field; ALREADY_EXISTS if a different dataset has the name and
  // `overwrite` is false; RESOURCE_EXHAUSTED if the quota, the disk or kMaxUploads does not allow
  // it.
  absl::StatusOr<Started> Start(const DatasetManifest& manifest, bool overwrite)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the upload, for Append(). Supersedes the object that an earlier call returned.
  // ABORTED if a later call of Start() continues the upload; NOT_FOUND if Start() did not start it,
  // or it has ended.
  absl::StatusOr<std::shared_ptr<DatasetUpload>> Continue(const std::string& upload)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Puts the dataset in its place, durably. ALREADY_EXISTS as in Start(), which ends the upload.
  // FAILED_PRECONDITION if the file system cannot exchange a folder atomically.
  absl::StatusOr<Outcome> Commit(DatasetUpload* upload) ABSL_LOCKS_EXCLUDED(mu_);
  // Ends the upload and removes its files.
  void Discard(DatasetUpload* upload) ABSL_LOCKS_EXCLUDED(mu_);

  // Returns the absolute path of a dataset. INVALID_ARGUMENT for an invalid name, NOT_FOUND if it
  // does not exist.
  absl::StatusOr<std::string> Find(const std::string& name) const;
  // Removes a dataset. Errors as Find().
  absl::Status Delete(const std::string& name) ABSL_LOCKS_EXCLUDED(mu_);
  // Removes uploads that nobody continued for kUploadLifetime. A thread calls it every hour.
  void RemoveExpired() ABSL_LOCKS_EXCLUDED(mu_);

  // Canonical path of the directory.
  const std::string& root() const { return root_; }
  const DatasetSpace& space() const { return space_; }
  // Lets another server use the directory. No other method may be called afterwards.
  void Unlock() { lock_.Close(); }

 private:
  DatasetStore(std::string root, const Options& options, FileDescriptor lock);

  std::string PlaceOf(const std::string& name) const;
  std::string UploadDirectory(const std::string& id) const;
  std::string RecordOf(const std::string& name) const;
  // Counts the bytes in the directory.
  absl::Status Recount();
  absl::Status RemoveLeftovers();
  void RemoveExpiredLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CheckRoom(int64_t bytes) const;
  absl::Status CheckUploads(const std::string& id) const;
  // Returns true if the dataset `manifest.dataset` has exactly its files.
  absl::StatusOr<bool> Matches(const DatasetManifest& manifest) const;
  // Makes later calls of the active upload fail.
  void SupersedeActive(const std::string& id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<Outcome> CommitLocked(DatasetUpload* upload) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void DiscardLocked(DatasetUpload* upload) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::string root_;
  const Clock* const clock_;
  FileDescriptor lock_;
  DatasetSpace space_;

  // Held while datasets and uploads are created, verified, put in place and removed, but not while
  // files are received.
  absl::Mutex mu_;
  // By UploadIdOf().
  std::map<std::string, std::weak_ptr<DatasetUpload>> active_ ABSL_GUARDED_BY(mu_);

  absl::Notification stop_;
  // Last member: joined first.
  std::thread cleaner_;
};

}  // namespace braid
