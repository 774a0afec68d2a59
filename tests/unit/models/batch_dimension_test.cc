#include "server/models/batch_dimension.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/made_config.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

ModelConfig Unbatched() {
  return MakeConfig(0, {{"x", DataType::kFp32, {-1, 6}}, {"w", DataType::kFp32, {2}, true}},
                    {{"y", DataType::kFp32, {-1}}});
}

TEST(BatchDimensionTest, SeparatesTheBatchDimension) {
  ModelConfig config = Unbatched();
  config.warmups = {{"w", 0, {{"x", {DataType::kFp32, {5, 6}}}}}};
  ASSERT_TRUE(SeparateBatchDim("rows mix", &config));
  EXPECT_THAT(config.inputs[0].dims, ElementsAre(6));
  EXPECT_THAT(config.inputs[1].dims, ElementsAre(2));
  EXPECT_THAT(config.outputs[0].dims, IsEmpty());
  EXPECT_EQ(config.warmups[0].batch_size, 5);
  EXPECT_THAT(config.warmups[0].inputs["x"].dims, ElementsAre(6));
  EXPECT_TRUE(config.batched());
  EXPECT_FALSE(config.merges_requests());
  EXPECT_EQ(config.row_independence_reason, "rows mix");
}

TEST(BatchDimensionTest, JoinIsTheInverseOfSeparate) {
  ModelConfig config = Unbatched();
  config.warmups = {{"w", 0, {{"x", {DataType::kFp32, {5, 6}}}}}};
  ASSERT_TRUE(SeparateBatchDim("rows mix", &config));
  const ModelConfig joined = JoinBatchDim(config);
  EXPECT_EQ(joined.max_batch_size, 0);
  EXPECT_THAT(joined.inputs[0].dims, ElementsAre(-1, 6));
  EXPECT_THAT(joined.inputs[1].dims, ElementsAre(2));
  EXPECT_THAT(joined.outputs[0].dims, ElementsAre(-1));
  EXPECT_EQ(joined.warmups[0].batch_size, 0);
  EXPECT_THAT(joined.warmups[0].inputs.at("x").dims, ElementsAre(5, 6));
}

TEST(BatchDimensionTest, SeparatesAndJoinsABatchThatIsNotDim0) {
  ModelConfig config = Unbatched();
  config.inputs[0].dims = {4, -1, 6};
  config.inputs[0].batch_dim = 1;
  config.warmups = {{"w", 0, {{"x", {DataType::kFp32, {4, 5, 6}}}}}};
  ASSERT_TRUE(SeparateBatchDim("rows mix", &config));
  EXPECT_THAT(config.inputs[0].dims, ElementsAre(4, 6));
  EXPECT_EQ(config.warmups[0].batch_size, 5);
  EXPECT_THAT(config.warmups[0].inputs["x"].dims, ElementsAre(4, 6));
  const ModelConfig joined = JoinBatchDim(config);
  EXPECT_THAT(joined.inputs[0].dims, ElementsAre(4, -1, 6));
  EXPECT_THAT(joined.warmups[0].inputs.at("x").dims, ElementsAre(4, 5, 6));
  config = Unbatched();
  config.inputs[0].batch_dim = 1;  // of fixed size
  EXPECT_FALSE(SeparateBatchDim("rows mix", &config));
}

TEST(BatchDimensionTest, DoesNotChangeModelWithUnbatchedOutput) {
  ModelConfig config = Unbatched();
  config.outputs[0].dims = {6};
  EXPECT_FALSE(SeparateBatchDim("rows mix", &config));
  EXPECT_THAT(config.inputs[0].dims, ElementsAre(-1, 6));
  EXPECT_EQ(config.max_batch_size, 0);
}

TEST(BatchDimensionTest, DoesNotChangeModelsThatMergeRequests) {
  const ModelConfig config =
      MakeConfig(8, {{"x", DataType::kFp32, {6}}}, {{"y", DataType::kFp32, {6}}});
  EXPECT_EQ(JoinBatchDim(config).max_batch_size, 8);
  EXPECT_THAT(JoinBatchDim(config).inputs[0].dims, ElementsAre(6));
}

}  // namespace
}  // namespace braid
