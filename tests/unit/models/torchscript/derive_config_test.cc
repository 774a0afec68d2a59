#include "server/models/torchscript/derive_config.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/script_modules.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr auto kFailed = absl::StatusCode::kFailedPrecondition;

// Derives the configuration of a model with this forward() and this example, which is recorded as
// by torch.utils.bundled_inputs.
absl::StatusOr<ModelConfig> Derive(const std::string& arguments, const std::string& body,
                                   const std::string& types, const std::string& example) {
  torch::jit::Module module = NewModule();
  module.define("def forward(self, " + arguments + "):\n  " + body + "\n");
  if (!types.empty()) {
    module.define("def get_all_bundled_inputs(self) -> List[Tuple[" + types + "]]:\n  return [(" +
                  example + ",)]\n");
  }
  return DeriveConfig(module, "m");
}

absl::StatusOr<ModelConfig> DeriveFrom(const std::string& body, const std::string& example) {
  return Derive("x", body, "Tensor", example);
}

TEST(DeriveConfigTest, NamesInputsByArgumentAndOutputsByNumber) {
  BRAID_ASSERT_OK_AND_ASSIGN(const ModelConfig config,
                             Derive("x, ids", "return x.sum(1), ids", "Tensor, Tensor",
                                    "torch.zeros([2, 3]).double(), torch.zeros([2]).long()"));
  EXPECT_EQ(config.name, "m");
  EXPECT_EQ(config.max_batch_size, kDefaultMaxBatchSize);
  EXPECT_EQ(config.max_queue_delay, absl::ZeroDuration());
  ASSERT_EQ(config.inputs.size(), 2);
  EXPECT_EQ(config.inputs[0].name, "x");
  EXPECT_EQ(config.inputs[0].type, DataType::kFp64);
  EXPECT_THAT(config.inputs[0].dims, ElementsAre(3));
  EXPECT_EQ(config.inputs[1].name, "ids");
  EXPECT_EQ(config.inputs[1].type, DataType::kInt64);
  EXPECT_THAT(config.inputs[1].dims, IsEmpty());
  ASSERT_EQ(config.outputs.size(), 2);
  EXPECT_EQ(config.outputs[0].name, "output__0");
  EXPECT_THAT(config.outputs[0].dims, IsEmpty());
  EXPECT_EQ(config.outputs[1].name, "output__1");
}

TEST(DeriveConfigTest, NamesOutputsByDictKey) {
  BRAID_ASSERT_OK_AND_ASSIGN(
      const ModelConfig config,
      DeriveFrom("return {'logits': x, 'sum': x.sum(1)}", "torch.zeros([2, 3])"));
  ASSERT_EQ(config.outputs.size(), 2);
  EXPECT_EQ(config.outputs[0].name, "logits");
  EXPECT_THAT(config.outputs[0].dims, ElementsAre(3));
  EXPECT_EQ(config.outputs[1].name, "sum");
}

TEST(DeriveConfigTest, SkipsNone) {
  const std::string example = "torch.zeros([2, 3])";
  BRAID_ASSERT_OK_AND_ASSIGN(const ModelConfig sequence,
                             DeriveFrom("return None, x.sum(1), None, x", example));
  EXPECT_TRUE(sequence.batched());
  ASSERT_EQ(sequence.outputs.size(), 2);
  EXPECT_EQ(sequence.outputs[0].name, "output__0");
  EXPECT_THAT(sequence.outputs[0].dims, IsEmpty());
  EXPECT_EQ(sequence.outputs[1].name, "output__1");
  EXPECT_THAT(sequence.outputs[1].dims, ElementsAre(3));
  BRAID_ASSERT_OK_AND_ASSIGN(const ModelConfig dict,
                             DeriveFrom("outputs: Dict[str, Optional[Tensor]] = {}\n"
                                        "  outputs['aux'] = None\n"
                                        "  outputs['logits'] = x\n"
                                        "  return outputs",
                                        example));
  ASSERT_EQ(dict.outputs.size(), 1);
  EXPECT_EQ(dict.outputs[0].name, "logits");
}

