#include "client/cli/dataset.h"

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace braid::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Ne;
using ::testing::SizeIs;

TEST(NamedFileTest, IsCutAtTheFirstEqualsSign) {
  absl::StatusOr<NamedFile> file = ParseNamedFile("x=a=b.npy");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->name, "x");
  EXPECT_EQ(file->path, "a=b.npy");
}

TEST(NamedFileTest, NeedsBothSidesAndDifferentNames) {
  for (const char* argument : {"", "x", "=x.npy", "x="}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseNamedFile(argument).status())) << argument;
  }
  EXPECT_THAT(*ParseNamedFiles({"x=1", "y=1"}), SizeIs(2));
  EXPECT_TRUE(absl::IsInvalidArgument(ParseNamedFiles({"x=1", "x=2"}).status()));
}

class DatasetTest : public ::testing::Test {
 protected:
  void TearDown() override {
    for (const std::string& path : paths_) std::remove(path.c_str());
  }

  NamedFile File(const std::string& name, const client::Tensor& tensor) {
    const char* test = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    const std::string path = ::testing::TempDir() + "dataset_" + test + "_" + name + ".npy";
    EXPECT_TRUE(WriteNpy(path, tensor).ok());
    paths_.push_back(path);
    return {name, path};
  }

  std::vector<std::string> paths_;
};

TEST_F(DatasetTest, GathersRowsOfEveryFileInTheOrderAsked) {
  const auto x = client::MakeTensor<int32_t>("", {3, 2}, {0, 1, 10, 11, 20, 21});
  const auto mask = client::MakeTensor<uint8_t>("", {3}, {5, 6, 7});
  const auto y = client::MakeTensor<int64_t>("", {3}, {100, 101, 102});
  absl::StatusOr<Dataset> dataset =
      Dataset::Open({File("x", x), File("mask", mask)}, {File("target", y), File("weight", mask)});
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ(dataset->rows(), 3);
  const client::Batch batch = dataset->Gather({2, 0});
  ASSERT_THAT(batch.inputs, SizeIs(2));
  ASSERT_THAT(batch.targets, SizeIs(2));
  EXPECT_EQ(batch.inputs[0].name, "x");
  EXPECT_THAT(batch.inputs[0].shape, ElementsAre(2, 2));
  EXPECT_THAT(*client::Values<int32_t>(batch.inputs[0]), ElementsAre(20, 21, 0, 1));
  EXPECT_THAT(*client::Values<uint8_t>(batch.inputs[1]), ElementsAre(7, 5));
  EXPECT_EQ(batch.targets[0].name, "target");
  EXPECT_THAT(*client::Values<int64_t>(batch.targets[0]), ElementsAre(102, 100));
  EXPECT_EQ(batch.targets[1].name, "weight");
}

TEST_F(DatasetTest, RowsMustAgreeAndExist) {
  const NamedFile x = File("x", client::MakeTensor<float>("", {3, 1}, {1, 2, 3}));
  const NamedFile y = File("y", client::MakeTensor<float>("", {2}, {1, 2}));
  const absl::Status differ = Dataset::Open({x}, {y}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(differ));
  EXPECT_THAT(std::string(differ.message()), HasSubstr("has 2 rows, \"x\" has 3"));
  const NamedFile empty = File("empty", {"", "FP32", {0, 4}, ""});
  EXPECT_TRUE(absl::IsInvalidArgument(Dataset::Open({empty}, {y}).status()));
  const NamedFile scalar = File("scalar", client::MakeTensor<float>("", {}, {1}));
  EXPECT_TRUE(absl::IsInvalidArgument(Dataset::Open({scalar}, {}).status()));
}

TEST(EpochOrderTest, WithoutShuffleIsTheFiles) {
  EXPECT_THAT(EpochOrder(4, false, 9, 1), ElementsAre(0, 1, 2, 3));
}

TEST(EpochOrderTest, ShufflesAPermutation) {
  std::vector<int64_t> order = EpochOrder(100, true, 0, 0);
  EXPECT_THAT(order, Ne(EpochOrder(100, false, 0, 0)));
  std::sort(order.begin(), order.end());
  EXPECT_EQ(order, EpochOrder(100, false, 0, 0));
}

TEST(EpochOrderTest, DependsOnSeedAndEpochAlone) {
  const std::vector<int64_t> order = EpochOrder(100, true, 1, 2);
  EXPECT_EQ(order, EpochOrder(100, true, 1, 2));
  EXPECT_NE(order, EpochOrder(100, true, 2, 2));
  EXPECT_NE(order, EpochOrder(100, true, 1, 3));
  EXPECT_NE(order, EpochOrder(100, true, 1 + (uint64_t{1} << 32), 2));
}

}  // namespace
}  // namespace braid::cli
