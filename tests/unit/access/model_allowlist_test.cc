#include "server/access/model_allowlist.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/silent_pipe.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/temp_dir.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string HashOf(absl::string_view text) { return Sha256Hex(Sha256(text)); }

class ModelAllowlistTest : public ::testing::Test {
 protected:
  ModelAllowlistTest() {
    dir_.Write("models/toy/1/model.pt", "weights");
    dir_.Write("models/a b/config.pbtxt", "");
  }
  absl::StatusOr<std::unique_ptr<ModelAllowlist>> Create(const std::string& lines) {
    dir_.Write("list", lines);
    return ModelAllowlist::Create(Path("list"), Path("models"));
  }
  std::string Path(const std::string& name) const { return (dir_.path() / name).string(); }

  TempDir dir_;
};

TEST_F(ModelAllowlistTest, ParsesTheOutputOfSha256sum) {
  BRAID_ASSERT_OK_AND_ASSIGN(
      const auto list, Create(absl::StrCat(HashOf("weights"), "  ./toy/1/model.pt\n", HashOf(""),
                                           " *a b/config.pbtxt\n")));
  EXPECT_THAT(list->Check(Path("models/toy/1/model.pt")), IsOk());
  EXPECT_THAT(list->Check(Path("models/a b/config.pbtxt")), IsOk());
}

TEST_F(ModelAllowlistTest, RejectsUnlistedFiles) {
  BRAID_ASSERT_OK_AND_ASSIGN(const auto list, Create("# nothing\n"));
  EXPECT_THAT(list->Check(Path("models/toy/1/model.pt")),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("'toy/1/model.pt'"), HasSubstr("--model_allowlist"))));
}

TEST_F(ModelAllowlistTest, RejectsADifferentHash) {
  BRAID_ASSERT_OK_AND_ASSIGN(const auto list,
                             Create(absl::StrCat(HashOf("other"), "  toy/1/model.pt\n")));
  EXPECT_THAT(list->Check(Path("models/toy/1/model.pt")),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(HashOf("weights"))));
}

TEST_F(ModelAllowlistTest, DoesNotBlockOnAPipe) {
  BRAID_ASSERT_OK_AND_ASSIGN(const auto list, Create(absl::StrCat(HashOf(""), "  toy/1/pipe\n")));
  SilentPipe pipe(Path("models/toy/1/pipe"));
  EXPECT_THAT(list->Check(Path("models/toy/1/pipe")),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("cannot read")));
  EXPECT_FALSE(pipe.WasWaitedFor());
}

TEST_F(ModelAllowlistTest, RejectsAMissingFile) {
  BRAID_ASSERT_OK_AND_ASSIGN(const auto list, Create(absl::StrCat(HashOf(""), "  absent\n")));
  EXPECT_THAT(list->Check(Path("models/absent")),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("absent")));
}

TEST_F(ModelAllowlistTest, ErrorsNameTheLine) {
  const std::string good = absl::StrCat(HashOf(""), "  a\n");
  EXPECT_THAT(Create(absl::StrCat(good, "model.pt\n")),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("list:2: 'model.pt'")));
  EXPECT_THAT(
      Create(absl::StrCat(good, HashOf("x"), "  ./a\n")),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("list:2: duplicate path 'a'")));
}

}  // namespace
}  // namespace braid
