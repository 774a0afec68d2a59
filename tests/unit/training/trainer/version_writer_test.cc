#include "server/training/trainer/version_writer.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/storage/model_files.h"
#include "server/storage/sealed_directory.h"
#include "server/telemetry/metrics.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/temp_dir.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A writer for model "m" of a new data directory.
class VersionWriterTest : public ::testing::Test {
 protected:
  VersionWriterTest()
      : store_(*VersionStore::Open(data_.path().string())),
        writer_(std::make_unique<VersionWriter>(&store_, &metrics_)) {}
  ~VersionWriterTest() override { Unblock(); }

  // Adds a version that operation `version` of trainer "id" published. Returns its state.
  std::shared_ptr<std::atomic<Durability>> Add(
      int64_t version, bool must_write = false,
      std::function<absl::Status(ByteSink*)> write = [](ByteSink* sink) {
        return sink->Write("weights");
      }) {
    VersionOrigin origin;
    origin.trainer = "t";
    origin.trainer_id = "id";
    origin.sequence = version;
    auto state = std::make_shared<std::atomic<Durability>>(Durability::kNone);
    writer_->Add({"m", version, origin, {{kTorchScriptFile, std::move(write)}}, must_write, state});
    return state;
  }
  // Adds a version whose writing has begun and ends after Unblock().
  void AddBlocked(int64_t version) {
    auto started = std::make_shared<absl::Notification>();
    Add(version, /*must_write=*/false, [this, started](ByteSink* sink) {
      started->Notify();
      unblocked_.WaitForNotification();
      return sink->Write("weights");
    });
    started->WaitForNotification();
  }
  void Unblock() {
    if (!unblocked_.HasBeenNotified()) {
      unblocked_.Notify();
    }
  }
  Durability StateOf(int64_t version) { return writer_->Find("m", version)->durability; }

  const TempDir data_;
  Metrics metrics_;
  VersionStore store_;
  absl::Notification unblocked_;
  std::unique_ptr<VersionWriter> writer_;
};

TEST_F(VersionWriterTest, WritesVersionsAndForgetsThem) {
  const auto state = Add(2);
  writer_->Wait("m", 2);
  EXPECT_EQ(*state, Durability::kDurable);
  EXPECT_FALSE(writer_->Find("m", 2).has_value());
  EXPECT_THAT(store_.Read("m", 2), IsOk());
}

TEST_F(VersionWriterTest, DropsReplacedVersionsThatWait) {
  AddBlocked(2);
  const auto kept = std::make_shared<int>();  // as the weights
  const auto third = Add(3, /*must_write=*/false, [kept](ByteSink*) { return absl::OkStatus(); });
  Add(4, /*must_write=*/true);
  Add(5);
  Add(6);
  EXPECT_EQ(kept.use_count(), 2);
  writer_->Supersede("m", 6, [](int64_t version) { return version == 5; });
  EXPECT_EQ(kept.use_count(), 1);
  EXPECT_EQ(*third, Durability::kSuperseded);
  EXPECT_EQ(StateOf(3), Durability::kSuperseded);
  EXPECT_THAT(writer_->Find("m", 3)->reason, HasSubstr("version 6 replaced it"));
  Unblock();
  writer_->Flush();
  EXPECT_THAT(*store_.Versions("m"), ElementsAre(2, 4, 5, 6));
  EXPECT_TRUE(writer_->Forget("m", 3));
  EXPECT_FALSE(writer_->Find("m", 3).has_value());
}

TEST_F(VersionWriterTest, ReportsVersionsThatCannotBeWritten) {
  const auto state = Add(2, /*must_write=*/false,
                         [](ByteSink*) { return absl::ResourceExhaustedError("no space left"); });
  writer_->Wait("m", 2);
  EXPECT_EQ(*state, Durability::kFailed);
  EXPECT_THAT(writer_->List("m").at(2).state.reason, HasSubstr("no space left"));
  EXPECT_THAT(*store_.Versions("m"), ElementsAre());
  Add(2);
  writer_->Flush();
  EXPECT_THAT(*store_.Versions("m"), ElementsAre(2));
}

TEST_F(VersionWriterTest, WaitsForTheEarlierVersionsOfATrainer) {
  Add(2);
  writer_->WaitForTrainer("id", 2);
  EXPECT_THAT(*store_.Versions("m"), ElementsAre(2));
  AddBlocked(3);
  writer_->WaitForTrainer("id", 2);
  writer_->WaitForTrainer("other", 9);
}

TEST_F(VersionWriterTest, WritesTheVersionsThatWaitBeforeItEnds) {
  Add(2);
  Add(3);
  writer_.reset();
  EXPECT_THAT(*store_.Versions("m"), ElementsAre(2, 3));
}

}  // namespace
}  // namespace braid
