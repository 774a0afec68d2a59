#include "server/serving/warm_up.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/puppet_queue.h"
#include "tests/fakes/queue_source.h"
#include "tests/fakes/silent_pipe.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/temp_dir.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Tensors = std::vector<at::Tensor>;

// Replicas that remember what they were given.
class WarmUpTest : public ::testing::Test {
 protected:
  absl::Status Run(Warmup::Fill fill, std::vector<int64_t> dims = {3}, int64_t count = 1,
                   DataType type = DataType::kFp32) {
    ModelConfig config = PuppetConfig(4);
    config.inputs[0].dims = {3};
    config.inputs[0].type = type;
    config.inputs[0].range = range_;
    config.warmups = {{"w", 2, {{"x", {type, std::move(dims), fill, "x.bin"}}}, count}};
    const ReplicaSet replicas(
        fleet_.workers(), Puppets(fleet_, [this](const Tensors& inputs) -> absl::StatusOr<Tensors> {
          const absl::MutexLock lock(&mu_);
          seen_.push_back(inputs[0].clone());
          return answer_.ok() ? absl::StatusOr<Tensors>(Tensors{inputs[0].to(at::kFloat)})
                              : answer_;
        }));
    return WarmUp(config, dir_.path(), replicas);
  }

  const TempDir dir_;
  WorkerFleet fleet_{2};
  absl::Mutex mu_;
  Tensors seen_;
  absl::Status answer_;
  std::optional<ValueRange> range_;
};

TEST_F(WarmUpTest, EveryReplicaRunsTheRequestCountTimes) {
  ASSERT_THAT(Run(Warmup::Fill::kZero, {3}, /*count=*/3), IsOk());
  ASSERT_EQ(seen_.size(), 6);
  EXPECT_THAT(seen_[0].sizes().vec(), ElementsAre(2, 3));
  EXPECT_EQ(seen_[0].abs().sum().item<float>(), 0);
}

TEST_F(WarmUpTest, AModelMayModifyItsInputs) {
  ModelConfig config = PuppetConfig(4);
  config.warmups = {{"w", 2, {{"x", {DataType::kFp32, {1}, Warmup::Fill::kZero}}}, /*count=*/5}};
  const ReplicaSet replicas(
      fleet_.workers(), Puppets(fleet_, [this](const Tensors& inputs) -> absl::StatusOr<Tensors> {
        const absl::MutexLock lock(&mu_);
        seen_.push_back(inputs[0].clone());
        return Tensors{inputs[0].sub_(1)};
      }));
  ASSERT_THAT(WarmUp(config, dir_.path(), replicas), IsOk());
  ASSERT_EQ(seen_.size(), 10);
  for (const at::Tensor& seen : seen_) {
    EXPECT_EQ(seen.abs().sum().item<float>(), 0);
  }
}

TEST_F(WarmUpTest, BatchesOfOtherModelsRunInBetween) {
  Worker& worker = fleet_.worker(0);
  const auto other = std::make_shared<QueueSource>();
  worker.AddSource(other);
  std::vector<std::string> order;
  std::vector<std::unique_ptr<Replica>> replicas;
  replicas.push_back(std::make_unique<PuppetReplica>([&](const Tensors& inputs) {
    order.emplace_back("run");
    if (order.size() == 1) {
      other->Push([&] { order.emplace_back("batch"); });
    }
    return absl::StatusOr<Tensors>(inputs);
  }));
  ModelConfig config = PuppetConfig(4);
  config.warmups = {{"w", 2, {{"x", {DataType::kFp32, {3}, Warmup::Fill::kZero}}}, /*count=*/3}};
  ASSERT_THAT(WarmUp(config, dir_.path(), ReplicaSet({&worker}, std::move(replicas))), IsOk());
  EXPECT_THAT(order, ElementsAre("run", "batch", "run", "run"));
}

TEST_F(WarmUpTest, RandomIntegersStayInRange) {
  ASSERT_THAT(Run(Warmup::Fill::kRandom), IsOk());
  EXPECT_TRUE(((seen_[0] >= 0) & (seen_[0] < 1)).all().item<bool>());
  range_ = ValueRange{7, 9};
  for (const DataType type : {DataType::kInt8, DataType::kInt32, DataType::kInt64}) {
    seen_.clear();
    ASSERT_THAT(Run(Warmup::Fill::kRandom, {3}, 1, type), IsOk());
    EXPECT_TRUE(((seen_[0] >= 7) & (seen_[0] <= 9)).all().item<bool>());
  }
}

TEST_F(WarmUpTest, ReadsInputsFromAFile) {
  EXPECT_THAT(Run(Warmup::Fill::kFile),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("model_warmup[0] ('w')"), HasSubstr("warmup/x.bin"))));
  dir_.Write("warmup/x.bin", "12345678");
  EXPECT_THAT(Run(Warmup::Fill::kFile),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("8 bytes (expected 12 for one row, or 24")));
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  dir_.Write("warmup/x.bin", std::string(reinterpret_cast<const char*>(values.data()), 24));
  ASSERT_THAT(Run(Warmup::Fill::kFile), IsOk());
  EXPECT_EQ(seen_[0][1][2].item<float>(), 6);
}

TEST_F(WarmUpTest, RepeatsAFileOfOneRow) {
  const std::vector<float> values = {1, 2, 3};
  dir_.Write("warmup/x.bin", std::string(reinterpret_cast<const char*>(values.data()), 12));
  ASSERT_THAT(Run(Warmup::Fill::kFile), IsOk());
  EXPECT_TRUE(seen_[0].equal(at::tensor({1.F, 2.F, 3.F}).repeat({2, 1})));
}

TEST_F(WarmUpTest, ReturnsTheErrorOfTheModel) {
  EXPECT_THAT(Run(Warmup::Fill::kZero, {4}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("model_warmup[0]"), HasSubstr("[2, 4]"))));
  answer_ = absl::FailedPreconditionError("no such kernel");
  EXPECT_THAT(Run(Warmup::Fill::kZero),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("no such kernel")));
}

TEST_F(WarmUpTest, DoesNotBlockOnAPipe) {
  std::filesystem::create_directories(dir_.path() / "warmup");
  SilentPipe pipe(dir_.path() / "warmup" / "x.bin");
  EXPECT_THAT(Run(Warmup::Fill::kFile), StatusIs(absl::StatusCode::kNotFound, HasSubstr("x.bin")));
  EXPECT_FALSE(pipe.WasWaitedFor());
}

}  // namespace
}  // namespace braid
