#include "server/serving/row_test_cache.h"

#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/made_config.h"
#include "tests/fakes/script_modules.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/temp_dir.h"

namespace braid {
namespace {

class RowTestCacheTest : public ::testing::Test {
 protected:
  std::string Save(const std::string& name, const std::string& body) const {
    torch::jit::Module module("m");
    module.define("def forward(self, x):\n  " + body + "\n");
    std::string path = dir_.path() / name;
    module.save(path);
    return path;
  }

  const TempDir dir_;
  const std::string path_ = dir_.path() / "tests.json";
  ModelConfig config_ = MakeConfig(8, {{"x", DataType::kFp32, {3}}}, {{"y", DataType::kFp32, {3}}});
};

TEST_F(RowTestCacheTest, RemembersResultsInItsFile) {
  RowTestCache(path_).Add("a", {RowIndependence::kProven});
  RowTestCache(path_).Add("b", {RowIndependence::kDependent, /*approximate=*/true, "row 0", true});
  const RowTestCache cache(path_);
  ASSERT_TRUE(cache.Find("a").has_value());
  EXPECT_EQ(cache.Find("a")->result, RowIndependence::kProven);
  ASSERT_TRUE(cache.Find("b").has_value());
  EXPECT_EQ(cache.Find("b")->result, RowIndependence::kDependent);
  EXPECT_TRUE(cache.Find("b")->approximate);
  EXPECT_EQ(cache.Find("b")->reason, "row 0");
  EXPECT_TRUE(cache.Find("b")->one_number);
  EXPECT_FALSE(cache.Find("c").has_value());
}

TEST_F(RowTestCacheTest, DoesNotStoreUnprovenResults) {
  RowTestCache cache("");
  cache.Add("a", {RowIndependence::kUnproven, false, "it fails"});
  EXPECT_FALSE(cache.Find("a").has_value());
}

TEST_F(RowTestCacheTest, IsEmptyIfItsFileIsDamaged) {
  std::ofstream(path_) << "[{\"key\": 3}, {\"key\": \"a\", \"result\": \"maybe\"}, 7";
  EXPECT_FALSE(RowTestCache(path_).Find("a").has_value());
}

TEST_F(RowTestCacheTest, DropsTheOldestResultOfMoreThan1024) {
  RowTestCache cache("");
  for (int i = 0; i < 1025; ++i) {
    cache.Add(std::to_string(i), {RowIndependence::kProven});
  }
  EXPECT_FALSE(cache.Find("0").has_value());
  EXPECT_TRUE(cache.Find("1").has_value());
}

TEST_F(RowTestCacheTest, AKeyDependsOnTheFileTheConfigurationAndTheDevice) {
  const std::string one = Save("one.pt", "return x + 1");
  const std::string other = Save("other.pt", "return x + 2");
  BRAID_ASSERT_OK_AND_ASSIGN(const std::string key, RowTestKey(one, config_, c10::kCPU));
  EXPECT_EQ(*RowTestKey(one, config_, c10::kCPU), key);
  EXPECT_NE(*RowTestKey(other, config_, c10::kCPU), key);
  EXPECT_NE(*RowTestKey(one, config_, c10::kCUDA), key);
  config_.inputs[0].range = ValueRange{0, 1};
  EXPECT_NE(*RowTestKey(one, config_, c10::kCPU), key);
}

TEST_F(RowTestCacheTest, AFileThatIsNotAnArchiveHasNoKey) {
  std::ofstream(dir_.path() / "file") << "text";
  EXPECT_FALSE(RowTestKey(dir_.path() / "file", config_, c10::kCPU).ok());
}

}  // namespace
}  // namespace braid
