#include "client/cli/evaluation.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace braid::cli {
namespace {

v1::EvaluateResponse Result(const std::vector<int64_t>& confusion) {
  v1::EvaluateResponse result;
  result.set_loss(0.25);
  result.set_rows(100);
  result.set_step(7);
  (*result.mutable_metrics())["top_k"] = 1;
  (*result.mutable_metrics())["accuracy"] = 0.875;
  result.mutable_confusion()->Add(confusion.begin(), confusion.end());
  return result;
}

TEST(EvaluationTest, ALineForEachFigure) {
  EXPECT_EQ(FormatEvaluation(Result({})),
            "metric    value\n"
            "loss       0.25\n"
            "accuracy  0.875\n"
            "top_k         1\n"
            "rows        100\n"
            "step          7\n");
}

TEST(EvaluationTest, WithoutALoss) {
  v1::EvaluateResponse result = Result({});
  result.clear_loss();
  EXPECT_EQ(FormatEvaluation(result),
            "metric    value\n"
            "accuracy  0.875\n"
            "top_k         1\n"
            "rows        100\n"
            "step          7\n");
  EXPECT_FALSE(EvaluationJson(result).contains("loss"));
}

TEST(EvaluationTest, TheConfusionMatrixIsBelow) {
  const std::string text = FormatEvaluation(Result({50, 2, 3, 45}));
  EXPECT_EQ(text.substr(text.find("\n\n") + 2),
            "target  as 0  as 1\n"
            "     0    50     2\n"
            "     1     3    45\n");
}

TEST(EvaluationTest, Json) {
  const nlohmann::ordered_json json = EvaluationJson(Result({50, 2, 3, 45}));
  EXPECT_EQ(json["loss"], 0.25);
  EXPECT_EQ(json["metrics"]["accuracy"], 0.875);
  EXPECT_EQ(json["confusion"], nlohmann::ordered_json::parse("[[50,2],[3,45]]"));
  EXPECT_FALSE(EvaluationJson(Result({})).contains("confusion"));
  // No square.
  EXPECT_TRUE(EvaluationJson(Result({1, 2, 3}))["confusion"].empty());
}

}  // namespace
}  // namespace braid::cli
