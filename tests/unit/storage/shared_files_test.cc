#include "server/storage/shared_files.h"

#include <filesystem>
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/storage/checksum.h"
#include "server/storage/sealed_directory.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/temp_dir.h"
#include "tests/unit/storage/file_tools.h"

namespace braid {
namespace {

namespace fs = std::filesystem;
using ::testing::_;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

class SharedFilesTest : public ::testing::Test {
 protected:
  SharedFilesTest() { Reopen(); }

  void Reopen() {
    absl::StatusOr<std::unique_ptr<SharedFiles>> files = SharedFiles::Open(root());
    ASSERT_THAT(files, IsOk());
    files_ = *std::move(files);
  }

  fs::path root() const { return dir_.path() / "shared"; }
  fs::path place(const std::string& name) const { return dir_.path() / name; }
  static std::string NameOf(const std::string& text) {
    return ChecksumOf(text) + "-" + std::to_string(text.size());
  }

  std::shared_ptr<const SharedFile> Add(const std::string& text) {
    const auto added = files_->Add(FileOf("name", text));
    EXPECT_THAT(added, IsOk());
    return added.value_or(nullptr);
  }
  void Link(const std::string& text, const std::string& name) {
    EXPECT_THAT(Add(text)->LinkTo(place(name)), IsOk());
  }

  const TempDir dir_;
  std::unique_ptr<SharedFiles> files_;
};

TEST_F(SharedFilesTest, StoresEqualContentsOnce) {
  Link("the same", "a");
  Link("the same", "b");
  Link("other", "c");
  EXPECT_THAT(Names(root()), SizeIs(2));
  EXPECT_EQ(Contents(place("a")), "the same");
  EXPECT_EQ(Contents(place("c")), "other");
  EXPECT_TRUE(fs::equivalent(place("a"), place("b")));
  Reopen();
  Link("the same", "d");
  EXPECT_TRUE(fs::equivalent(place("a"), place("d")));
  EXPECT_EQ(Add("the same")->stored().bytes, 8);
  EXPECT_EQ(Add("the same")->stored().checksum, ChecksumOf("the same"));
}

TEST_F(SharedFilesTest, RemovesFilesThatNothingUses) {
  Link("linked", "a");
  auto held = Add("held");
  Add("dropped");
  ASSERT_THAT(files_->RemoveUnused(), IsOk());
  EXPECT_THAT(Names(root()), UnorderedElementsAre(NameOf("linked"), NameOf("held")));
  held.reset();
  fs::remove(place("a"));
  ASSERT_THAT(files_->RemoveUnused(), IsOk());
  EXPECT_THAT(Names(root()), IsEmpty());
}

TEST_F(SharedFilesTest, OpenRemovesLeftoversOfACrash) {
  Link("linked", "a");
  Add("not linked yet");
  Put(root() / "unfinished", "half of a fi");
  Reopen();
  EXPECT_THAT(Names(root()), ElementsAre(NameOf("linked")));
}

TEST_F(SharedFilesTest, WritesADamagedFileAgain) {
  Link("contents", "before");
  FlipByte(root() / NameOf("contents"), 2);
  Reopen();
  Link("contents", "after");
  EXPECT_EQ(Contents(place("after")), "contents");
  EXPECT_NE(Contents(place("before")), "contents");
}

TEST_F(SharedFilesTest, FullDiskLeavesNothing) {
  {
    const FileSizeLimit limit(10);
    EXPECT_THAT(files_->Add(FileOf("name", std::string(11, 'x'))),
                StatusIs(absl::StatusCode::kResourceExhausted, _));
  }
  EXPECT_THAT(Names(root()), IsEmpty());
  Link(std::string(11, 'x'), "a");
}

TEST_F(SharedFilesTest, CopiesWhereTheFileSystemHasNoLinks) {
  const fs::path other = fs::path("/dev/shm") / ("braid-" + ChecksumOf(dir_.path().string()));
  const auto file = Add("contents");
  const absl::Status status = file->LinkTo(other);
  EXPECT_THAT(status, IsOk());
  EXPECT_EQ(Contents(other), "contents");
  fs::remove(other);
}

}  // namespace
}  // namespace braid
