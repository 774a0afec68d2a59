#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/rpc/inference/infer.h"
#include "tests/fakes/fake_decoder.h"
#include "tests/fakes/made_config.h"
#include "tests/fakes/pending.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Completes each request at once with its inputs as outputs, and keeps them. Thread-safe.
class EchoQueue final : public RequestQueue {
 public:
  EchoQueue(ModelConfig config, bool ordered)
      : config_(std::move(config)),
        arrivals_(ordered ? std::make_unique<OrderedReplies>() : nullptr) {}

  absl::Status Push(std::shared_ptr<InferenceRequest> request, RunMode mode) override {
    EXPECT_TRUE(request->TryStart(absl::Now()));
    {
      const absl::MutexLock lock(&mu_);
      BRAID_RETURN_IF_ERROR(full_);
      requests_.push_back({request->inputs(), request->rows(), request->schedule(), mode});
    }
    request->Finish(0, request->rows(), request->inputs(), "cpu:0", version(), {});
    return absl::OkStatus();
  }
  OrderedReplies* arrivals() const override { return arrivals_.get(); }
  void CountDecoded(int64_t rows, absl::Duration) override {
    const absl::MutexLock lock(&mu_);
    decoded_rows_ += rows;
  }
  void CountDecodeFailure() override {
    const absl::MutexLock lock(&mu_);
    ++decode_failures_;
  }
  const ModelConfig& config() const override { return config_; }
  int64_t version() const override { return 3; }
  const ModelStatistics& statistics() const override { return statistics_; }

  struct Pushed {
    std::vector<HostTensor> inputs;
    int64_t rows = 0;
    InferenceRequest::Schedule schedule;
    RunMode mode = RunMode::kOnWorker;
  };
  std::vector<Pushed> requests() const {
    const absl::MutexLock lock(&mu_);
    return requests_;
  }
  int64_t decoded_rows() const {
    const absl::MutexLock lock(&mu_);
    return decoded_rows_;
  }
  int64_t decode_failures() const {
    const absl::MutexLock lock(&mu_);
    return decode_failures_;
  }
  void SetFull() {
    const absl::MutexLock lock(&mu_);
    full_ = absl::ResourceExhaustedError("the queue is full");
  }

 private:
  const ModelConfig config_;
  const std::unique_ptr<OrderedReplies> arrivals_;
  const ModelStatistics statistics_;
  mutable absl::Mutex mu_;
  std::vector<Pushed> requests_ ABSL_GUARDED_BY(mu_);
  int64_t decoded_rows_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t decode_failures_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status full_ ABSL_GUARDED_BY(mu_);
};

// A call of SubmitRequest().
struct Call {
  inference::ModelInferRequest request;
  inference::ModelInferResponse response;
  CallFacts facts;
  Ticket ticket;
  absl::Time deadline = absl::InfiniteFuture();
  std::shared_ptr<Cancellation> cancellation = std::make_shared<Cancellation>();
  Pending<absl::Status> answer;
};

void AddInput(const std::string& name, const std::string& type, const std::vector<int64_t>& shape,
              const std::string& data, inference::ModelInferRequest* request) {
  auto* input = request->add_inputs();
  input->set_name(name);
  input->set_datatype(type);
  input->mutable_shape()->Assign(shape.begin(), shape.end());
  request->add_raw_input_contents(data);
}

void AddRows(const std::string& name, const std::vector<std::string>& rows,
             inference::ModelInferRequest* request) {
  std::string data;
  for (const std::string& row : rows) {
    data += std::string{static_cast<char>(row.size()), 0, 0, 0} + row;
  }
  AddInput(name, "BYTES", {static_cast<int64_t>(rows.size())}, data, request);
}

std::string TextOf(const HostTensor& tensor) {
  return {static_cast<const char*>(tensor.data), tensor.bytes};
}

