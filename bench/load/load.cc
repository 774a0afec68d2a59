// braid-bench-load: sends inference requests to a server and prints one line of JSON with counts
// and latencies. The benchmarks use it for cases that Triton's perf_analyzer does not cover.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "bench/common/run_main.h"
#include "grpcpp/grpcpp.h"
#include "inference/grpc_service.grpc.pb.h"

namespace braid::bench {
namespace {

using Stub = inference::GRPCInferenceService::Stub;

struct LoadOptions {
  std::string server = "127.0.0.1:8001";
  std::string model = "mlp";
  std::string input = "x";
  // Shape of the FP32 input, rows first.
  std::vector<int64_t> shape = {1, 784};
  // Connections that share the requests in flight.
  int connections = 1;
  // Closed loop: number of requests in flight. Each reply triggers the next request.
  int in_flight = 8;
  // Open loop, if not 0: requests per second, sent on schedule whether or not replies have arrived.
  double rate = 0;
  // The run ends after `requests` requests or, if that is 0, after `time`.
  int64_t requests = 0;
  absl::Duration time = absl::Seconds(1);
  // Sends the input in system shared memory, which is registered with the server first.
  bool shared_memory = false;
  // Bearer token for each request. Empty for none.
  std::string token = {};
  // Certificate authority of the server, in PEM. Empty for plaintext.
  std::string ca = {};
};

struct LoadReport {
  // Latencies in seconds, from sending (open loop: from the scheduled time) to the reply.
  std::vector<double> completed;
  // Latencies of requests that the server rejected with RESOURCE_EXHAUSTED.
  std::vector<double> refused;
  int64_t failed = 0;
  absl::Status first_error;
  double seconds = 0;
};

absl::Status WriteRegion(const std::string& key, const void* data, size_t bytes) {
  const int file = shm_open(key.c_str(), O_CREAT | O_EXCL | O_RDWR, 0600);
  if (file < 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("shm_open ", key));
  }
  absl::Status status;
  const void* const end = static_cast<const char*>(data) + bytes;
  for (const char* next = static_cast<const char*>(data); next != end && status.ok();) {
    const ssize_t written =
        write(file, next, static_cast<size_t>(static_cast<const char*>(end) - next));
    if (written < 0) {
      status = absl::ErrnoToStatus(errno, absl::StrCat("write to ", key));
    } else {
      next += written;
    }
  }
  close(file);
  return status;
}

// A request's input in system shared memory, by Triton's extension. Registered with the server
// during the object's lifetime.
class SharedInput {
 public:
  // `stub` must outlive this object. Returns the server's error if it does not allow shared memory.
  static absl::StatusOr<std::unique_ptr<SharedInput>> Create(Stub* stub,
                                                             const std::vector<float>& values);
  ~SharedInput();
  SharedInput(const SharedInput&) = delete;
  SharedInput& operator=(const SharedInput&) = delete;

  // Makes `input` refer to the shared memory.
  void Refer(inference::ModelInferRequest::InferInputTensor* input) const;

 private:
  SharedInput(Stub* stub, std::string key, size_t bytes)
      : stub_(stub), key_(std::move(key)), bytes_(bytes) {}

