#include "server/jobs/skipped_rows.h"

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/jobs/fake_context.h"

namespace braid {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

SkippedRows MakeSkippedRows() {
  SkippedRows rows;
  rows.Add(10, 2);
  rows.Add(20, 3);
  rows.Add(20, 1);
  return rows;
}

TEST(SkippedRows, CountsRowsUpToAPosition) {
  const SkippedRows rows = MakeSkippedRows();
  EXPECT_EQ(rows.Before(9), 0);
  EXPECT_EQ(rows.Before(10), 2);
  EXPECT_EQ(rows.Before(19), 2);
  EXPECT_EQ(rows.Before(20), 6);
  EXPECT_EQ(rows.Before(1000), 6);
}

TEST(SkippedRows, DropsWhatComesAfterTheRestart) {
  SkippedRows rows = MakeSkippedRows();
  rows.Restart(15);
  EXPECT_EQ(rows.Before(1000), 2);
  rows.Add(16, 1);
  EXPECT_EQ(rows.Before(16), 3);
}

TEST(SkippedRows, ForgetsPositionsButNotTheirRows) {
  SkippedRows rows = MakeSkippedRows();
  rows.Forget(15);
  EXPECT_EQ(rows.Before(15), 2);
  rows.Forget(30);
  EXPECT_EQ(rows.Before(30), 6);
  EXPECT_THAT(rows.ToJson(), SizeIs(1));
}

TEST(SkippedRows, SurvivesStorage) {
  const SkippedRows rows = SkippedRows::FromJson(MakeSkippedRows().ToJson());
  EXPECT_EQ(rows.Before(19), 2);
  EXPECT_EQ(rows.Before(20), 6);
  EXPECT_EQ(SkippedRows::FromJson(nlohmann::json::array({1, "x"})).Before(5), 0);
}

TEST(SkippedRowLog, LogsTheFirstRowsOnly) {
  FakeContext context;
  SkippedRowLog log;
  for (int64_t row = 0; row < 300; ++row) {
    log.Add({{row, absl::InvalidArgumentError(absl::StrCat("row ", row, ": damaged"))}}, &context);
  }
  ASSERT_THAT(context.log, SizeIs(SkippedRowLog::kMaxLines + 1));
  EXPECT_EQ(context.log.front(), "left out: row 0: damaged");
  EXPECT_THAT(context.log.back(), HasSubstr("not logged"));
}

TEST(SkippedRowLog, LogsARowOnce) {
  FakeContext context;
  SkippedRowLog log;
  for (int epoch = 0; epoch < 3; ++epoch) {
    log.Add({{7, absl::InvalidArgumentError("row 7: damaged")}}, &context);
  }
  EXPECT_THAT(context.log, SizeIs(1));
}

}  // namespace
}  // namespace braid
