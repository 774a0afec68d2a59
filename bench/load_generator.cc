#include "bench/load_generator.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
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

// One run. Thread-safe: replies come on gRPC's threads.
class Load {
 public:
  Load(const LoadOptions& options, const std::vector<std::unique_ptr<Stub>>& stubs,
       inference::ModelInferRequest request)
      : options_(options), stubs_(stubs), request_(std::move(request)) {}

  LoadReport Run() {
    start_ = absl::Now();
    if (options_.rate > 0) {
      SendByTheClock();
    } else {
      SendInPlaces();
    }
    const absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(
        +[](int64_t* open) { return *open == 0; }, &open_));
    LoadReport report = std::move(report_);
    report.seconds = absl::ToDoubleSeconds(absl::Now() - start_);
    return report;
  }

 private:
  struct Call {
    grpc::ClientContext context;
    inference::ModelInferResponse response;
    absl::Time due;
    size_t stub = 0;
    std::function<void()> then;
  };

  void SendInPlaces() {
    for (int place = 0; place < options_.in_flight && Take(); ++place) {
      SendAndAgain(static_cast<size_t>(place));
    }
  }

  void SendAndAgain(size_t stub) {
    Send(absl::Now(), stub, [this, stub] {
      if (Take()) {
        SendAndAgain(stub);
      }
    });
  }

  void SendByTheClock() {
    for (int64_t sent = 0; Take(); ++sent) {
      const absl::Time due = start_ + absl::Seconds(static_cast<double>(sent) / options_.rate);
      absl::SleepFor(due - absl::Now());
      Send(due, static_cast<size_t>(sent), [] {});
    }
  }

  // Whether one more is to be sent; it counts as open from here.
  bool Take() ABSL_LOCKS_EXCLUDED(mu_) {
    const bool in_time = absl::Now() - start_ < options_.time;
    const absl::MutexLock lock(&mu_);
    if (options_.requests > 0 ? taken_ == options_.requests : !in_time) {
      return false;
    }
    ++taken_;
    ++open_;
    return true;
  }

  void Send(absl::Time due, size_t stub, std::function<void()> then) {
    auto* call = new Call;
    call->due = due;
    call->then = std::move(then);
    if (!options_.token.empty()) {
      call->context.AddMetadata("authorization", absl::StrCat("Bearer ", options_.token));
    }
    stubs_[stub % stubs_.size()]->async()->ModelInfer(
        &call->context, &request_, &call->response, [this, call](const grpc::Status& status) {
          std::unique_ptr<Call> owned(call);
          Record(status, absl::ToDoubleSeconds(absl::Now() - owned->due));
          owned->then();
          // It holds the channel, whose end, if this were the last to let go of it, would wait for
          // the thread that this is.
          owned.reset();
          const absl::MutexLock lock(&mu_);
          --open_;
        });
  }

  void Record(const grpc::Status& status, double seconds) ABSL_LOCKS_EXCLUDED(mu_) {
    const absl::MutexLock lock(&mu_);
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
  absl::Time start_;

  absl::Mutex mu_;
  int64_t taken_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t open_ ABSL_GUARDED_BY(mu_) = 0;
  LoadReport report_ ABSL_GUARDED_BY(mu_);
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
