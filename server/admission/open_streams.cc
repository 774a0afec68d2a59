#include "server/admission/open_streams.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/base/status.h"

namespace braid {

absl::Status OpenStreams::Add(const std::shared_ptr<OpenStream>& stream,
                              const std::string& client) {
  const absl::MutexLock lock(&mu_);
  BRAID_RETURN_IF_ERROR(closed_);
  const bool counted = max_per_client_ > 0 && !client.empty();
  if (counted) {
    int64_t& of_client = clients_[client];
    if (of_client >= max_per_client_) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "too many open streams of this client: ", of_client, " streams (--max_client_requests)"));
    }
    ++of_client;
  }
  streams_[stream.get()] = {stream, counted ? client : ""};
  return absl::OkStatus();
}

void OpenStreams::Remove(const OpenStream* stream) {
  const absl::MutexLock lock(&mu_);
  const auto found = streams_.find(stream);
  if (found == streams_.end()) {
    return;
  }
  if (const auto client = clients_.find(found->second.client);
      client != clients_.end() && --client->second == 0) {
    clients_.erase(client);
  }
  streams_.erase(found);
}

void OpenStreams::Close(const absl::Status& status) {
  std::vector<std::shared_ptr<OpenStream>> open;
  {
    const absl::MutexLock lock(&mu_);
    closed_ = status;
    for (const auto& [stream, entry] : streams_) {
      if (auto held = entry.stream.lock(); held != nullptr) {
        open.push_back(std::move(held));
      }
    }
  }
  // Without the lock, which one that ends takes.
  for (const auto& stream : open) {
    stream->BeginClose(status);
  }
}

bool OpenStreams::WaitUntilEmpty(absl::Duration timeout) {
  const absl::MutexLock lock(&mu_);
  return mu_.AwaitWithTimeout(absl::Condition(this, &OpenStreams::IsEmpty), timeout);
}

}  // namespace braid
