#include "server/tracking/step_file.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/temp_dir.h"
#include "tests/unit/storage/file_tools.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kAll = StepFile::kAllSteps;

TrackedValues AtStep(int64_t step, std::vector<TrackedValue> values) {
  return {step, absl::FromUnixMillis(1'700'000'000'000 + step), std::move(values)};
}

TEST(StepFile, CsvHasALinePerValue) {
  const TempDir dir;
  const std::string path = dir.path() / "a.csv";
  StepFile file(path, StepFile::Format::kCsv);
  ASSERT_THAT(file.Open(kAll), IsOk());
  ASSERT_THAT(file.Write({AtStep(1, {{"loss", 0.1}, {"lr", 1e-3}}), AtStep(2, {{"loss", 2}})}),
              IsOk());
  EXPECT_EQ(Contents(path),
            "step,time,name,value\n"
            "1,1700000000.001,loss,0.1\n"
            "1,1700000000.001,lr,0.001\n"
            "2,1700000000.002,loss,2.0\n");
}

TEST(StepFile, JsonLinesHasAnObjectPerStep) {
  const TempDir dir;
  const std::string path = dir.path() / "a.jsonl";
  StepFile file(path, StepFile::Format::kJsonLines);
  ASSERT_THAT(file.Open(kAll), IsOk());
  ASSERT_THAT(file.Write({AtStep(1, {{"loss", 0.5}}), AtStep(1, {{"lr", 1}})}), IsOk());
  // An evaluation ends long after its step.
  ASSERT_THAT(file.Write({AtStep(1, {{"evaluation/loss", 0.25}}), AtStep(2, {{"loss", 0.4}})}),
              IsOk());
  EXPECT_EQ(Contents(path),
            "{\"step\":1,\"time\":1700000000.001,\"loss\":0.5,\"lr\":1.0,"
            "\"evaluation/loss\":0.25}\n"
            "{\"step\":2,\"time\":1700000000.002,\"loss\":0.4}\n");
}

TEST(StepFile, ANewValueReplacesThatOfTheNewestStep) {
  const TempDir dir;
  const std::string path = dir.path() / "a.csv";
  StepFile file(path, StepFile::Format::kCsv);
  ASSERT_THAT(file.Open(kAll), IsOk());
  ASSERT_THAT(file.Write({AtStep(1, {{"loss", 0.123456}})}), IsOk());
  ASSERT_THAT(file.Write({AtStep(1, {{"loss", 0.5}})}), IsOk());
  EXPECT_EQ(Contents(path), "step,time,name,value\n1,1700000000.001,loss,0.5\n");
}

TEST(StepFile, WritesValuesThatAreNotFinite) {
  const TempDir dir;
  const double infinity = std::numeric_limits<double>::infinity();
  StepFile csv(dir.path() / "a.csv", StepFile::Format::kCsv);
  StepFile json(dir.path() / "a.jsonl", StepFile::Format::kJsonLines);
  const TrackedValues values = AtStep(1, {{"a", std::nan("")}, {"b", -infinity}});
  for (StepFile* file : {&csv, &json}) {
    ASSERT_THAT(file->Open(kAll), IsOk());
    ASSERT_THAT(file->Write({values}), IsOk());
    ASSERT_THAT(file->Open(kAll), IsOk());  // reads them
    EXPECT_EQ(file->newest().step, 1);
  }
  EXPECT_EQ(Contents(dir.path() / "a.csv"),
            "step,time,name,value\n1,1700000000.001,a,nan\n1,1700000000.001,b,-inf\n");
  EXPECT_EQ(Contents(dir.path() / "a.jsonl"),
            "{\"step\":1,\"time\":1700000000.001,\"a\":null,\"b\":null}\n");
}

TEST(StepFile, OpenRemovesStepsAfterTheLastAndAddsToIt) {
  const TempDir dir;
  for (const auto format : {StepFile::Format::kCsv, StepFile::Format::kJsonLines}) {
    const std::string path = dir.path() / "a";
    StepFile file(path, format);
    ASSERT_THAT(file.Open(-1), IsOk());  // forgets the other format
    ASSERT_THAT(file.Write({AtStep(1, {{"loss", 1}}), AtStep(2, {{"loss", 2}, {"lr", 0.1}})}),
                IsOk());
    const std::string before = Contents(path);
    ASSERT_THAT(file.Write({AtStep(3, {{"loss", 3}}), AtStep(4, {{"loss", 4}})}), IsOk());
    StepFile again(path, format);
    ASSERT_THAT(again.Open(2), IsOk());
    EXPECT_EQ(again.newest().step, 2);
    EXPECT_EQ(Contents(path), before);
    // A job reports the loss of the step from which it continues again.
    ASSERT_THAT(again.Write({AtStep(2, {{"loss", 2}})}), IsOk());
    EXPECT_EQ(Contents(path), before);
    ASSERT_THAT(again.Write({AtStep(3, {{"loss", 5}})}), IsOk());
    EXPECT_EQ(Contents(path).find(before), 0u);
    ASSERT_THAT(again.Open(0), IsOk());
    EXPECT_EQ(again.newest().step, -1);
  }
}

TEST(StepFile, OpenRemovesALineThatACrashHasCutOff) {
  const TempDir dir;
  for (const auto format : {StepFile::Format::kCsv, StepFile::Format::kJsonLines}) {
    const std::string path = dir.path() / "a";
    StepFile file(path, format);
    ASSERT_THAT(file.Open(-1), IsOk());
    ASSERT_THAT(file.Write({AtStep(1, {{"loss", 1}})}), IsOk());
    const std::string one = Contents(path);
    ASSERT_THAT(file.Write({AtStep(2, {{"loss", 2}})}), IsOk());
    Truncate(path);
    ASSERT_THAT(file.Open(kAll), IsOk());
    EXPECT_EQ(Contents(path), one);
  }
}

TEST(StepFile, WritesWhatAFullDiskRejectedWithTheNextValues) {
  const TempDir dir;
  const std::string path = dir.path() / "a.csv";
  StepFile file(path, StepFile::Format::kCsv);
  ASSERT_THAT(file.Open(kAll), IsOk());
  ASSERT_THAT(file.Write({AtStep(1, {{"loss", 1}})}), IsOk());
  {
    const FileSizeLimit full(60);
    EXPECT_THAT(file.Write({AtStep(2, {{"loss", 2}}), AtStep(3, {{"loss", 3}})}),
                StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr(path)));
  }
  ASSERT_THAT(file.Write({AtStep(4, {{"loss", 4}})}), IsOk());
  EXPECT_EQ(Contents(path),
            "step,time,name,value\n"
            "1,1700000000.001,loss,1.0\n"
            "2,1700000000.002,loss,2.0\n"
            "3,1700000000.003,loss,3.0\n"
            "4,1700000000.004,loss,4.0\n");
}

}  // namespace
}  // namespace braid
