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

// Time for a connection to complete its handshake. gRPC's default is 2 minutes.
constexpr int kHandshakeMilliseconds = 20'000;
// Shortest interval of keepalive pings. gRPC's default of 5 minutes exceeds the idle timeout of
// many load balancers.
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
  return absl::ResourceExhaustedError(absl::StrCat("the reply has ", bytes,
                                                   " bytes (expected at most ", INT_MAX,
                                                   "; request fewer rows or outputs)"));
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
  // Disconnects clients that ping more often.
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                              kIdlePingMilliseconds);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, kPingStrikes);
  // Prevents a second server from sharing the port.
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // Settings for messages of megabytes. gRPC's defaults are frames of 16 KiB, reads of 8 KiB and an
  // initial window of 64 KiB.
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, 4 << 20);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 4 << 20);
  builder->AddChannelArgument(GRPC_ARG_TCP_READ_CHUNK_SIZE, 256 << 10);
  builder->AddChannelArgument(GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE, 4 << 20);
  builder->AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeMilliseconds);
  // Beyond the quota, gRPC ends the calls with the largest messages.
  grpc::ResourceQuota quota("braid");
  quota.Resize(limits.buffer_bytes);
  builder->SetResourceQuota(quota);
  builder->SetMaxReceiveMessageSize(limits.message_bytes);
  builder->SetMaxSendMessageSize(INT_MAX);
}

}  // namespace braid
