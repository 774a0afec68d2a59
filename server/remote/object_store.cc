#include "server/remote/object_store.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <initializer_list>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "arrow/buffer.h"
#include "arrow/filesystem/filesystem.h"
#include "arrow/filesystem/s3fs.h"
#include "arrow/io/file.h"
#include "arrow/io/interfaces.h"
#include "arrow/result.h"
#include "arrow/status.h"
#include "arrow/util/io_util.h"
#include "arrow/util/key_value_metadata.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/remote/object_path.h"
#include "server/remote/parallel.h"
#include "server/storage/file_error.h"
#include "server/telemetry/log.h"

namespace braid {
namespace {

namespace fs = arrow::fs;

// How long a service may take to accept a connection, and to send the next bytes.
constexpr absl::Duration kConnectTimeout = absl::Seconds(3);
constexpr absl::Duration kRequestTimeout = absl::Seconds(10);
// Size of a read whose error is asked for. Arrow's buffer for the read takes the error's body, too.
constexpr int64_t kErrorBytes = int64_t{64} << 10;
constexpr int64_t kUploadBytes = int64_t{8} << 20;
constexpr absl::string_view kNoCredentials =
    "; no credentials were found in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, the files of "
    "AWS_PROFILE, AWS_WEB_IDENTITY_TOKEN_FILE, and the metadata services of ECS and EC2";
constexpr absl::string_view kExpired =
    "; the credentials have expired (renew them, and restart the server if they come from its "
    "environment)";
constexpr absl::string_view kThrottled =
    "; the service is overloaded or limits the rate of requests, after retries too (try again "
    "later, or run fewer jobs at a time)";
constexpr absl::string_view kNoAnswer =
    "; the service failed or did not answer, after retries too (check AWS_ENDPOINT_URL and the "
    "network, or try again later)";

std::string Environment(const char* name) {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): no thread changes the environment.
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// True while the requests of this thread are not retried.
thread_local bool retries_off = false;

// Retries what the SDK says may succeed: throttling, errors of the service and of the network.
// Thread-safe: a request and its retries are on one thread.
class Backoff final : public fs::S3RetryStrategy {
 public:
  explicit Backoff(absl::Duration time) : time_(time) {}

  bool ShouldRetry(const AWSErrorDetail& error, int64_t attempted) override {
    if (retries_off) {
      return false;
    }
    // Attempts take time, too: those that get no answer, up to kRequestTimeout.
    thread_local absl::Time first_error;
    if (attempted == 0) {
      first_error = absl::Now();
    }
    // The SDK does not know this code, which some services send with status 429.
    const bool throttled = absl::StrContains(error.message, "TooManyRequests");
    return (error.should_retry || throttled) && absl::Now() - first_error < time_;
  }
  int64_t CalculateDelayBeforeNextRetry(const AWSErrorDetail& /*error*/,
                                        int64_t attempted) override {
    constexpr int64_t kMaxDoublings = 4;
    return int64_t{100} << std::min(attempted, kMaxDoublings);  // milliseconds
  }

 private:
  const absl::Duration time_;
};

// Returns the file with the authorities of TLS. Arrow's library looks where Red Hat has it.
std::string AuthoritiesFile() {
  for (const std::string& file :
       {Environment("AWS_CA_BUNDLE"), Environment("SSL_CERT_FILE"),
        std::string("/etc/ssl/certs/ca-certificates.crt"),
        std::string("/etc/pki/tls/certs/ca-bundle.crt"), std::string("/etc/ssl/cert.pem")}) {
    std::error_code error;
    if (!file.empty() && std::filesystem::exists(file, error)) {
      return file;
    }
  }
  return "";
}

absl::Status SetEndpoint(fs::S3Options* options) {
  for (const char* const name : {"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"}) {
    const std::string url = Environment(name);
    if (url.empty()) {
      continue;
    }
    const std::vector<std::string> parts = absl::StrSplit(url, absl::MaxSplits("://", 1));
    if (parts.size() != 2 || (parts[0] != "http" && parts[0] != "https") || parts[1].empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ": '", Excerpt(url), "' (expected http://HOST:PORT or https://HOST)"));
    }
    options->scheme = parts[0];
    options->endpoint_override = std::string(absl::StripSuffix(parts[1], "/"));
    return absl::OkStatus();
  }
  return absl::OkStatus();
}

