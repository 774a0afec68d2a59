#include "bench/load_generator.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "bench/shared_input.h"
#include "grpcpp/grpcpp.h"
#include "inference/grpc_service.grpc.pb.h"

namespace braid::bench {
namespace {

using Stub = inference::GRPCInferenceService::Stub;

// Frames and reads of megabytes, as the server has them.
grpc::ChannelArguments Arguments() {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection for each channel
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, 4 << 20);
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 4 << 20);
  arguments.SetInt(GRPC_ARG_TCP_READ_CHUNK_SIZE, 256 << 10);
  arguments.SetInt(GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE, 4 << 20);
  return arguments;
}

std::shared_ptr<grpc::ChannelCredentials> Credentials(const LoadOptions& options) {
  if (options.ca.empty()) {
    return grpc::InsecureChannelCredentials();
  }
  grpc::SslCredentialsOptions tls;
  tls.pem_root_certs = options.ca;
  return grpc::SslCredentials(tls);
}

std::vector<float> Values(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t size : shape) {
    count *= size;
  }
  return std::vector<float>(static_cast<size_t>(count), 0.5F);
}

inference::ModelInferRequest Request(const LoadOptions& options, const SharedInput* shared) {
  inference::ModelInferRequest request;
  request.set_model_name(options.model);
  auto* input = request.add_inputs();
  input->set_name(options.input);
  input->set_datatype("FP32");
  input->mutable_shape()->Assign(options.shape.begin(), options.shape.end());
  if (shared != nullptr) {
    shared->Refer(input);
  } else {
    const std::vector<float> values = Values(options.shape);
    request.add_raw_input_contents(values.data(), values.size() * sizeof(float));
  }
  return request;
}

// One run. One thread takes the replies and, in a closed loop, sends too: what the client's threads
// hand to one another is taken from the server that is measured on the same cores.
class Load {
 public:
  Load(const LoadOptions& options, const std::vector<std::unique_ptr<Stub>>& stubs,
       inference::ModelInferRequest request)
      : options_(options), stubs_(stubs), request_(std::move(request)) {}

  LoadReport Run() {
    start_ = absl::Now();
    if (options_.rate > 0) {
      std::thread sender([this] { SendByTheClock(); });
      while (Receive() != nullptr) {
      }
      sender.join();
    } else {
      SendInPlaces();
    }
    report_.seconds = absl::ToDoubleSeconds(absl::Now() - start_);
    return std::move(report_);
  }

 private:
  struct Call {
    grpc::ClientContext context;
    inference::ModelInferResponse response;
    grpc::Status status;
    std::unique_ptr<grpc::ClientAsyncResponseReader<inference::ModelInferResponse>> reader;
    absl::Time due;
    size_t place = 0;
  };

  void SendInPlaces() {
    int sending = 0;
    while (sending < options_.in_flight && Take()) {
      Send(absl::Now(), static_cast<size_t>(sending++));
    }
    while (sending > 0) {
      const std::unique_ptr<Call> replied = Receive();
      if (Take()) {
        Send(absl::Now(), replied->place);
      } else {
        --sending;
      }
    }
    queue_.Shutdown();
    Receive();
  }

  void SendByTheClock() {
    for (int64_t sent = 0; Take(); ++sent) {
      const absl::Time due = start_ + absl::Seconds(static_cast<double>(sent) / options_.rate);
      absl::SleepFor(due - absl::Now());
      Send(due, static_cast<size_t>(sent));
    }
    queue_.Shutdown();
  }

  // Whether one more is to be sent.
  bool Take() {
    if (options_.requests > 0 ? taken_ == options_.requests
                              : absl::Now() - start_ >= options_.time) {
      return false;
    }
    ++taken_;
    return true;
  }

  void Send(absl::Time due, size_t place) {
    auto call = std::make_unique<Call>();
    call->due = due;
    call->place = place;
    if (!options_.token.empty()) {
      call->context.AddMetadata("authorization", absl::StrCat("Bearer ", options_.token));
    }
    call->reader =
        stubs_[place % stubs_.size()]->AsyncModelInfer(&call->context, request_, &queue_);
    Call* const tag = call.release();  // Receive()'s
    tag->reader->Finish(&tag->response, &tag->status, tag);
  }

  // The next that is replied; nullptr when the queue is shut down and all are.
  std::unique_ptr<Call> Receive() {
    void* tag = nullptr;
    bool ok = false;
    if (!queue_.Next(&tag, &ok)) {
      return nullptr;
    }
    std::unique_ptr<Call> call(static_cast<Call*>(tag));
    Record(call->status, absl::ToDoubleSeconds(absl::Now() - call->due));
    return call;
  }

  void Record(const grpc::Status& status, double seconds) {
    if (status.ok()) {
      report_.completed.push_back(seconds);
    } else if (status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED) {
      report_.refused.push_back(seconds);
    } else {
      ++report_.failed;
      report_.first_error.Update(
          absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message()));
    }
  }

  const LoadOptions& options_;
  const std::vector<std::unique_ptr<Stub>>& stubs_;
  const inference::ModelInferRequest request_;
  grpc::CompletionQueue queue_;
  absl::Time start_;
  int64_t taken_ = 0;  // the sending thread's
  LoadReport report_;  // the receiving thread's
};

}  // namespace

absl::StatusOr<LoadReport> RunLoad(const LoadOptions& options) {
  std::vector<std::unique_ptr<Stub>> stubs;
  for (int c = 0; c < options.connections; ++c) {
    const auto channel =
        grpc::CreateCustomChannel(options.server, Credentials(options), Arguments());
    if (!channel->WaitForConnected(absl::ToChronoTime(absl::Now() + absl::Seconds(10)))) {
      return absl::UnavailableError(absl::StrCat("nothing answers at ", options.server));
    }
    stubs.push_back(inference::GRPCInferenceService::NewStub(channel));
  }
  std::unique_ptr<SharedInput> shared;
  if (options.shared_memory) {
    absl::StatusOr<std::unique_ptr<SharedInput>> made =
        SharedInput::Create(stubs.front().get(), Values(options.shape));
    if (!made.ok()) {
      return made.status();
    }
    shared = *std::move(made);
  }
  Load load(options, stubs, Request(options, shared.get()));
  return load.Run();
}

}  // namespace braid::bench
