// Objects in S3 and in services with its interface, through Arrow's file system.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace arrow {
class Status;
}  // namespace arrow
namespace arrow::fs {
class FileSystem;
}  // namespace arrow::fs

namespace braid {

// An object as it was when it was listed.
struct StoredObject {
  std::string path;  // "bucket/key"
  int64_t bytes = 0;
  // ETag and time of the last change. Differs if the contents differ.
  std::string version;
};

// Entry of a listing: an object, or a common prefix of objects.
struct ListedObject {
  std::string name;  // relative to the listed prefix
  bool directory = false;
  int64_t bytes = 0;
};

// Client of S3. Paths are results of ParseObjectPath(): "bucket/key". Errors name the object:
// NOT_FOUND if it does not exist; FAILED_PRECONDITION if the service denies access (without
// credentials, the message lists the places that were searched), the credentials have expired, or
// the service fails or does not answer; RESOURCE_EXHAUSTED if it limits the rate of requests, or if
// the local disk is full. Errors that may pass are returned after the time for retries. None is
// UNAVAILABLE, which clients take for an outage of this server and retry. Methods block on the
// network. Thread-safe.
class ObjectStore {
 public:
  // Connects with the settings of the environment: the standard AWS credential chain; AWS_REGION;
  // AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL for other services; AWS_CA_BUNDLE. Sends no request.
  // `retry`: time for retries of one request. A process has at most one at a time.
  static absl::StatusOr<std::unique_ptr<ObjectStore>> Connect(
      absl::Duration retry = absl::Seconds(10));
  // Uses another file system, for example a directory in tests.
  explicit ObjectStore(std::shared_ptr<arrow::fs::FileSystem> files);
  // Ends the use of S3. No other method may be running.
  ~ObjectStore();
  ObjectStore(const ObjectStore&) = delete;
  ObjectStore& operator=(const ObjectStore&) = delete;

  // Returns the object at `path`, or all objects below "path/", sorted by path. NOT_FOUND if there
  // is none; INVALID_ARGUMENT if ParseObjectPath() rejects a name.
  absl::StatusOr<std::vector<StoredObject>> Find(const std::string& path) const;
  // Lists the objects and prefixes directly below "path/", sorted by name; may be empty. NOT_FOUND
  // if the bucket does not exist.
  absl::StatusOr<std::vector<ListedObject>> List(const std::string& path) const;
  // Returns true if there is an object at `path`, or one below "path/".
  absl::StatusOr<bool> Exists(const std::string& path) const;

  // Reads exactly `count` bytes from `offset`. ABORTED if the object is shorter.
  absl::StatusOr<std::string> Read(const StoredObject& object, int64_t offset, int64_t count) const;
  // ABORTED if the object is no longer the one that was listed.
  absl::Status CheckUnchanged(const StoredObject& object) const;

  // Writes a local file to `path`, in parts if it is large. The object appears whole, and replaces
  // one that exists.
  absl::Status Upload(const std::string& file, const std::string& path) const;

 private:
  // Converts an error of Arrow.
  absl::Status Error(const arrow::Status& status, absl::string_view action,
                     absl::string_view path) const;
  // Returns the error of a GET request for the same object, whose reply has a body, for the error
  // of a HEAD request. Returns `status` if the GET request does not fail for such a reason.
  arrow::Status Explain(const arrow::Status& status, absl::string_view path) const;
  // Returns the paths of Find().
  absl::StatusOr<std::vector<std::string>> Names(const std::string& path) const;
  absl::StatusOr<StoredObject> Describe(const std::string& path) const;

  std::shared_ptr<arrow::fs::FileSystem> files_;
  const bool s3_;
};

}  // namespace braid
