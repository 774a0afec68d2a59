#include "server/models/name_binding.h"

#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kFailed = absl::StatusCode::kFailedPrecondition;

std::vector<TensorSpec> Specs(const std::vector<std::string>& names) {
  std::vector<TensorSpec> specs;
  for (const std::string& name : names) {
    specs.push_back({name, DataType::kFp32, {}});
  }
  return specs;
}

std::vector<OutputLeaf> Leaves(const std::vector<std::string>& paths) {
  std::vector<OutputLeaf> leaves;
  for (const std::string& path : paths) {
    leaves.push_back({path, at::zeros({1})});
  }
  return leaves;
}

TEST(BindOutputsTest, MatchesByPathNumberOrPosition) {
  EXPECT_THAT(*BindOutputs(Specs({"b", "a"}), Leaves({"a", "b"})), ElementsAre(1, 0));
  EXPECT_THAT(*BindOutputs(Specs({"y__1", "y__0"}), Leaves({"", ""})), ElementsAre(1, 0));
  EXPECT_THAT(*BindOutputs(Specs({"logits", "probs"}), Leaves({"", ""})), ElementsAre(0, 1));
}

TEST(BindInputsTest, MatchesByNameKeyNumberOrPosition) {
  EXPECT_THAT(*BindInputs(Specs({"y", "x"}), {"x", "y"}), ElementsAre(1, 0));
  EXPECT_THAT(*BindInputs(Specs({"b", "a"}), {"batch.a", "batch.b"}), ElementsAre(1, 0));
  EXPECT_THAT(*BindInputs(Specs({"batch.b", "batch.a"}), {"input__0.a", "input__0.b"}),
              ElementsAre(1, 0));
  EXPECT_THAT(*BindInputs(Specs({"b", "x", "a"}), {"batch.a", "batch.b", "x"}),
              ElementsAre(2, 0, 1));
  EXPECT_THAT(*BindInputs(Specs({"x__1", "x__0"}), {"a", "b"}), ElementsAre(1, 0));
  EXPECT_THAT(*BindInputs(Specs({"first", "second"}), {"a", "b"}), ElementsAre(0, 1));
}

TEST(BindInputsTest, RejectsAmbiguousKey) {
  EXPECT_THAT(*BindInputs(Specs({"a", "b"}), {"first.a", "second.a"}), ElementsAre(0, 1));
}

TEST(BindInputsTest, RejectsUnknownNameAmongKnownNames) {
  EXPECT_THAT(BindInputs(Specs({"bb", "a"}), {"a", "b"}),
              StatusIs(kFailed, AllOf(HasSubstr("input 'bb'"), HasSubstr("a, b"))));
  EXPECT_THAT(BindInputs(Specs({"a", "bb"}), {"a", "b"}),
              StatusIs(kFailed, HasSubstr("input 'bb'")));
  EXPECT_THAT(BindInputs(Specs({"c", "x"}), {"batch.a", "batch.c"}),
              StatusIs(kFailed, HasSubstr("input 'x'")));
}

TEST(BindInputsTest, RejectsMixOfFullNamesAndKeys) {
  EXPECT_THAT(BindInputs(Specs({"b", "x.a", "y.a"}), {"x.a", "y.a", "z.b"}),
              StatusIs(kFailed, AllOf(HasSubstr("'b' to 'y.a'"), HasSubstr("x.a, y.a, z.b"))));
  EXPECT_THAT(BindOutputs(Specs({"b", "x.a", "y.a"}), Leaves({"x.a", "y.a", "z.b"})),
              StatusIs(kFailed, HasSubstr("mix full names and keys")));
}

TEST(BindInputsTest, RejectsMixOfNumbersAndNames) {
  EXPECT_THAT(BindInputs(Specs({"INPUT__1", "a"}), {"a", "b"}),
              StatusIs(kFailed, HasSubstr("input 'INPUT__1'")));
  EXPECT_THAT(BindInputs(Specs({"INPUT__1", "other"}), {"a", "b"}),
              StatusIs(kFailed, HasSubstr("input 'other'")));
}

TEST(BindOutputsTest, RejectsUnknownKey) {
  EXPECT_THAT(BindOutputs(Specs({"mask", "logits"}), Leaves({"logits", "aux"})),
              StatusIs(kFailed, AllOf(HasSubstr("output 'mask'"), HasSubstr("logits, aux"))));
  EXPECT_THAT(BindOutputs(Specs({"logits", "mask"}), Leaves({"logits", "aux"})),
              StatusIs(kFailed, HasSubstr("logits, aux")));
  EXPECT_THAT(BindOutputs(Specs({"OUTPUT__1", "mask"}), Leaves({"", ""})),
              StatusIs(kFailed, HasSubstr("output 'mask'")));
}

TEST(BindOutputsTest, MatchesDictByPositionOnlyIfComplete) {
  EXPECT_THAT(*BindOutputs(Specs({"first", "second"}), Leaves({"x", "y"})), ElementsAre(0, 1));
  EXPECT_THAT(*BindOutputs(Specs({"OUTPUT__1"}), Leaves({"x", "y"})), ElementsAre(1));
  EXPECT_THAT(BindOutputs(Specs({"yy"}), Leaves({"x", "y"})),
              StatusIs(kFailed, AllOf(HasSubstr("output 'yy'"), HasSubstr("x, y"))));
}

