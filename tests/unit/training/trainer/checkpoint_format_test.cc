#include "server/training/trainer/checkpoint_format.h"

#include <cmath>
#include <cstdint>
#include <fstream>
#include <limits>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "server/storage/file_sink.h"
#include "tests/fakes/host_tensors.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/temp_dir.h"

namespace braid {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Every field has a value of its own.
TrainerCheckpoint Whole() {
  TrainerCheckpoint checkpoint;
  TrainerProgress& progress = checkpoint.progress;
  progress.model = "m \"quoted\"";
  progress.optimizer = "Adam";
  progress.step = 3;
  progress.skipped = 2;
  progress.sequence = 7;
  progress.fingerprint = {0xfedcba9876543210, 0x8000000000000001};
  progress.last_operator = "some \"client\"";
  progress.schedule = {0.1, -0.0, kInfinity, -kInfinity, 5e-324};
  progress.loss_sum = 1.0 / 3;
  progress.losses = 4;
  progress.reply.step = 3;
  progress.reply.skipped = true;
  progress.reply.model = "served";
  progress.reply.version = 12;
  progress.reply.loss = 0.1 + 0.2;
  progress.reply.gradient_norm = kInfinity;
  progress.reply.lr = 1e-300;
  progress.reply.lrs = {{"", 1e-300}, {"^head\\.", 0.1}};
  progress.reply.chunks = {{"cpu:0", 2, "first", {"[2, 3]"}, {"[2, 4]", "[2]"}},
                           {"cpu:1", 1, "", {}, {}}};
  progress.reply.outputs = {MakeHost<float>("y", {2, 1}, {1.5F, -2}),
                            MakeHost<int64_t>("i", {}, {9})};
  TrainingSnapshot& tensors = checkpoint.tensors;
  tensors.model = {{MakeHost<double>("w", {2}, {1, 2}), true},
                   {MakeHost<int64_t>("calls", {}, {5}), false}};
  tensors.optimizer = {MakeHost<double>("w.exp_avg", {2}, {3, 4})};
  tensors.parameters = {"w"};
  tensors.updates = {3};
  tensors.gradients = {MakeHost<double>("0/w", {2}, {5, 6}), MakeHost<double>("1/w", {2}, {7, 8})};
  tensors.accumulated = 2;
  tensors.overflow = true;
  tensors.grad_scaler = {65536, 3};
  return checkpoint;
}

class CheckpointFormatTest : public ::testing::Test {
 protected:
  // Writes the files of `checkpoint` and returns their paths.
  std::map<std::string, std::string> Write(const TrainerCheckpoint& checkpoint) {
    std::map<std::string, std::string> paths;
    for (const NewFile& file : CheckpointFiles(checkpoint)) {
      paths[file.name] = (dir_.path() / file.name).string();
      auto sink = FileSink::Create(paths[file.name]);
      EXPECT_THAT(sink, IsOk());
      EXPECT_THAT(file.write(&*sink), IsOk());
      EXPECT_THAT(sink->Finish(), IsOk());
    }
    return paths;
  }
  absl::StatusOr<TrainerCheckpoint> RoundTrip(const TrainerCheckpoint& checkpoint) {
    return ReadTrainerCheckpoint(WriteState(checkpoint), Write(checkpoint));
  }

