#include "server/access/reloaded_files.h"

#include <sys/stat.h>

#include <filesystem>
#include <string>

#include "absl/functional/function_ref.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/telemetry/log.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/temp_dir.h"

namespace braid {
namespace {

using std::filesystem::perms;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class ReloadedFilesTest : public ::testing::Test {
 protected:
  ReloadedFilesTest() {
    dir_.Write("a", "one");
    dir_.Write("b", "one");
    Permit(perms::owner_read | perms::owner_write);
  }

  std::string Path(const std::string& name) const { return (dir_.path() / name).string(); }
  void Permit(perms permissions) const { std::filesystem::permissions(Path("a"), permissions); }
  // Returns the log lines of `call`.
  static std::string LogOf(absl::FunctionRef<void()> call) {
    ::testing::internal::CaptureStdout();
    call();
    FlushLog();
    return ::testing::internal::GetCapturedStdout();
  }
  std::string LogOfLooks() {
    return LogOf([this] {
      files_.Poll();
      files_.Poll();
    });
  }

  TempDir dir_;
  absl::Status judgement_;
  ReloadedFiles files_{{{"--a", Path("a"), true}, {"--b", Path("b")}},
                       [this](const ReloadedFiles::Contents&) { return judgement_; }};
};

TEST_F(ReloadedFilesTest, LogsTheFlagOfAChangedFile) {
  ASSERT_THAT(files_.Load(), IsOk());
  dir_.Write("b", "two");
  EXPECT_THAT(LogOfLooks(), AllOf(HasSubstr("--b: reloaded"), Not(HasSubstr("--a"))));
  dir_.Write("a", "two");
  EXPECT_THAT(LogOfLooks(), AllOf(HasSubstr("--a: reloaded"), Not(HasSubstr("--b"))));
  dir_.Write("a", "three");
  dir_.Write("b", "three");
  EXPECT_THAT(LogOfLooks(), HasSubstr("--a, --b: reloaded"));
  EXPECT_EQ(LogOfLooks(), "");
}

TEST_F(ReloadedFilesTest, AppliesAChangeAfterAnErrorIsFixed) {
  ASSERT_THAT(files_.Load(), IsOk());
  judgement_ = absl::InvalidArgumentError("--a: is no good");
  dir_.Write("a", "two");
  EXPECT_THAT(LogOfLooks(), HasSubstr("the previous contents stay in effect: --a: is"));
  judgement_ = absl::OkStatus();
  dir_.Write("b", "two");
  EXPECT_THAT(LogOfLooks(), HasSubstr("--a, --b: reloaded"));
}

TEST_F(ReloadedFilesTest, NamesTheFlagOfAnUnreadableFile) {
  std::filesystem::remove(Path("b"));
  EXPECT_THAT(files_.Load(), StatusIs(absl::StatusCode::kInvalidArgument,
                                      HasSubstr("--b: cannot read " + Path("b"))));
}

TEST_F(ReloadedFilesTest, DoesNotBlockOnAPipe) {
  ASSERT_THAT(files_.Load(), IsOk());
  std::filesystem::remove(Path("b"));
  ASSERT_EQ(mkfifo(Path("b").c_str(), 0600), 0);
  EXPECT_THAT(LogOfLooks(), HasSubstr("--b: cannot read " + Path("b") + ": it is a pipe"));
  std::filesystem::remove(Path("b"));
  dir_.Write("b", "two");
  EXPECT_THAT(LogOfLooks(), HasSubstr("--b: reloaded"));
}

TEST_F(ReloadedFilesTest, WarnsOfAWorldReadableSecret) {
  EXPECT_EQ(LogOf([this] { ASSERT_THAT(files_.Load(), IsOk()); }), "");
  Permit(perms::owner_read | perms::group_read | perms::others_read);
  const auto warns = AllOf(HasSubstr("warning"), HasSubstr("--a: every user of this machine"),
                           HasSubstr(Path("a")), HasSubstr("chmod o-r"));
  EXPECT_THAT(LogOf([this] { ASSERT_THAT(files_.Load(), IsOk()); }), warns);
  // Said again for another content alone.
  EXPECT_EQ(LogOfLooks(), "");
  dir_.Write("a", "two");
  EXPECT_THAT(LogOfLooks(), warns);
}

}  // namespace
}  // namespace braid
