#include "client/cpp/download.h"

#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/client/trainer_fixture.h"

namespace braid::client {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using Fault = FakeTrainingService::Fault;

v1::DownloadModelResponse Piece(int64_t total, int64_t offset, const std::string& data) {
  v1::DownloadModelResponse piece;
  piece.set_total_bytes(total);
  piece.set_offset(offset);
  piece.set_data(data);
  return piece;
}

class DownloadTest : public TrainerFixture {
 public:
  DownloadTest() {
    folder_ = ::testing::TempDir() + "download_XXXXXX";
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
    path_ = folder_ + "/model.pt";
  }
  ~DownloadTest() override {
    std::remove(path_.c_str());
    // Fails, and leaves it to be seen, if anything else is there.
    EXPECT_EQ(std::remove(folder_.c_str()), 0);
  }

 protected:
  std::string Contents() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  std::string folder_;
  std::string path_;
};

TEST_F(DownloadTest, AssemblesPieces) {
  Trainer trainer = Create();
  service_.SetFile({Piece(5, 0, "ab"), Piece(5, 2, "cde")});
  absl::StatusOr<int64_t> size = trainer.DownloadModel(path_);
  ASSERT_TRUE(size.ok()) << size.status();
  EXPECT_EQ(*size, 5);
  EXPECT_EQ(Contents(), "abcde");
  ASSERT_TRUE(trainer.DownloadModel(path_, v1::DownloadModelRequest::FORMAT_SAFETENSORS).ok());
  EXPECT_THAT(service_.received(), Contains("download 1"));
  EXPECT_THAT(service_.received(), Contains("download 2"));
}

TEST_F(DownloadTest, RestartsAfterALostConnection) {
  Trainer trainer = Create();
  service_.SetFile({Piece(5, 0, "ab"), Piece(5, 2, "cde")});
  service_.Inject({Fault::kLostReply});
  ASSERT_TRUE(trainer.DownloadModel(path_).ok());
  EXPECT_EQ(Contents(), "abcde");
}

TEST_F(DownloadTest, AnIncompleteDownloadKeepsTheOldFile) {
  Trainer trainer = Create();
  std::ofstream(path_) << "old";
  const std::vector<std::vector<v1::DownloadModelResponse>> incomplete = {
      {}, {Piece(5, 0, "ab")}, {Piece(5, 0, "ab"), Piece(5, 3, "de")}, {Piece(0, 0, "")}};
  for (const auto& pieces : incomplete) {
    service_.SetFile(pieces);
    EXPECT_TRUE(absl::IsDataLoss(trainer.DownloadModel(path_).status()));
    EXPECT_EQ(Contents(), "old");
  }
}

TEST_F(DownloadTest, RejectsAMissingFolder) {
  Trainer trainer = Create();
  const absl::Status status = trainer.DownloadModel(folder_ + "/none/model.pt").status();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("/none/model.pt"));
}

}  // namespace
}  // namespace braid::client