  const TempDir dir_;
};

void ExpectSame(const HostTensor& a, const HostTensor& b) {
  EXPECT_EQ(a.name, b.name);
  EXPECT_EQ(a.type, b.type);
  EXPECT_EQ(a.shape, b.shape);
  EXPECT_EQ(ValuesOf<char>(a), ValuesOf<char>(b)) << a.name;
}

TEST_F(CheckpointFormatTest, ProgressComesBackWithEveryBit) {
  const TrainerProgress expected = Whole().progress;
  BRAID_ASSERT_OK_AND_ASSIGN(const TrainerCheckpoint read, RoundTrip(Whole()));
  const TrainerProgress& progress = read.progress;
  EXPECT_EQ(progress.model, expected.model);
  EXPECT_EQ(progress.optimizer, expected.optimizer);
  EXPECT_EQ(progress.step, 3);
  EXPECT_EQ(progress.skipped, 2);
  EXPECT_EQ(progress.sequence, 7);
  EXPECT_EQ(progress.fingerprint, expected.fingerprint);
  EXPECT_EQ(progress.last_operator, expected.last_operator);
  EXPECT_EQ(progress.schedule, expected.schedule);
  EXPECT_TRUE(std::signbit(progress.schedule[1]));
  EXPECT_EQ(progress.loss_sum, expected.loss_sum);
  EXPECT_EQ(progress.losses, 4);
}

TEST_F(CheckpointFormatTest, TheRecordedReplyComesBack) {
  const OperationResult expected = Whole().progress.reply;
  BRAID_ASSERT_OK_AND_ASSIGN(const TrainerCheckpoint read, RoundTrip(Whole()));
  const OperationResult& reply = read.progress.reply;
  EXPECT_EQ(reply.applied_sequence, 7);
  EXPECT_EQ(reply.step, 3);
  EXPECT_TRUE(reply.skipped);
  EXPECT_EQ(reply.model, "served");
  EXPECT_EQ(reply.version, 12);
  EXPECT_EQ(reply.loss, expected.loss);
  EXPECT_EQ(reply.gradient_norm, expected.gradient_norm);
  EXPECT_EQ(reply.lr, expected.lr);
  EXPECT_EQ(reply.lrs, expected.lrs);
  ASSERT_EQ(reply.chunks.size(), 2);
  EXPECT_EQ(reply.chunks[0].device, "cpu:0");
  EXPECT_EQ(reply.chunks[0].rows, 2);
  EXPECT_EQ(reply.chunks[0].stage, "first");
  EXPECT_THAT(reply.chunks[0].input_shapes, ElementsAre("[2, 3]"));
  EXPECT_THAT(reply.chunks[0].output_shapes, ElementsAre("[2, 4]", "[2]"));
  EXPECT_THAT(reply.chunks[1].input_shapes, IsEmpty());
  ASSERT_EQ(reply.outputs.size(), 2);
  ExpectSame(reply.outputs[0], expected.outputs[0]);
  ExpectSame(reply.outputs[1], expected.outputs[1]);
}

TEST_F(CheckpointFormatTest, TensorsComeBack) {
  const TrainingSnapshot expected = Whole().tensors;
  BRAID_ASSERT_OK_AND_ASSIGN(const TrainerCheckpoint read, RoundTrip(Whole()));
  const TrainingSnapshot& tensors = read.tensors;
  ASSERT_EQ(tensors.model.size(), 2);
  for (size_t t = 0; t < 2; ++t) {
    ExpectSame(tensors.model[t].tensor, expected.model[t].tensor);
    EXPECT_EQ(tensors.model[t].is_parameter, expected.model[t].is_parameter);
  }
  ASSERT_EQ(tensors.optimizer.size(), 1);
  ExpectSame(tensors.optimizer[0], expected.optimizer[0]);
  ASSERT_EQ(tensors.gradients.size(), 2);
  ExpectSame(tensors.gradients[1], expected.gradients[1]);
  EXPECT_THAT(tensors.parameters, ElementsAre("w"));
  EXPECT_THAT(tensors.updates, ElementsAre(3));
  EXPECT_EQ(tensors.accumulated, 2);
  EXPECT_TRUE(tensors.overflow);
  EXPECT_THAT(tensors.grad_scaler, ElementsAre(65536, 3));
}

TEST_F(CheckpointFormatTest, NumbersThatAreNoneComeBackToo) {
  TrainerCheckpoint checkpoint = Whole();
  checkpoint.progress.loss_sum = kNan;
  checkpoint.progress.reply.loss = kNan;
  checkpoint.progress.reply.gradient_norm = -kInfinity;
  BRAID_ASSERT_OK_AND_ASSIGN(const TrainerCheckpoint read, RoundTrip(checkpoint));
  EXPECT_TRUE(std::isnan(read.progress.loss_sum));
  EXPECT_TRUE(std::isnan(*read.progress.reply.loss));
  EXPECT_EQ(read.progress.reply.gradient_norm, -kInfinity);
}

TEST_F(CheckpointFormatTest, WhatAReplyHasNotItHasNotAfterwards) {
  TrainerCheckpoint checkpoint;
  BRAID_ASSERT_OK_AND_ASSIGN(const TrainerCheckpoint read, RoundTrip(checkpoint));
  EXPECT_FALSE(read.progress.reply.loss.has_value());
  EXPECT_FALSE(read.progress.reply.gradient_norm.has_value());
  EXPECT_FALSE(read.progress.reply.lr.has_value());
  EXPECT_THAT(read.progress.reply.chunks, IsEmpty());
  EXPECT_THAT(read.progress.reply.outputs, IsEmpty());
  EXPECT_THAT(read.tensors.model, IsEmpty());
}

TEST_F(CheckpointFormatTest, BatchesThatWereLeftOutComeBack) {
  TrainerCheckpoint checkpoint = Whole();
  for (const int64_t skipped : {0, 3}) {
    checkpoint.tensors.skipped_batches = skipped;
    BRAID_ASSERT_OK_AND_ASSIGN(const TrainerCheckpoint read, RoundTrip(checkpoint));
    EXPECT_EQ(read.tensors.skipped_batches, skipped);
  }
  json state = json::parse(WriteState(checkpoint));
  state["left_out"] = "three";
  EXPECT_THAT(ReadTrainerCheckpoint(state.dump(), Write(checkpoint)),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("'left_out'")));
}