bool MentionsAny(absl::string_view message, std::initializer_list<absl::string_view> words) {
  return std::any_of(words.begin(), words.end(), [message](absl::string_view word) {
    return absl::StrContains(message, word);
  });
}

bool IsMissing(const arrow::Status& status) {
  return arrow::internal::ErrnoFromStatus(status) == ENOENT ||
         MentionsAny(status.message(), {"NO_SUCH_BUCKET", "NO_SUCH_KEY", "HTTP status 404"});
}

// Replies to HEAD requests have no body, so that their errors do not say why.
bool IsUnexplained(const arrow::Status& status) {
  return absl::StrContains(status.message(), "No response body") && !IsMissing(status);
}

// Returns Arrow's message without the bucket and the key, which errors name anyway, and without
// curl's text for a code that its details repeat.
std::string Reason(const arrow::Status& status) {
  absl::string_view text = status.message();
  text.remove_prefix(std::min(text.find("AWS Error"), text.size()));
  if (text.empty()) {
    return status.message();
  }
  const std::vector<absl::string_view> parts = absl::StrSplit(text, "; Details: ");
  const size_t code = parts[0].find("curlCode:");
  return parts.size() == 2 && !parts[1].empty() && code != absl::string_view::npos
             ? absl::StrCat(parts[0].substr(0, code), parts[1])
             : std::string(text);
}

std::string UriOf(absl::string_view path) { return absl::StrCat("s3://", path); }

absl::Status NoObject(const std::string& path) {
  return absl::NotFoundError(absl::StrCat(
      "'", UriOf(path), "' does not exist (expected an object, or a prefix of objects)"));
}

