// The bytes of a tensor that are copied between the message and the model, and back.
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "server/batching/batch_queue.h"
#include "server/models/input_check.h"
#include "server/rpc/tensor_codec.h"
#include "tests/fakes/puppet_queue.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using Tensors = std::vector<at::Tensor>;

// A message with rows of "x" FP32 [rows, 1], in raw contents or in typed ones.
inference::ModelInferRequest Message(int64_t rows, bool raw) {
  inference::ModelInferRequest message;
  auto* input = message.add_inputs();
  input->set_name("x");
  input->set_datatype("FP32");
  input->add_shape(rows);
  input->add_shape(1);
  std::vector<float> values(static_cast<size_t>(rows));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(i);
  }
  if (raw) {
    message.add_raw_input_contents(values.data(), values.size() * sizeof(float));
  } else {
    input->mutable_contents()->mutable_fp32_contents()->Add(values.begin(), values.end());
  }
  return message;
}

// Counts the bytes that lie elsewhere than where they were: of the model's inputs outside of the
// messages, and of the answers outside of what the model gave.
class CopyCounter {
 public:
  void Expect(const void* begin, size_t bytes) {
    const absl::MutexLock lock(&mu_);
    known_.push_back({static_cast<const char*>(begin), bytes});
  }
  void Count(const void* data, size_t bytes) {
    const absl::MutexLock lock(&mu_);
    const char* const begin = static_cast<const char*>(data);
    for (const auto& [from, size] : known_) {
      if (begin >= from && begin + bytes <= from + size) {
        return;
      }
    }
    copied_ += bytes;
  }
  size_t copied() const {
    const absl::MutexLock lock(&mu_);
    return copied_;
  }

 private:
  mutable absl::Mutex mu_;
  std::vector<std::pair<const char*, size_t>> known_ ABSL_GUARDED_BY(mu_);
  size_t copied_ ABSL_GUARDED_BY(mu_) = 0;
};

// Sends messages of `rows` rows each, at once, through two workers.
class CopiedBytesTest : public ::testing::Test {
 protected:
  void Send(const std::vector<int64_t>& rows, bool raw, int64_t max_batch_size) {
    const auto queue = MakeQueue(&fleet_, PuppetConfig(max_batch_size),
                                 [this](const Tensors& inputs) -> absl::StatusOr<Tensors> {
                                   in_.Count(inputs[0].data_ptr(), inputs[0].nbytes());
                                   at::Tensor output = inputs[0].add(1);
                                   out_.Expect(output.data_ptr(), output.nbytes());
                                   return Tensors{output};
                                 });
    std::vector<inference::ModelInferRequest> messages;
    for (const int64_t each : rows) {
      messages.push_back(Message(each, raw));
    }
    std::vector<PendingInference> answers(rows.size());
    {
      const WorkerBlock first(fleet_.worker(0));
      const WorkerBlock second(fleet_.worker(1));
      for (size_t m = 0; m < messages.size(); ++m) {
        const auto& message = messages[m];
        const size_t bytes = static_cast<size_t>(rows[m]) * sizeof(float);
        in_.Expect(raw ? static_cast<const void*>(message.raw_input_contents(0).data())
                       : message.inputs(0).contents().fp32_contents().data(),
                   bytes);
        BRAID_ASSERT_OK_AND_ASSIGN(auto tensors, ReadInputs(message));
        BRAID_ASSERT_OK_AND_ASSIGN(auto inputs,
                                   CheckInputs(queue->config(), std::move(tensors), "inputs"));
        ASSERT_THAT(queue->Push(MakeRequest(inputs[0], &answers[m])), IsOk());
      }
    }
    for (PendingInference& answer : answers) {
      ASSERT_THAT(answer.Wait(), IsOk());
      const GatheredTensor& output = answer.Wait()->outputs[0];
      for (const HostTensor& piece : output.pieces) {
        out_.Count(piece.data, piece.bytes);
      }
      inference::ModelInferResponse response;
      WriteOutput(output, &response);
      EXPECT_EQ(response.raw_output_contents(0).size(), output.bytes);
    }
  }

  CopyCounter in_;
  CopyCounter out_;
  WorkerFleet fleet_{2};
};

TEST_F(CopiedBytesTest, OfOneRequestNone) {
  Send({1000}, /*raw=*/true, /*max_batch_size=*/4096);
  EXPECT_EQ(in_.copied(), 0);
  EXPECT_EQ(out_.copied(), 0);
}

TEST_F(CopiedBytesTest, OfOneInTypedContentsNone) {
  Send({1000}, /*raw=*/false, /*max_batch_size=*/4096);
  EXPECT_EQ(in_.copied(), 0);
  EXPECT_EQ(out_.copied(), 0);
}

TEST_F(CopiedBytesTest, OfOneThatIsSplitNone) {
  Send({1000}, /*raw=*/true, /*max_batch_size=*/64);
  EXPECT_EQ(in_.copied(), 0);
  EXPECT_EQ(out_.copied(), 0);
}

TEST_F(CopiedBytesTest, OfThoseThatAreMergedEachOnce) {
  Send({3, 2, 3}, /*raw=*/true, /*max_batch_size=*/8);
  EXPECT_EQ(in_.copied(), 8 * sizeof(float));
  EXPECT_EQ(out_.copied(), 0);
}

}  // namespace
}  // namespace braid
