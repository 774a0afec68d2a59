#include "server/admission/admission.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/base/status.h"

namespace braid {

Ticket::~Ticket() {
  Release();
  if (admission_ != nullptr) {
    admission_->CountReplied();
  }
}

absl::Status Ticket::Add(size_t bytes) {
  BRAID_RETURN_IF_ERROR(admission_->Add(bytes, client_));
  bytes_ += bytes;
  return absl::OkStatus();
}

void Ticket::Release() {
  if (admission_ != nullptr && !std::exchange(released_, true)) {
    admission_->Release(bytes_, client_);
  }
}

absl::StatusOr<Ticket> Admission::Admit(size_t bytes, std::string client) {
  const absl::MutexLock lock(&mu_);
  BRAID_RETURN_IF_ERROR(gate_);
  if (requests_ >= limits_.requests) {
    return absl::ResourceExhaustedError(
        absl::StrCat("too many requests in flight: ", requests_, " requests (--max_requests)"));
  }
  BRAID_RETURN_IF_ERROR(CheckBytes(bytes, /*others=*/requests_));
  if (!limits_clients()) {
    client.clear();
  } else if (!client.empty()) {
    // A rejected client has requests in flight, so this adds no entry for it.
    Client& of_client = clients_[client];
    BRAID_RETURN_IF_ERROR(CheckClient(of_client, bytes));
    ++of_client.requests;
    of_client.bytes += bytes;
  }
  ++requests_;
  bytes_ += bytes;
  return Ticket(this, bytes, std::move(client));
}

absl::Status Admission::CheckClient(const Client& client, size_t bytes) const {
  if (limits_.client_requests > 0 && client.requests >= limits_.client_requests) {
    return absl::ResourceExhaustedError(
        absl::StrCat("too many requests of this client in flight: ", client.requests,
                     " requests (--max_client_requests)"));
  }
  return CheckClientBytes(client, bytes, /*others=*/client.requests);
}

absl::Status Admission::CheckBytes(size_t bytes, int64_t others) const {
  if (others > 0 && bytes_ + bytes > limits_.bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("too many bytes in flight: ", bytes_,
                                                     " and a request of ", bytes, " bytes exceed ",
                                                     limits_.bytes, " (--max_request_bytes)"));
  }
  return absl::OkStatus();
}

absl::Status Admission::CheckClientBytes(const Client& client, size_t bytes, int64_t others) const {
  if (limits_.client_bytes > 0 && others > 0 && client.bytes + bytes > limits_.client_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "too many bytes of this client in flight: ", client.bytes, " and a request of ", bytes,
        " bytes exceed ", limits_.client_bytes, " (--max_client_request_bytes)"));
  }
  return absl::OkStatus();
}

absl::Status Admission::Add(size_t bytes, const std::string& client) {
  if (bytes > limits_.bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("inputs: decoding, padding or transposing them takes ", bytes,
                     " bytes (expected at most ", limits_.bytes, ", --max_request_bytes)"));
  }
  const absl::MutexLock lock(&mu_);
  BRAID_RETURN_IF_ERROR(CheckBytes(bytes, /*others=*/requests_ - 1));
  if (!client.empty()) {
    Client& of_client = clients_.find(client)->second;
    BRAID_RETURN_IF_ERROR(CheckClientBytes(of_client, bytes, /*others=*/of_client.requests - 1));
    of_client.bytes += bytes;
  }
  bytes_ += bytes;
  return absl::OkStatus();
}

void Admission::Close(absl::string_view reason) {
  const absl::MutexLock lock(&mu_);
  gate_ = absl::UnavailableError(absl::StrCat("the server ", reason));
}

void Admission::Open() {
  const absl::MutexLock lock(&mu_);
  gate_ = absl::OkStatus();
}

absl::Status Admission::CheckOpen() const {
  const absl::MutexLock lock(&mu_);
  return gate_;
}

bool Admission::WaitUntilIdle(absl::Duration timeout) {
  const absl::MutexLock lock(&mu_);
  return mu_.AwaitWithTimeout(absl::Condition(this, &Admission::Idle), timeout);
}

int64_t Admission::in_flight() const {
  const absl::MutexLock lock(&mu_);
  return requests_;
}

size_t Admission::bytes_in_flight() const {
  const absl::MutexLock lock(&mu_);
  return bytes_;
}

bool Admission::WaitUntilReplied(absl::Duration timeout) {
  const absl::MutexLock lock(&mu_);
  return mu_.AwaitWithTimeout(absl::Condition(this, &Admission::Replied), timeout);
}

void Admission::Release(size_t bytes, const std::string& client) {
  const absl::MutexLock lock(&mu_);
  if (!client.empty()) {
    const auto found = clients_.find(client);
    found->second.bytes -= bytes;
    if (--found->second.requests == 0) {
      clients_.erase(found);
    }
  }
  --requests_;
  bytes_ -= bytes;
  ++replies_;
}

void Admission::CountReplied() {
  const absl::MutexLock lock(&mu_);
  --replies_;
}

}  // namespace braid
