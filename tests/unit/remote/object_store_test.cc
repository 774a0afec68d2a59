#include "server/remote/object_store.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "arrow/filesystem/filesystem.h"
#include "arrow/filesystem/localfs.h"
#include "arrow/result.h"
#include "arrow/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/remote/parallel.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/temp_dir.h"
#include "tests/unit/remote/local_store.h"
#include "tests/unit/storage/file_tools.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

class ObjectStoreTest : public ::testing::Test {
 protected:
  const TempDir dir_;
  const std::unique_ptr<ObjectStore> store_ = MakeLocalStore(dir_.path());
};

TEST_F(ObjectStoreTest, FindsAnObjectOrAllBelowAPrefix) {
  dir_.Write("bucket/data/b/2", "two");
  dir_.Write("bucket/data/a", "one");
  BRAID_ASSERT_OK_AND_ASSIGN(const auto one, store_->Find("bucket/data/a"));
  ASSERT_EQ(one.size(), 1u);
  EXPECT_EQ(one[0].bytes, 3);
  BRAID_ASSERT_OK_AND_ASSIGN(const auto all, store_->Find("bucket/data"));
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[1].path, "bucket/data/b/2");
  BRAID_ASSERT_OK_AND_ASSIGN(const auto listed, store_->List("bucket/data"));
  ASSERT_EQ(listed.size(), 2u);
  EXPECT_TRUE(listed[1].directory);
  EXPECT_TRUE(store_->List("bucket/none").value().empty());
  EXPECT_THAT(store_->Find("bucket/none").status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("'s3://bucket/none'")));
  EXPECT_TRUE(store_->Exists("bucket/data").value());
  EXPECT_FALSE(store_->Exists("bucket/none").value());
}

TEST_F(ObjectStoreTest, NoticesThatAnObjectChanged) {
  dir_.Write("bucket/a", "0123456789");
  BRAID_ASSERT_OK_AND_ASSIGN(const auto found, store_->Find("bucket/a"));
  EXPECT_EQ(store_->Read(found[0], 2, 3).value(), "234");
  EXPECT_THAT(store_->CheckUnchanged(found[0]), IsOk());
  dir_.Write("bucket/a", "01");
  EXPECT_THAT(store_->Read(found[0], 0, 10).status(),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("'s3://bucket/a' changed")));
  EXPECT_THAT(store_->CheckUnchanged(found[0]), StatusIs(absl::StatusCode::kAborted, ::testing::_));
  std::filesystem::remove(dir_.path() / "bucket/a");
  EXPECT_THAT(store_->CheckUnchanged(found[0]), StatusIs(absl::StatusCode::kAborted, ::testing::_));
}

TEST_F(ObjectStoreTest, UploadsFilesOfAnySize) {
  dir_.Write("bucket/old", "old");
  for (const size_t bytes : {size_t{0}, size_t{1}, (size_t{20} << 20) + 1}) {
    dir_.Write("file", std::string(bytes, 'x'));
    ASSERT_THAT(store_->Upload(dir_.path() / "file", "bucket/old"), IsOk());
    EXPECT_EQ(Contents(dir_.path() / "bucket/old"), std::string(bytes, 'x'));
  }
  EXPECT_THAT(store_->Upload(dir_.path() / "none", "bucket/a"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("none")));
}

// Replies as S3 does: an error of a HEAD request has no body.
class RefusingFiles final : public arrow::fs::SubTreeFileSystem {
 public:
  RefusingFiles(const std::string& directory, std::string head, std::string get)
      : SubTreeFileSystem(directory, std::make_shared<arrow::fs::LocalFileSystem>()),
        head_(std::move(head)),
        get_(std::move(get)) {}

  using SubTreeFileSystem::GetFileInfo;
  arrow::Result<arrow::fs::FileInfo> GetFileInfo(const std::string& /*path*/) override {
    return arrow::Status::IOError("When getting information: AWS Error UNKNOWN (HTTP status ",
                                  head_, ") during HeadObject operation: No response body.");
  }
  using SubTreeFileSystem::OpenInputFile;
  arrow::Result<std::shared_ptr<arrow::io::RandomAccessFile>> OpenInputFile(
      const arrow::fs::FileInfo& info) override {
    if (get_.empty()) {
      return SubTreeFileSystem::OpenInputFile(info);
    }
    return arrow::Status::IOError("When reading: AWS Error ", get_);
  }