absl::Status Changed(const StoredObject& object) {
  return absl::AbortedError(
      absl::StrCat("'", UriOf(object.path),
                   "' changed while it was read (do not replace an object while it is read)"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ObjectStore>> ObjectStore::Connect(absl::Duration retry) {
  const auto connect = [&]() -> absl::StatusOr<std::shared_ptr<fs::FileSystem>> {
    if (const arrow::Status status = fs::InitializeS3(fs::S3GlobalOptions::Defaults());
        !status.ok()) {
      return absl::InternalError(absl::StrCat("cannot initialize S3: ", status.message()));
    }
    fs::S3Options options = fs::S3Options::Defaults();
    BRAID_RETURN_IF_ERROR(SetEndpoint(&options));
    options.retry_strategy = std::make_shared<Backoff>(retry);
    options.tls_ca_file_path = AuthoritiesFile();
    options.connect_timeout = absl::ToDoubleSeconds(kConnectTimeout);
    options.request_timeout = absl::ToDoubleSeconds(kRequestTimeout);
    arrow::Result<std::shared_ptr<fs::S3FileSystem>> made = fs::S3FileSystem::Make(options);
    if (!made.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("S3: ", made.status().message()));
    }
    Log(LogModule::kServer)
        .info("S3: region {}, endpoint {}", (*made)->region(),
              options.endpoint_override.empty()
                  ? "of AWS"
                  : absl::StrCat(options.scheme, "://", options.endpoint_override));
    return std::shared_ptr<fs::FileSystem>(*std::move(made));
  };
  absl::StatusOr<std::shared_ptr<fs::FileSystem>> files = connect();
  if (!files.ok()) {
    (void)fs::EnsureS3Finalized();  // The error of connecting matters more.
    return files.status();
  }
  return std::make_unique<ObjectStore>(*std::move(files));
}

ObjectStore::ObjectStore(std::shared_ptr<fs::FileSystem> files)
    : files_(std::move(files)), s3_(files_->type_name() == "s3") {}

ObjectStore::~ObjectStore() {
  if (!s3_) {
    return;
  }
  files_.reset();
  if (const arrow::Status status = fs::EnsureS3Finalized(); !status.ok()) {
    Log(LogModule::kServer).warn("cannot end the use of S3: {}", status.message());
  }
}

absl::Status ObjectStore::Error(const arrow::Status& status, absl::string_view action,
                                absl::string_view path) const {
  if (status.ok()) {
    return absl::OkStatus();
  }
  const std::string text = absl::StrCat("cannot ", action, " '", UriOf(path), "'");
  if (IsMissing(status)) {
    return absl::NotFoundError(absl::StrCat(text, ": it does not exist"));
  }
  const arrow::Status cause = IsUnexplained(status) ? Explain(status, path) : status;
  const std::string reason = Reason(cause);
  const std::string why = absl::StrCat(text, ": ", Excerpt(reason, 512));
  if (MentionsAny(cause.message(), {"ExpiredToken", "EXPIRED"})) {
    return absl::FailedPreconditionError(absl::StrCat(why, kExpired));
  }
  if (MentionsAny(cause.message(),
                  {"ACCESS_DENIED", "INVALID_ACCESS_KEY_ID", "SIGNATURE", "INVALID_CLIENT_TOKEN_ID",
                   "TOKEN", "HTTP status 401", "HTTP status 403"})) {
    const bool anonymous =
        s3_ && static_cast<const fs::S3FileSystem&>(*files_).options().GetAccessKey().empty();
    return absl::FailedPreconditionError(absl::StrCat(why, anonymous ? kNoCredentials : ""));
  }
  // AWS sends 503 only if there are too many requests.
  if (MentionsAny(reason,
                  {"SLOW_DOWN", "SlowDown", "SERVICE_UNAVAILABLE", "THROTTLING", "Throttl",
                   "TooManyRequests", "LimitExceeded", "HTTP status 503", "HTTP status 429"})) {
    return absl::ResourceExhaustedError(absl::StrCat(why, kThrottled));
  }
  const bool no_answer =
      MentionsAny(reason, {"NETWORK_CONNECTION", "REQUEST_TIMEOUT", "INTERNAL_FAILURE",
                           "HTTP status 500", "HTTP status 502", "HTTP status 504"});
  return absl::FailedPreconditionError(absl::StrCat(why, no_answer ? kNoAnswer : ""));
}

arrow::Status ObjectStore::Explain(const arrow::Status& status, absl::string_view path) const {
  // A bucket has no contents to read. Services check the caller before the key, which may be
  // missing.
  fs::FileInfo info(absl::StrContains(path, '/') ? std::string(path) : absl::StrCat(path, "/none"),
                    fs::FileType::File);
  info.set_size(kErrorBytes);  // With a size, opening sends no HEAD request.
  const auto get = [&]() -> arrow::Status {
    ARROW_ASSIGN_OR_RAISE(const auto opened, files_->OpenInputFile(info));
    return opened->ReadAt(0, kErrorBytes).status();
  };
  retries_off = true;  // The request that failed was retried for long enough.
  const arrow::Status read = get();
  retries_off = false;
  const bool explains = !read.ok() && !IsMissing(read) &&
                        !MentionsAny(read.message(), {"InvalidRange", "HTTP status 416"});
  return explains ? read : status;
}

absl::StatusOr<StoredObject> ObjectStore::Describe(const std::string& path) const {
  const auto opened = files_->OpenInputFile(path);
  BRAID_RETURN_IF_ERROR(Error(opened.status(), "read", path));
  const auto bytes = (*opened)->GetSize();
  BRAID_RETURN_IF_ERROR(Error(bytes.status(), "read", path));
  const auto metadata = (*opened)->ReadMetadata();
  BRAID_RETURN_IF_ERROR(Error(metadata.status(), "read", path));
  StoredObject object{path, *bytes, ""};
  if (*metadata != nullptr) {
    object.version = absl::StrCat((*metadata)->Get("ETag").ValueOr(""), " ",
                                  (*metadata)->Get("Last-Modified").ValueOr(""));
    return object;
  }
  const auto info = files_->GetFileInfo(path);
  BRAID_RETURN_IF_ERROR(Error(info.status(), "read", path));
  object.version = absl::StrCat(info->mtime().time_since_epoch().count());
  return object;
}

absl::StatusOr<std::vector<std::string>> ObjectStore::Names(const std::string& path) const {
  const auto info = files_->GetFileInfo(path);
  BRAID_RETURN_IF_ERROR(Error(info.status(), "read", path));
  if (info->IsFile()) {
    return std::vector<std::string>{path};
  }
  fs::FileSelector below;
  below.base_dir = path;
  below.recursive = true;
  below.allow_not_found = true;
  const auto found = files_->GetFileInfo(below);
  BRAID_RETURN_IF_ERROR(Error(found.status(), "list", path));
  std::vector<std::string> names;
  for (const fs::FileInfo& one : *found) {
    if (one.IsFile()) {
      // The key becomes the path of a local file.
      BRAID_RETURN_IF_ERROR(ParseObjectPath(UriOf(one.path())).status());
      names.push_back(one.path());
    }
  }
  std::sort(names.begin(), names.end());
  return names.empty() ? absl::StatusOr<std::vector<std::string>>(NoObject(path)) : names;
}

absl::StatusOr<std::vector<StoredObject>> ObjectStore::Find(const std::string& path) const {
  BRAID_ASSIGN_OR_RETURN(const std::vector<std::string> names, Names(path));
  std::vector<StoredObject> objects(names.size());
  // Listings have no ETags.
  BRAID_RETURN_IF_ERROR(InParallel(
      names.size(),
      [&](size_t i) -> absl::Status {
        BRAID_ASSIGN_OR_RETURN(objects[i], Describe(names[i]));
        return absl::OkStatus();
      },
      [] { return absl::OkStatus(); }));
  return objects;
}

absl::StatusOr<std::vector<ListedObject>> ObjectStore::List(const std::string& path) const {
  fs::FileSelector below;
  below.base_dir = path;
  const auto found = files_->GetFileInfo(below);
  std::vector<ListedObject> listed;
  // Without objects, a prefix does not exist. A missing bucket is an error of the service.
  if (arrow::internal::ErrnoFromStatus(found.status()) == ENOENT) {
    return listed;
  }
  BRAID_RETURN_IF_ERROR(Error(found.status(), "list", path));
  for (const fs::FileInfo& one : *found) {
    listed.push_back({one.base_name(), one.IsDirectory(), std::max<int64_t>(one.size(), 0)});
  }
  std::sort(listed.begin(), listed.end(),
            [](const ListedObject& a, const ListedObject& b) { return a.name < b.name; });
  return listed;
}

absl::StatusOr<bool> ObjectStore::Exists(const std::string& path) const {
  const auto info = files_->GetFileInfo(path);
  BRAID_RETURN_IF_ERROR(Error(info.status(), "read", path));
  return info->type() != fs::FileType::NotFound;
}

absl::StatusOr<std::string> ObjectStore::Read(const StoredObject& object, int64_t offset,
                                              int64_t count) const {
  // With a size, opening sends no request.
  fs::FileInfo info(object.path, fs::FileType::File);
  info.set_size(object.bytes);
  const auto opened = files_->OpenInputFile(info);
  BRAID_RETURN_IF_ERROR(Error(opened.status(), "read", object.path));
  std::string bytes(static_cast<size_t>(count), '\0');
  const auto read = (*opened)->ReadAt(offset, count, bytes.data());
  BRAID_RETURN_IF_ERROR(Error(read.status(), "read", object.path));
  if (*read != count) {
    return Changed(object);
  }
  return bytes;
}

absl::Status ObjectStore::CheckUnchanged(const StoredObject& object) const {
  const absl::StatusOr<StoredObject> now = Describe(object.path);
  if (absl::IsNotFound(now.status())) {
    return Changed(object);
  }
  BRAID_RETURN_IF_ERROR(now.status());
  return now->version == object.version && now->bytes == object.bytes ? absl::OkStatus()
                                                                      : Changed(object);
}

absl::Status ObjectStore::Upload(const std::string& file, const std::string& path) const {
  const auto source = arrow::io::ReadableFile::Open(file);
  if (!source.ok()) {
    return FileError(arrow::internal::ErrnoFromStatus(source.status()), "read", file);
  }
  const auto sink = files_->OpenOutputStream(path);
  BRAID_RETURN_IF_ERROR(Error(sink.status(), "write", path));
  const auto copy = [&]() -> absl::Status {
    while (true) {
      const auto bytes = (*source)->Read(kUploadBytes);
      if (!bytes.ok()) {
        return FileError(arrow::internal::ErrnoFromStatus(bytes.status()), "read", file);
      }
      if ((*bytes)->size() == 0) {
        return Error((*sink)->Close(), "write", path);
      }
      BRAID_RETURN_IF_ERROR(Error((*sink)->Write(*bytes), "write", path));
    }
  };
  const absl::Status status = copy();
  if (!status.ok()) {
    (void)(*sink)->Abort();  // The first error matters more.
  }
  return status;
}

}  // namespace braid