class SubmitRequestTest : public ::testing::Test {
 protected:
  // Inputs x and m, UINT8 [B, any]. x is decoded to rows of `width` bytes, and m is its mask.
  void SetUp() override { MakeQueue(2); }
  void MakeQueue(int64_t width, bool ordered = false, FakeDecoder::OnDecode on_decode = nullptr) {
    ModelConfig config =
        MakeConfig(8, {{"x", DataType::kUint8, {-1}}, {"m", DataType::kUint8, {-1}}},
                   {{"x", DataType::kUint8, {-1}}, {"m", DataType::kUint8, {-1}}});
    config.inputs[0].decode = ImageSpec();  // Its memory counts by the tensors only.
    config.inputs[0].decoder = std::make_shared<FakeDecoder>(width, "m", std::move(on_decode));
    queue_ = std::make_shared<EchoQueue>(std::move(config), ordered);
  }

  absl::Status Submit(Call* call) {
    auto ticket = admission_.Admit(1);
    EXPECT_THAT(ticket, IsOk());
    call->ticket = *std::move(ticket);
    InferContext context;
    context.decode_threads = &threads_;
    context.run_mode = RunMode::kMayRunInline;
    return SubmitRequest(context, queue_,
                         {.request = &call->request,
                          .response = &call->response,
                          .facts = &call->facts,
                          .ticket = &call->ticket,
                          .deadline = call->deadline,
                          .cancellation = call->cancellation,
                          .done = call->answer.done()});
  }
  // Submits and waits.
  absl::Status Run(Call* call) {
    BRAID_RETURN_IF_ERROR(Submit(call));
    return call->answer.Wait();
  }

  Admission admission_{{.requests = 100, .bytes = 1000}};
  std::shared_ptr<EchoQueue> queue_;
  DecodeThreads threads_{2};
};

TEST_F(SubmitRequestTest, DecodesRowsAndFillsTheMask) {
  Call call;
  AddRows("x", {"ab", "cd", "ef"}, &call.request);
  ASSERT_THAT(Run(&call), IsOk());
  ASSERT_EQ(queue_->requests().size(), 1);
  const EchoQueue::Pushed pushed = queue_->requests()[0];
  EXPECT_EQ(TextOf(pushed.inputs[0]), "abcdef");
  EXPECT_EQ(TextOf(pushed.inputs[1]), std::string(6, 1));
  EXPECT_EQ(pushed.rows, 3);
  EXPECT_GT(pushed.schedule.decoding, absl::ZeroDuration());
  EXPECT_EQ(pushed.mode, RunMode::kOnWorker);
  EXPECT_EQ(call.facts.rows, 3);
  EXPECT_EQ(call.response.model_version(), "3");
  EXPECT_EQ(call.response.raw_output_contents(0), "abcdef");
  EXPECT_EQ(queue_->decoded_rows(), 3);
}

TEST_F(SubmitRequestTest, TensorsAreNotDecoded) {
  Call call;
  AddInput("x", "UINT8", {1, 3}, "abc", &call.request);
  AddInput("m", "UINT8", {1, 3}, "xyz", &call.request);
  ASSERT_THAT(Run(&call), IsOk());
  EXPECT_EQ(TextOf(queue_->requests()[0].inputs[0]), "abc");
  EXPECT_EQ(queue_->requests()[0].mode, RunMode::kMayRunInline);
  EXPECT_EQ(queue_->decoded_rows(), 0);
  Call without_mask;
  AddInput("x", "UINT8", {1, 3}, "abc", &without_mask.request);
  EXPECT_THAT(Run(&without_mask), RefusesField("inputs", HasSubstr("'m' is missing")));
}

TEST_F(SubmitRequestTest, AMaskOfTheRequestReplacesTheDecoders) {
  Call call;
  AddInput("m", "UINT8", {1, 2}, "xy", &call.request);
  AddRows("x", {"ab"}, &call.request);
  ASSERT_THAT(Run(&call), IsOk());
  EXPECT_EQ(TextOf(queue_->requests()[0].inputs[1]), "xy");
}

TEST_F(SubmitRequestTest, ErrorsNameThePositionInTheRequest) {
  Call call;
  AddRows("x", {"ab"}, &call.request);
  AddInput("m", "INT8", {1, 2}, "xy", &call.request);
  EXPECT_THAT(Run(&call), RefusesField("inputs[1].datatype", HasSubstr("'m'")));
}

TEST_F(SubmitRequestTest, AnUnreadableRowFailsTheRequest) {
  Call call;
  AddRows("x", {"ab", "c"}, &call.request);
  EXPECT_THAT(Run(&call),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("input 'x', row 1: 1 bytes")));
  EXPECT_TRUE(queue_->requests().empty());
  EXPECT_EQ(queue_->decode_failures(), 1);
}