 private:
  const std::string head_;
  const std::string get_;
};

TEST_F(ObjectStoreTest, ExplainsAnErrorOfAHeadRequestByAGetRequest) {
  dir_.Write("bucket/a", "0");
  const auto error = [&](const std::string& head, const std::string& get) {
    const ObjectStore store(std::make_shared<RefusingFiles>(dir_.path(), head, get));
    return store.Exists("bucket/a").status();
  };
  using ::testing::AllOf;
  constexpr auto kCode = absl::StatusCode::kFailedPrecondition;
  EXPECT_THAT(error("400", "UNKNOWN (HTTP status 400): ExceptionName: ExpiredToken"),
              StatusIs(kCode, AllOf(HasSubstr("cannot read 's3://bucket/a': AWS Error"),
                                    HasSubstr("the credentials have expired"))));
  for (const std::string get :
       {"", "NO_SUCH_KEY", "UNKNOWN (HTTP status 416): ExceptionName: InvalidRange"}) {
    EXPECT_THAT(error("501", get), StatusIs(kCode, HasSubstr("(HTTP status 501)"))) << get;
  }
}

TEST_F(ObjectStoreTest, SaysWhetherToTryAgainLater) {
  dir_.Write("bucket/a", "0");
  const auto error = [&](const std::string& head, const std::string& get) {
    const ObjectStore store(std::make_shared<RefusingFiles>(dir_.path(), head, get));
    return store.Exists("bucket/a").status();
  };
  using ::testing::AllOf;
  using ::testing::Not;
  const auto names_object = HasSubstr("cannot read 's3://bucket/a': AWS Error");
  for (const auto& [head, get] : std::vector<std::pair<std::string, std::string>>{
           {"503", "SLOW_DOWN: Reduce your request rate"},
           {"503", ""},  // without an explanation
           {"429", "UNKNOWN (HTTP status 429): ExceptionName: TooManyRequests"},
           {"503", "SERVICE_UNAVAILABLE: Please reduce your request rate"}}) {
    EXPECT_THAT(error(head, get),
                StatusIs(absl::StatusCode::kResourceExhausted,
                         AllOf(names_object, HasSubstr("limits the rate of requests"),
                               HasSubstr("try again later"))))
        << get;
  }
  constexpr auto kCode = absl::StatusCode::kFailedPrecondition;
  for (const std::string get :
       {"INTERNAL_FAILURE: We encountered an error", "NETWORK_CONNECTION: curlCode: 7"}) {
    EXPECT_THAT(error("500", get), StatusIs(kCode, AllOf(names_object, HasSubstr("did not answer"),
                                                         HasSubstr("try again later"))))
        << get;
  }
  EXPECT_THAT(error("501", "UNKNOWN (HTTP status 501): ExceptionName: NotImplemented"),
              StatusIs(kCode, AllOf(names_object, Not(HasSubstr("try again later")))));
}

TEST(InParallel, ReturnsTheFirstErrorOfEither) {
  const auto ok = [] { return absl::OkStatus(); };
  std::vector<int> done(100);
  EXPECT_THAT(InParallel(
                  done.size(),
                  [&](size_t i) {
                    done[i] = 1;
                    return absl::OkStatus();
                  },
                  ok),
              IsOk());
  EXPECT_EQ(done, std::vector<int>(100, 1));
  EXPECT_THAT(InParallel(
                  0, [](size_t) { return absl::InternalError("none"); }, ok),
              IsOk());
  EXPECT_THAT(InParallel(
                  9, [](size_t) { return absl::AbortedError("work"); }, ok),
              StatusIs(absl::StatusCode::kAborted, "work"));
  EXPECT_THAT(
      InParallel(
          9, [](size_t) { return absl::OkStatus(); }, [] { return absl::CancelledError("watch"); }),
      StatusIs(absl::StatusCode::kCancelled, "watch"));
}

}  // namespace
}  // namespace braid