TEST_F(CheckpointFormatTest, EveryFieldIsNeededAndOfItsKind) {
  const auto files = Write(Whole());
  const json whole = json::parse(WriteState(Whole()));
  for (const auto& [name, value] : whole.items()) {
    json missing = whole;
    missing.erase(name);
    if (name == "last_operator" || name == "history") {  // which older servers have not kept
      EXPECT_THAT(ReadTrainerCheckpoint(missing.dump(), files), IsOk());
    } else {
      EXPECT_THAT(ReadTrainerCheckpoint(missing.dump(), files),
                  StatusIs(absl::StatusCode::kDataLoss, HasSubstr("'" + name + "'")));
    }
    json other = whole;
    other[name] = json::object();
    if (name != "reply") {
      EXPECT_THAT(ReadTrainerCheckpoint(other.dump(), files),
                  StatusIs(absl::StatusCode::kDataLoss, HasSubstr("'" + name + "'")));
    }
  }
  for (const char* name : {"step", "skipped", "model", "version"}) {
    json missing = whole;
    missing["reply"].erase(name);
    EXPECT_THAT(ReadTrainerCheckpoint(missing.dump(), files),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr(std::string("'") + name + "'")));
  }
}

TEST_F(CheckpointFormatTest, ADamagedStateIsDataLoss) {
  const auto files = Write(Whole());
  const json whole = json::parse(WriteState(Whole()));
  // A JSON pointer, the value to put there, and the expected error.
  const std::vector<std::tuple<std::string, json, std::string>> cases = {
      {"/loss_sum", "one", "'loss_sum' is no number"},
      {"/loss_sum", "", "'loss_sum' is no number"},
      {"/loss_sum", "0x1p0 and more", "'loss_sum' is no number"},
      {"/schedule/0", 0.1, "'schedule'"},
      {"/grad_scaler/1", "x", "'grad_scaler'"},
      {"/step", 1.5, "'step'"},
      {"/parameters/0", 1, "'parameters'"},
      {"/updates", json::array({1, 2}), "'updates'"},
      {"/reply/loss", 0.5, "'loss'"},
      {"/reply/lr", "zero", "'lr'"},
      {"/reply/chunks/0/rows", "2", "'rows'"},
      {"/reply/chunks/1/inputs", json::array({1}), "'inputs'"},
      {"/reply/chunks/0", "a chunk", "'device'"},
      {"/reply", json::array(), "'reply'"},
  };
  for (const auto& [pointer, value, told] : cases) {
    json damaged = whole;
    damaged[json::json_pointer(pointer)] = value;
    EXPECT_THAT(ReadTrainerCheckpoint(damaged.dump(), files),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr(told)))
        << pointer;
  }
  for (const std::string text : {"", "[]", "{", "7"}) {
    EXPECT_THAT(ReadTrainerCheckpoint(text, files),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("not a JSON object")))
        << text;
  }
}

TEST_F(CheckpointFormatTest, EveryFileIsNeeded) {
  const auto files = Write(Whole());
  const std::string state = WriteState(Whole());
  for (const auto& [name, path] : files) {
    auto fewer = files;
    fewer.erase(name);
    EXPECT_THAT(
        ReadTrainerCheckpoint(state, fewer),
        StatusIs(absl::StatusCode::kDataLoss, AllOf(HasSubstr(name), HasSubstr("missing"))));
  }
  std::ofstream(files.at("optimizer.safetensors")) << "no safetensors";
  EXPECT_FALSE(ReadTrainerCheckpoint(state, files).ok());
}

TEST_F(CheckpointFormatTest, TensorsOfNoKindAreDataLoss) {
  const auto files = Write(Whole());
  for (const char* name : {"optimizer.safetensors", "reply.safetensors"}) {
    auto others = files;
    others[name] = files.at("weights.safetensors");
    EXPECT_THAT(
        ReadTrainerCheckpoint(WriteState(Whole()), others),
        StatusIs(absl::StatusCode::kDataLoss, AllOf(HasSubstr(name), HasSubstr("has a '"))));
  }
}

}  // namespace
}  // namespace braid