TEST_F(SubmitRequestTest, DecodedTensorsCountAsBytesInFlight) {
  absl::Notification go_on;
  MakeQueue(100, /*ordered=*/false,
            [&](absl::Span<const EncodedRow>) { go_on.WaitForNotification(); });
  Call call;
  AddRows("x", {std::string(100, 'a'), std::string(100, 'b')}, &call.request);
  ASSERT_THAT(Submit(&call), IsOk());
  EXPECT_EQ(admission_.bytes_in_flight(), 1 + 2 * 2 * 100);  // with the mask
  go_on.Notify();
  EXPECT_THAT(call.answer.Wait(), IsOk());
}

TEST_F(SubmitRequestTest, RejectsRowsThatWouldExceedTheBytesInFlight) {
  MakeQueue(100);
  Call call;
  AddRows("x", std::vector<std::string>(6, "tiny"), &call.request);
  EXPECT_THAT(Submit(&call), StatusIs(absl::StatusCode::kResourceExhausted,
                                      AllOf(HasSubstr("1200"), HasSubstr("--max_request_bytes"))));
  EXPECT_FALSE(call.answer.answered());
}

TEST_F(SubmitRequestTest, ACancelledRequestIsNotDecodedFurther) {
  absl::Notification started;
  absl::Notification go_on;
  MakeQueue(1, /*ordered=*/false, [&](absl::Span<const EncodedRow> rows) {
    if (rows[0].row == 0) {
      started.Notify();
    }
    go_on.WaitForNotification();  // on all threads
  });
  Call call;
  AddRows("x", std::vector<std::string>(100, "a"), &call.request);
  ASSERT_THAT(Submit(&call), IsOk());
  started.WaitForNotification();
  call.cancellation->Cancel();
  go_on.Notify();
  EXPECT_THAT(call.answer.Wait(), StatusIs(absl::StatusCode::kCancelled, HasSubstr("client")));
  EXPECT_TRUE(queue_->requests().empty());
  EXPECT_EQ(queue_->decode_failures(), 0);
}

TEST_F(SubmitRequestTest, ALateRequestIsNotDecoded) {
  MakeQueue(1, /*ordered=*/false, [](absl::Span<const EncodedRow>) { ADD_FAILURE(); });
  Call call;
  AddRows("x", {"a"}, &call.request);
  call.deadline = absl::Now() - absl::Seconds(1);
  EXPECT_THAT(Run(&call), StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("decoded")));
}

TEST_F(SubmitRequestTest, AFullQueueFailsADecodedRequest) {
  queue_->SetFull();
  Call call;
  AddRows("x", {"ab"}, &call.request);
  EXPECT_THAT(Run(&call), StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("full")));
}

TEST_F(SubmitRequestTest, OrderedRequestsAreQueuedInTheOrderOfArrival) {
  absl::Notification go_on;
  MakeQueue(1, /*ordered=*/true, [&](absl::Span<const EncodedRow> rows) {
    if (rows[0].bytes == "a") {
      go_on.WaitForNotification();
    }
  });
  std::vector<Call> calls(4);
  AddRows("x", {"a"}, &calls[0].request);
  AddRows("x", {"wrong"}, &calls[1].request);
  AddRows("x", {"b"}, &calls[2].request);
  AddInput("x", "UINT8", {1, 1}, "c", &calls[3].request);
  AddInput("m", "UINT8", {1, 1}, "c", &calls[3].request);
  for (Call& call : calls) {
    ASSERT_THAT(Submit(&call), IsOk());
  }
  EXPECT_THAT(calls[1].answer.Wait(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("x")));
  EXPECT_TRUE(queue_->requests().empty());
  go_on.Notify();
  for (const size_t i : {0, 2, 3}) {
    EXPECT_THAT(calls[i].answer.Wait(), IsOk());
  }
  std::vector<std::string> order;
  for (const EchoQueue::Pushed& pushed : queue_->requests()) {
    order.push_back(TextOf(pushed.inputs[0]));
  }
  EXPECT_THAT(order, ElementsAre("a", "b", "c"));
}

}  // namespace
}  // namespace braid