TEST(BindOutputsTest, AcceptsASubsetOfOutputs) {
  EXPECT_THAT(*BindOutputs(Specs({"b"}), Leaves({"a", "b"})), ElementsAre(1));
  EXPECT_THAT(*BindOutputs(Specs({"y__1"}), Leaves({"", ""})), ElementsAre(1));
  EXPECT_THAT(*BindOutputs(Specs({"first"}), Leaves({"", ""})), ElementsAre(0));
}

TEST(BindOutputsTest, RejectsOutputThatTheModelDoesNotReturn) {
  EXPECT_THAT(BindOutputs(Specs({"a", "b"}), Leaves({""})),
              StatusIs(kFailed, AllOf(HasSubstr("'b'"), HasSubstr("returns 1 tensors"))));
  EXPECT_THAT(BindOutputs(Specs({"y__3"}), Leaves({"", ""})),
              StatusIs(kFailed, HasSubstr("'y__3'")));
}

// Returns Leaves() with None at the indices `nones`.
std::vector<OutputLeaf> LeavesBut(const std::vector<std::string>& paths,
                                  const std::vector<size_t>& nones) {
  std::vector<OutputLeaf> leaves = Leaves(paths);
  for (const size_t none : nones) {
    leaves[none].value = at::Tensor();
  }
  return leaves;
}

TEST(BindOutputsTest, SkipsNone) {
  const std::vector<OutputLeaf> sequence = LeavesBut({"", "", ""}, {1});
  EXPECT_THAT(*BindOutputs(Specs({"a", "b"}), sequence), ElementsAre(0, 2));
  EXPECT_THAT(*BindOutputs(Specs({"y__1", "y__0"}), sequence), ElementsAre(2, 0));
  EXPECT_THAT(*BindOutputs(Specs({"b"}), LeavesBut({"aux", "b"}, {0})), ElementsAre(1));
  EXPECT_THAT(*BindOutputs(Specs({"y__0"}), LeavesBut({"aux", "b"}, {0})), ElementsAre(1));
}

TEST(BindOutputsTest, RejectsOutputThatIsNone) {
  EXPECT_THAT(BindOutputs(Specs({"aux"}), LeavesBut({"aux", "b"}, {0})),
              StatusIs(kFailed, HasSubstr("output 'aux': the model returned None")));
  EXPECT_THAT(BindOutputs(Specs({"b", "aux"}), LeavesBut({"aux", "b"}, {0})),
              StatusIs(kFailed, HasSubstr("'aux'")));
  // 'other' is not a key, so 'aux' must not be bound by position.
  EXPECT_THAT(BindOutputs(Specs({"aux", "other"}), LeavesBut({"aux", "b", "c"}, {0})),
              StatusIs(kFailed, HasSubstr("'other'")));
  EXPECT_THAT(BindOutputs(Specs({"a", "b"}), LeavesBut({"", ""}, {1})),
              StatusIs(kFailed, AllOf(HasSubstr("'b'"), HasSubstr("returns 1 tensors"))));
}

TEST(BindOutputsTest, RejectsWrongDatatype) {
  EXPECT_THAT(BindOutputs({{"y", DataType::kFp16, {}}}, Leaves({""})),
              StatusIs(kFailed, AllOf(HasSubstr("'y'"), HasSubstr("Float"), HasSubstr("FP16"))));
}

TEST(BindOutputsTest, RejectsTensorThatIsNotDense) {
  for (const at::Tensor& value :
       {at::eye(3).to_sparse(), at::eye(3).to_sparse_csr(), at::eye(3).to_mkldnn(),
        at::_nested_tensor_from_tensor_list({at::ones({2}), at::ones({3})}),
        at::empty({3}, at::device(at::kMeta))}) {
    EXPECT_THAT(BindOutputs(Specs({"y"}), {{"", value}}),
                StatusIs(kFailed, AllOf(HasSubstr("output 'y'"), HasSubstr("to_dense()"))));
  }
}

TEST(ReshapeTest, KeepsBatchAndDynamicSizes) {
  EXPECT_THAT(Reshape(at::zeros({5, 6}), {6}, {2, 3}).sizes().vec(), ElementsAre(5, 2, 3));
  EXPECT_THAT(Reshape(at::zeros({5, 1}), {1}, {}).sizes().vec(), ElementsAre(5));
  EXPECT_THAT(Reshape(at::zeros({5, 7, 4}), {-1, 4}, {2, -1, 2}).sizes().vec(),
              ElementsAre(5, 2, 7, 2));
  EXPECT_THAT(Reshape(at::zeros({6}), {6}, {3, 2}).sizes().vec(), ElementsAre(3, 2));
}

TEST(FromModelTest, DoesNotReshapeTensorWithTooFewDimensions) {
  TensorSpec spec{"y", DataType::kFp32, {2, 3}};
  spec.reshape = std::vector<int64_t>{3, 2};
  EXPECT_THAT(FromModel(at::zeros({5, 3, 2}), spec).sizes().vec(), ElementsAre(5, 2, 3));
  EXPECT_THAT(FromModel(at::zeros({6}), spec).sizes().vec(), ElementsAre(6));
  EXPECT_THAT(FromModel(at::zeros({}), spec).sizes().vec(), ElementsAre());
}

TEST(FromModelTest, ResolvesPendingNegation) {
  const at::Tensor output = FromModel(at::_neg_view(at::ones({3})), {"y", DataType::kFp32, {}});
  EXPECT_FALSE(output.is_neg());
  EXPECT_TRUE(at::equal(output, at::full({3}, -1.0)));
}

}  // namespace
}  // namespace braid
