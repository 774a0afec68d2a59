#include "server/rpc/server/transport.h"

#include <algorithm>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "absl/strings/str_cat.h"
#include "grpcpp/resource_quota.h"

namespace braid {
namespace {

// For a connection to say that it is HTTP/2: one that does not is ended. gRPC's own is 2 minutes.
constexpr int kHandshakeMilliseconds = 20'000;
// gRPC's own is 5 minutes, which is more than what load balancers let a connection be idle for.
constexpr int kIdlePingMilliseconds = 10'000;
constexpr int kPingStrikes = 2;

int Milliseconds(absl::Duration duration) {
  return static_cast<int>(
      std::min<int64_t>(absl::ToInt64Milliseconds(absl::Ceil(duration, absl::Milliseconds(1))),
                        std::numeric_limits<int>::max()));
}

}  // namespace

absl::Status CheckReplySize(google::protobuf::MessageLite* reply) {
  const size_t bytes = reply->ByteSizeLong();
  if (bytes <= INT_MAX) {
    return absl::OkStatus();
  }
  reply->Clear();
  return absl::ResourceExhaustedError(
      absl::StrCat("the reply would have ", bytes, " bytes, and a message holds ", INT_MAX,
                   "; expected fewer rows a request, or fewer outputs"));
}

void ConfigureTransport(const ConnectionLimits& limits, grpc::ServerBuilder* builder) {
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, limits.streams);
  if (limits.age != absl::InfiniteDuration()) {
    builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS, Milliseconds(limits.age));
  }
  if (limits.grace != absl::InfiniteDuration()) {
    builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, Milliseconds(limits.grace));
  }
  if (limits.idle != absl::InfiniteDuration()) {
    builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, Milliseconds(limits.idle));
  }
  if (!limits.compression) {
    builder->SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
    builder->SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  }
  // Who pings without need more often than that three times is cut off.
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                              kIdlePingMilliseconds);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, kPingStrikes);
  // Else a second server could share the port and take half of the first one's clients.
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // A batch of megabytes comes in few pieces, and without waiting for the window to open. By
  // default frames are of 16 KiB, reads of 8, and the window is of 64 at first.
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, 4 << 20);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 4 << 20);
  builder->AddChannelArgument(GRPC_ARG_TCP_READ_CHUNK_SIZE, 256 << 10);
  builder->AddChannelArgument(GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE, 4 << 20);
  builder->AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeMilliseconds);
  // Beyond it gRPC ends the calls whose messages take most.
  grpc::ResourceQuota quota("braid");
  quota.Resize(limits.buffer_bytes);
  builder->SetResourceQuota(quota);
  builder->SetMaxReceiveMessageSize(limits.message_bytes);
  builder->SetMaxSendMessageSize(INT_MAX);
}

}  // namespace braid