TEST(DeriveConfigTest, IsBatchedIfOutputsFollowTheRows) {
  const std::string example = "torch.zeros([1, 3])";
  EXPECT_TRUE(DeriveFrom("return x * 2", example)->batched());
  for (const char* body :
       {"return x.sum()", "return x.sum(0)", "return x.t()", "return x.view([1, 3])"}) {
    BRAID_ASSERT_OK_AND_ASSIGN(const ModelConfig config, DeriveFrom(body, example));
    EXPECT_FALSE(config.batched()) << body;
  }
}

TEST(DeriveConfigTest, IsBatchedWithAZeroDimOutput) {
  BRAID_ASSERT_OK_AND_ASSIGN(const ModelConfig config,
                             DeriveFrom("return x, x.mean()", "torch.zeros([1, 3])"));
  EXPECT_TRUE(config.batched());
  EXPECT_THAT(config.outputs[1].dims, IsEmpty());
}

TEST(DeriveConfigTest, MarksDynamicDimsOfUnbatchedModel) {
  BRAID_ASSERT_OK_AND_ASSIGN(const ModelConfig sum,
                             DeriveFrom("return x.sum(0)", "torch.zeros([2, 3])"));
  EXPECT_THAT(sum.inputs[0].dims, ElementsAre(-1, 3));
  EXPECT_THAT(sum.outputs[0].dims, ElementsAre(3));
  BRAID_ASSERT_OK_AND_ASSIGN(const ModelConfig square,
                             DeriveFrom("return x.mm(x.t())", "torch.zeros([2, 3])"));
  EXPECT_FALSE(square.batched());
  EXPECT_THAT(square.inputs[0].dims, ElementsAre(-1, 3));
  EXPECT_THAT(square.outputs[0].dims, ElementsAre(-1, -1));
}

TEST(DeriveConfigTest, UsesWholeShapesForFixedRows) {
  BRAID_ASSERT_OK_AND_ASSIGN(const ModelConfig config,
                             DeriveFrom("return x.view([2, 3]).sum(0)", "torch.zeros([2, 3])"));
  EXPECT_THAT(config.inputs[0].dims, ElementsAre(2, 3));
  EXPECT_THAT(config.outputs[0].dims, ElementsAre(3));
}

TEST(DeriveConfigTest, IsNotBatchedIfInputsDifferInRows) {
  BRAID_ASSERT_OK_AND_ASSIGN(const ModelConfig config,
                             Derive("x, y", "return x + y.sum()", "Tensor, Tensor",
                                    "torch.zeros([2, 3]), torch.zeros([4])"));
  EXPECT_FALSE(config.batched());
}

TEST(DeriveConfigTest, RejectsModelWithoutExample) {
  EXPECT_THAT(Derive("x", "return x", "", ""),
              StatusIs(kFailed, AllOf(HasSubstr("forward(x)"), HasSubstr("expected a config.pbtxt"),
                                      HasSubstr("torch.utils.bundled_inputs"))));
}

TEST(DeriveConfigTest, RejectsExampleThatDoesNotFitForward) {
  EXPECT_THAT(Derive("x, y", "return x + y", "Tensor", "torch.zeros([2, 3])"),
              StatusIs(kFailed, AllOf(HasSubstr("1 arguments"), HasSubstr("forward("))));
}

TEST(DeriveConfigTest, RejectsModelThatReturnsNoTensor) {
  EXPECT_THAT(DeriveFrom("xs: List[Tensor] = []\n  return xs", "torch.zeros([2, 3])"),
              StatusIs(kFailed, HasSubstr("returned no tensor")));
  EXPECT_THAT(DeriveFrom("return None, None", "torch.zeros([2, 3])"),
              StatusIs(kFailed, HasSubstr("returned no tensor")));
}

TEST(DeriveConfigTest, IsNotBatchedIfNumberOfOutputsFollowsTheRows) {
  BRAID_ASSERT_OK_AND_ASSIGN(const ModelConfig config,
                             DeriveFrom("return x.unbind(0)", "torch.zeros([2, 2])"));
  EXPECT_FALSE(config.batched());
}

TEST(DeriveConfigTest, RejectsOutputOfUnsupportedDatatype) {
  EXPECT_THAT(DeriveFrom("return torch.complex(x, x)", "torch.zeros([2, 3])"),
              StatusIs(kFailed, AllOf(HasSubstr("output__0"), HasSubstr("ComplexFloat"))));
}

}  // namespace
}  // namespace braid
