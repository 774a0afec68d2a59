#include "server/rpc/transport.h"

#include <climits>
#include <cstddef>

#include "absl/strings/str_cat.h"

namespace braid {
namespace {

// For a connection to say that it is HTTP/2: one that does not is ended. gRPC's own is 2 minutes.
constexpr int kHandshakeMilliseconds = 20'000;

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

void ConfigureTransport(grpc::ServerBuilder* builder, absl::Duration max_age) {
  // Else a second server could share the port and take half of the first one's clients.
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // A batch of megabytes comes in few pieces, and without waiting for the window to open. By
  // default frames are of 16 KiB, reads of 8, and the window is of 64 at first.
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, 4 << 20);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 4 << 20);
  builder->AddChannelArgument(GRPC_ARG_TCP_READ_CHUNK_SIZE, 256 << 10);
  builder->AddChannelArgument(GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE, 4 << 20);
  builder->AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeMilliseconds);
  if (max_age != absl::InfiniteDuration()) {
    builder->AddChannelArgument(
        GRPC_ARG_MAX_CONNECTION_AGE_MS,
        static_cast<int>(absl::ToInt64Milliseconds(absl::Ceil(max_age, absl::Milliseconds(1)))));
  }
  builder->SetMaxReceiveMessageSize(INT_MAX);
  builder->SetMaxSendMessageSize(INT_MAX);
}

}  // namespace braid
