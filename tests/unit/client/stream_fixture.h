// Fixture for streams on a FakeTrainingService.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "client/cpp/stream.h"
#include "gtest/gtest.h"
#include "tests/unit/client/trainer_fixture.h"

namespace braid::client {

class StreamFixture : public TrainerFixture {
 protected:
  static std::unique_ptr<Stream> Open(Trainer& trainer, const StreamOptions& options) {
    absl::StatusOr<std::unique_ptr<Stream>> stream = trainer.OpenStream(options);
    EXPECT_TRUE(stream.ok()) << stream.status();
    return *std::move(stream);
  }

  // Runs steps on Rows(0), Rows(1), … through a stream and returns their results.
  static std::vector<LossResult> Run(Trainer& trainer, int operations,
                                     const StreamOptions& options) {
    std::vector<Stream::Future<LossResult>> losses;
    std::unique_ptr<Stream> stream = Open(trainer, options);
    for (int i = 0; i < operations; ++i)
      losses.push_back(stream->Step(Rows(static_cast<float>(i)), Rows(0)));
    const absl::Status finished = stream->Finish();
    EXPECT_TRUE(finished.ok()) << finished;
    std::vector<LossResult> results;
    for (int i = 0; i < operations; ++i) {
      absl::StatusOr<LossResult> result = losses[i].get();
      EXPECT_TRUE(result.ok()) << result.status();
      results.push_back(result.ok() ? *std::move(result) : LossResult());
      EXPECT_EQ(results.back().status.applied_sequence(), i + 1);
      EXPECT_TRUE(results.back().reply_lost || results.back().loss == i + 1);
    }
    return results;
  }

  static int Lost(const std::vector<LossResult>& results) {
    int lost = 0;
    for (const LossResult& result : results) lost += result.reply_lost ? 1 : 0;
    return lost;
  }
};

}  // namespace braid::client