  Stub* const stub_;
  const std::string key_;  // key and name of the region
  const size_t bytes_;
};

absl::StatusOr<std::unique_ptr<SharedInput>> SharedInput::Create(Stub* stub,
                                                                 const std::vector<float>& values) {
  const size_t bytes = values.size() * sizeof(float);
  const std::string key = absl::StrCat("/bench-", getpid());
  if (absl::Status status = WriteRegion(key, values.data(), bytes); !status.ok()) {
    shm_unlink(key.c_str());
    return status;
  }
  std::unique_ptr<SharedInput> shared(new SharedInput(stub, key, bytes));
  grpc::ClientContext context;
  inference::SystemSharedMemoryRegisterRequest request;
  inference::SystemSharedMemoryRegisterResponse response;
  request.set_name(key);
  request.set_key(key);
  request.set_byte_size(bytes);
  const grpc::Status status = stub->SystemSharedMemoryRegister(&context, request, &response);
  if (!status.ok()) {
    return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  }
  return shared;
}

SharedInput::~SharedInput() {
  grpc::ClientContext context;
  inference::SystemSharedMemoryUnregisterRequest request;
  inference::SystemSharedMemoryUnregisterResponse response;
  request.set_name(key_);
  stub_->SystemSharedMemoryUnregister(&context, request, &response);
  shm_unlink(key_.c_str());
}

void SharedInput::Refer(inference::ModelInferRequest::InferInputTensor* input) const {
  auto& parameters = *input->mutable_parameters();
  parameters["shared_memory_region"].set_string_param(key_);
  parameters["shared_memory_byte_size"].set_int64_param(static_cast<int64_t>(bytes_));
}

// Sets large HTTP/2 frames and reads, like the server.
grpc::ChannelArguments Arguments() {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // one connection per channel
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

// One run. A single thread receives the replies and, in a closed loop, also sends, because handing
// work between client threads would take CPU time from the server on the same cores.
class Load {
 public:
  Load(const LoadOptions& options, const std::vector<std::unique_ptr<Stub>>& stubs,
       inference::ModelInferRequest request)
      : options_(options), stubs_(stubs), request_(std::move(request)) {}

  LoadReport Run() {
    start_ = absl::Now();
    if (options_.rate > 0) {
      std::thread sender([this] { SendOnSchedule(); });
      while (Receive() != nullptr) {
      }
      sender.join();
    } else {
      RunClosedLoop();
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
    size_t slot = 0;
  };

  void RunClosedLoop() {
    int sending = 0;
    while (sending < options_.in_flight && TakeRequest()) {
      Send(absl::Now(), static_cast<size_t>(sending++));
    }
    while (sending > 0) {
      const std::unique_ptr<Call> replied = Receive();
      if (TakeRequest()) {
        Send(absl::Now(), replied->slot);
      } else {
        --sending;
      }
    }
    queue_.Shutdown();
    Receive();
  }

  void SendOnSchedule() {
    for (int64_t sent = 0; TakeRequest(); ++sent) {
      const absl::Time due = start_ + absl::Seconds(static_cast<double>(sent) / options_.rate);
      absl::SleepFor(due - absl::Now());
      Send(due, static_cast<size_t>(sent));
    }
    queue_.Shutdown();
  }

  // Returns whether another request should be sent, and counts it.
  bool TakeRequest() {
    if (options_.requests > 0 ? taken_ == options_.requests
                              : absl::Now() - start_ >= options_.time) {
      return false;
    }
    ++taken_;
    return true;
  }

  void Send(absl::Time due, size_t slot) {
    auto call = std::make_unique<Call>();
    call->due = due;
    call->slot = slot;
    if (!options_.token.empty()) {
      call->context.AddMetadata("authorization", absl::StrCat("Bearer ", options_.token));
    }
    call->reader = stubs_[slot % stubs_.size()]->AsyncModelInfer(&call->context, request_, &queue_);
    Call* const tag = call.release();  // Receive() takes ownership.
    tag->reader->Finish(&tag->response, &tag->status, tag);
  }

  // Waits for the next reply. Returns null after shutdown, once all replies have arrived.
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
  int64_t taken_ = 0;  // used by the sending thread only
  LoadReport report_;  // used by the receiving thread only
};

// Runs the load and waits for all replies. Returns an error if the server cannot be reached.
absl::StatusOr<LoadReport> RunLoad(const LoadOptions& options) {
  std::vector<std::unique_ptr<Stub>> stubs;
  for (int c = 0; c < options.connections; ++c) {
    const auto channel =
        grpc::CreateCustomChannel(options.server, Credentials(options), Arguments());
    if (!channel->WaitForConnected(absl::ToChronoTime(absl::Now() + absl::Seconds(10)))) {
      return absl::UnavailableError(absl::StrCat("no server responds at ", options.server));
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

// Returns a percentile in milliseconds (nearest rank); 0 if `sorted` is empty.
double Percentile(const std::vector<double>& sorted, double fraction) {
  if (sorted.empty()) {
    return 0;
  }
  const auto rank = static_cast<size_t>(fraction * static_cast<double>(sorted.size()));
  return 1000 * sorted[std::min(rank, sorted.size() - 1)];
}

std::string Latencies(std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  return absl::StrFormat(R"({"count":%d,"p50_ms":%.4f,"p99_ms":%.4f,"most_ms":%.4f})",
                         seconds.size(), Percentile(seconds, 0.5), Percentile(seconds, 0.99),
                         Percentile(seconds, 1));
}

// Returns the CPU time of this process.
double CpuSeconds() {
  timespec time = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return absl::ToDoubleSeconds(absl::DurationFromTimespec(time));
}

int Main(int argc, char** argv) {
  LoadOptions options;
  double seconds = 1;
  CLI::App app("Sends inference requests to a server and prints one line of JSON");
  app.add_option("--server", options.server, "host:port")->capture_default_str();
  app.add_option("--model", options.model)->capture_default_str();
  app.add_option("--input", options.input, "Name of the FP32 input")->capture_default_str();
  app.add_option("--shape", options.shape, "Shape of the input, rows first")->delimiter(',');
  app.add_option("--connections", options.connections)->check(CLI::Range(1, 1024));
  app.add_option("--in_flight", options.in_flight, "Requests in flight of the closed loop")
      ->check(CLI::Range(1, 65536));
  app.add_option("--rate", options.rate,
                 "Requests per second of an open loop; 0 runs a closed loop");
  app.add_option("--requests", options.requests, "Number of requests; 0 runs for --seconds");
  app.add_option("--seconds", seconds);
  app.add_flag("--shared_memory", options.shared_memory, "Send the input in system shared memory");
  std::string ca_file;
  app.add_option("--token", options.token,
                 "Bearer token; visible to other users in the process list");
  app.add_option("--ca", ca_file, "Certificate authority of the server; enables TLS")
      ->check(CLI::ExistingFile);
  CLI11_PARSE(app, argc, argv);
  options.time = absl::Seconds(seconds);
  if (!ca_file.empty()) {
    std::ifstream file(ca_file);
    options.ca.assign(std::istreambuf_iterator<char>(file), {});
  }

  const absl::StatusOr<LoadReport> report = RunLoad(options);
  const absl::Status status = report.ok() ? report->first_error : report.status();
  if (!status.ok()) {
    std::fprintf(stderr, "load: %s\n", status.ToString().c_str());
    return 1;
  }
  std::printf(R"({"seconds":%.6f,"cpu_seconds":%.6f,"completed":%s,"refused":%s})"
              "\n",
              report->seconds, CpuSeconds(), Latencies(report->completed).c_str(),
              Latencies(report->refused).c_str());
  return 0;
}

}  // namespace
}  // namespace braid::bench

int main(int argc, char** argv) {
  return braid::bench::RunMain("load", braid::bench::Main, argc, argv);
}
