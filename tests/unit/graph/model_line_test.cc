#include "server/graph/model_line.h"

#include <string>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace braid {
namespace {

std::string LineOf(const nlohmann::json& node) { return ModelLine(JsonField(node, "node")); }

TEST(ModelLineTest, ReturnsTheInnermostFrame) {
  EXPECT_EQ(InnermostLine("File \"/m/model.py\", line 9, in forward\n    y = self.inner(x)\n"
                          "  File \"/m/inner.py\", line 3, in forward\n    return x + 1"),
            "/m/inner.py, line 3, in forward: return x + 1");
}

TEST(ModelLineTest, SkipsGeneratedCode) {
  EXPECT_EQ(InnermostLine("File \"/m/model.py\", line 9, in forward\n    cond(x)\n"
                          "  File \"<eval_with_key>.5\", line 1, in forward\n    sin = x.sin()"),
            "/m/model.py, line 9, in forward: cond(x)");
}

TEST(ModelLineTest, SupportsFramesWithoutCode) {
  EXPECT_EQ(InnermostLine("File \"/m/model.py\", line 9, in forward"),
            "/m/model.py, line 9, in forward");
  EXPECT_EQ(InnermostLine(""), "");
  EXPECT_EQ(InnermostLine("File \"/m/model.py"), "");
}

TEST(ModelLineTest, FallsBackToTheSubmodule) {
  EXPECT_EQ(LineOf({{"metadata",
                     {{"nn_module_stack",
                       "L__self__,,pkg.Model;L__self___encoder,encoder,torch.nn.Linear"}}}}),
            "encoder (Linear)");
  EXPECT_EQ(LineOf({{"metadata", {{"stack_trace", 3}}}}), "");
  EXPECT_EQ(LineOf({{"metadata", nullptr}}), "");
  EXPECT_EQ(LineOf(nlohmann::json::object()), "");
}

}  // namespace
}  // namespace braid
