// The bytes of a tensor that are copied between the message and the model, and back. Before that
// they are gathered once, by protobuf: on the wire a message comes in frames, and a tensor is in
// one piece.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "server/models/input_check.h"
#include "server/rpc/inference/tensor_codec.h"
#include "tests/fakes/copy_probe.h"
#include "tests/fakes/pending.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using Memory = CopyProbe::Memory;

// A message with rows of "x" FP32 [rows, 1], in raw contents or in typed ones.
inference::ModelInferRequest Message(int64_t rows, bool raw) {
  inference::ModelInferRequest message;
  auto* input = message.add_inputs();
  input->set_name("x");
  input->set_datatype("FP32");
  input->add_shape(rows);
  input->add_shape(1);
  const std::vector<float> values(static_cast<size_t>(rows), 1.5F);
  if (raw) {
    message.add_raw_input_contents(values.data(), values.size() * sizeof(float));
  } else {
    input->mutable_contents()->mutable_fp32_contents()->Add(values.begin(), values.end());
  }
  return message;
}

Memory ContentsOf(const inference::ModelInferRequest& message) {
  if (message.raw_input_contents_size() > 0) {
    return {message.raw_input_contents(0).data(), message.raw_input_contents(0).size()};
  }
  const auto& values = message.inputs(0).contents().fp32_contents();
  return {values.data(), static_cast<size_t>(values.size()) * sizeof(float)};
}

// The bytes of `memory` that lie in none of `places`.
size_t BytesElsewhere(const std::vector<Memory>& memory, const std::vector<Memory>& places) {
  size_t elsewhere = 0;
  for (const Memory& each : memory) {
    const char* const begin = static_cast<const char*>(each.data);
    const bool there = std::any_of(places.begin(), places.end(), [&](const Memory& place) {
      const char* const from = static_cast<const char*>(place.data);
      return begin >= from && begin + each.bytes <= from + place.bytes;
    });
    elsewhere += there ? 0 : each.bytes;
  }
  return elsewhere;
}

struct Copied {
  size_t in = 0;
  size_t out = 0;
};

// Sends messages of `rows` rows each, all before the first of them is run.
Copied Send(const std::vector<int64_t>& rows, bool raw, int64_t max_batch_size) {
  CopyProbe probe(max_batch_size);
  std::vector<inference::ModelInferRequest> messages;
  for (const int64_t each : rows) {
    messages.push_back(Message(each, raw));
  }
  std::vector<Memory> contents;
  std::vector<Pending<absl::StatusOr<InferenceResult>>> answers(rows.size());
  for (size_t m = 0; m < messages.size(); ++m) {
    contents.push_back(ContentsOf(messages[m]));
    auto tensors = ReadInputs(messages[m]);
    EXPECT_THAT(tensors, IsOk());
    auto inputs = CheckInputs(probe.queue().config(), *std::move(tensors), "inputs");
    EXPECT_THAT(inputs, IsOk());
    EXPECT_THAT(probe.queue().Push(std::make_shared<InferenceRequest>(
                    *std::move(inputs), rows[m], InferenceRequest::Schedule{}, answers[m].done())),
                IsOk());
  }
  probe.Open();
  std::vector<Memory> answered;
  for (size_t m = 0; m < answers.size(); ++m) {
    const GatheredTensor& output = answers[m].Wait()->outputs[0];
    for (const HostTensor& piece : output.pieces) {
      answered.push_back({piece.data, piece.bytes});
    }
    inference::ModelInferResponse response;
    WriteOutput(output, &response);
    const std::vector<float> expected(static_cast<size_t>(rows[m]), 3.0F);
    const std::string& written = response.raw_output_contents(0);
    EXPECT_EQ(written, std::string(reinterpret_cast<const char*>(expected.data()), output.bytes));
  }
  return {BytesElsewhere(probe.inputs(), contents), BytesElsewhere(answered, probe.outputs())};
}

TEST(CopiedBytesTest, ASingleRequestIsNotCopied) {
  const Copied copied = Send({1000}, /*raw=*/true, /*max_batch_size=*/4096);
  EXPECT_EQ(copied.in, 0);
  EXPECT_EQ(copied.out, 0);
}

TEST(CopiedBytesTest, TypedContentsAreNotCopied) {
  const Copied copied = Send({1000}, /*raw=*/false, /*max_batch_size=*/4096);
  EXPECT_EQ(copied.in, 0);
  EXPECT_EQ(copied.out, 0);
}

TEST(CopiedBytesTest, ASplitRequestIsNotCopied) {
  const Copied copied = Send({1000}, /*raw=*/true, /*max_batch_size=*/64);
  EXPECT_EQ(copied.in, 0);
  EXPECT_EQ(copied.out, 0);
}

TEST(CopiedBytesTest, MergedRequestsAreCopiedOnce) {
  const Copied copied = Send({3, 2, 3}, /*raw=*/true, /*max_batch_size=*/8);
  EXPECT_EQ(copied.in, 8 * sizeof(float));
  EXPECT_EQ(copied.out, 0);
}

}  // namespace
}  // namespace braid
