#include "server/models/torchscript_io.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
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

// The schema of a forward with these arguments.
c10::FunctionSchema Schema(const std::string& arguments) {
  torch::jit::Module module = NewModule();
  module.define("def forward(self" + arguments + "):\n  return 0\n");
  return module.get_method("forward").function().getSchema();
}

std::vector<TensorSpec> Specs(const std::vector<std::string>& names) {
  std::vector<TensorSpec> specs;
  for (const std::string& name : names) {
    specs.push_back({name, DataType::kFp32, {}});
  }
  return specs;
}

// What a module whose forward() is `body` returns, as paths and values.
absl::StatusOr<std::vector<std::string>> Paths(const std::string& body) {
  torch::jit::Module module = NewModule();
  module.define("def forward(self):\n  x = torch.zeros([1])\n  return " + body + "\n");
  BRAID_ASSIGN_OR_RETURN(const std::vector<OutputLeaf> leaves, Flatten(module.forward({})));
  std::vector<std::string> paths;
  for (const OutputLeaf& leaf : leaves) {
    paths.push_back(leaf.path);
  }
  return paths;
}

TEST(FlattenTest, TensorsTuplesAndListsHaveNoPath) {
  EXPECT_THAT(*Paths("x"), ElementsAre(""));
  EXPECT_THAT(*Paths("(x, x)"), ElementsAre("", ""));
  EXPECT_THAT(*Paths("[x, x, x]"), ElementsAre("", "", ""));
  EXPECT_THAT(*Paths("(x, [x, x])"), ElementsAre("", "", ""));
  EXPECT_THAT(*Paths("[[x], [x]]"), ElementsAre("", ""));
}

TEST(FlattenTest, DictsGiveTheirKeys) {
  EXPECT_THAT(*Paths("{'logits': x, 'a': x}"), ElementsAre("logits", "a"));
  EXPECT_THAT(*Paths("{'a': {'b': x}, 'c': {'b': x}}"), ElementsAre("a.b", "c.b"));
  EXPECT_THAT(*Paths("{'a': (x, x)}"), ElementsAre("a.0", "a.1"));
  EXPECT_THAT(*Paths("(x, {'a': x})"), ElementsAre("", "a"));
}

TEST(FlattenTest, WhatIsNoTensorIsRefused) {
  EXPECT_THAT(Paths("1"), StatusIs(kFailed, HasSubstr("returns a Int; expected tensors")));
  EXPECT_THAT(Paths("(x, 'text')"), StatusIs(kFailed, HasSubstr("String")));
  EXPECT_THAT(Paths("None"), StatusIs(kFailed, HasSubstr("None")));
  EXPECT_THAT(Paths("{1: x}"), StatusIs(kFailed, HasSubstr("keys are no strings")));
}

TEST(RequiredArgumentsTest, AreThoseWithoutDefault) {
  EXPECT_THAT(*RequiredArguments(Schema("")), IsEmpty());
  EXPECT_THAT(*RequiredArguments(Schema(", x, y, n: int = 3")), ElementsAre("x", "y"));
}

TEST(RequiredArgumentsTest, TakeTensors) {
  EXPECT_THAT(RequiredArguments(Schema(", x, n: int")),
              StatusIs(kFailed, AllOf(HasSubstr("'n'"), HasSubstr("int"))));
  EXPECT_THAT(RequiredArguments(Schema(", xs: List[Tensor]")),
              StatusIs(kFailed, HasSubstr("'xs'")));
}

TEST(BindInputsTest, ByName) {
  EXPECT_THAT(*BindInputs(Specs({"y", "x"}), Schema(", x, y")), ElementsAre(1, 0));
}

TEST(BindInputsTest, ByNumber) {
  EXPECT_THAT(*BindInputs(Specs({"INPUT__1", "INPUT__0"}), Schema(", x, y")), ElementsAre(1, 0));
  EXPECT_THAT(*BindInputs(Specs({"mask__1", "ids__0"}), Schema(", x, y")), ElementsAre(1, 0));
}

TEST(BindInputsTest, ByOrder) {
  EXPECT_THAT(*BindInputs(Specs({"a", "b"}), Schema(", x, y")), ElementsAre(0, 1));
  // A name that happens to be an argument's counts only if all are.
  EXPECT_THAT(*BindInputs(Specs({"y", "b"}), Schema(", x, y")), ElementsAre(0, 1));
}

TEST(BindInputsTest, OptionalArgumentsMayBeLeftOut) {
  EXPECT_THAT(*BindInputs(Specs({"x"}), Schema(", x, y: Optional[Tensor] = None")), ElementsAre(0));
  EXPECT_THAT(*BindInputs(Specs({"x", "y"}), Schema(", x, y: Optional[Tensor] = None")),
              ElementsAre(0, 1));
}

TEST(BindInputsTest, WhatFitsNoCallIsRefused) {
  EXPECT_THAT(BindInputs(Specs({"x"}), Schema(", x, y")),
              StatusIs(kFailed, AllOf(HasSubstr("names 1 inputs"), HasSubstr("forward(x, y)"))));
  EXPECT_THAT(BindInputs(Specs({"a", "b", "c"}), Schema(", x, y")),
              StatusIs(kFailed, HasSubstr("names 3 inputs")));
  EXPECT_THAT(BindInputs(Specs({"a__0", "b__2"}), Schema(", x, y")),
              StatusIs(kFailed, HasSubstr("'b__2'")));
  EXPECT_THAT(BindInputs(Specs({"a__1", "b__1"}), Schema(", x, y")),
              StatusIs(kFailed, HasSubstr("'b__1' is at no place of its own")));
  // An argument between them has a default: by position it cannot be passed over.
  EXPECT_THAT(BindInputs(Specs({"x", "z"}),
                         Schema(", x, y: Optional[Tensor] = None, z: Optional[Tensor] = None")),
              StatusIs(kFailed, HasSubstr("'z'")));
}

std::vector<OutputLeaf> Leaves(const std::vector<std::string>& paths) {
  std::vector<OutputLeaf> leaves;
  for (const std::string& path : paths) {
    leaves.push_back({path, at::zeros({1})});
  }
  return leaves;
}

TEST(BindOutputsTest, ByPathByNumberOrByOrder) {
  EXPECT_THAT(*BindOutputs(Specs({"b", "a"}), Leaves({"a", "b"})), ElementsAre(1, 0));
  EXPECT_THAT(*BindOutputs(Specs({"y__1", "y__0"}), Leaves({"", ""})), ElementsAre(1, 0));
  EXPECT_THAT(*BindOutputs(Specs({"logits", "probs"}), Leaves({"", ""})), ElementsAre(0, 1));
}

TEST(BindOutputsTest, SomeMayBeLeftOut) {
  EXPECT_THAT(*BindOutputs(Specs({"b"}), Leaves({"a", "b"})), ElementsAre(1));
  EXPECT_THAT(*BindOutputs(Specs({"y__1"}), Leaves({"", ""})), ElementsAre(1));
  EXPECT_THAT(*BindOutputs(Specs({"first"}), Leaves({"", ""})), ElementsAre(0));
}

TEST(BindOutputsTest, OneThatTheModelDoesNotReturnIsRefused) {
  EXPECT_THAT(BindOutputs(Specs({"a", "b"}), Leaves({""})),
              StatusIs(kFailed, AllOf(HasSubstr("'b'"), HasSubstr("the 1 tensors"))));
  EXPECT_THAT(BindOutputs(Specs({"y__3"}), Leaves({"", ""})),
              StatusIs(kFailed, HasSubstr("'y__3'")));
}

TEST(BindOutputsTest, OneOfAnotherDatatypeIsRefused) {
  EXPECT_THAT(BindOutputs({{"y", DataType::kFp16, {}}}, Leaves({""})),
              StatusIs(kFailed, AllOf(HasSubstr("'y'"), HasSubstr("Float"), HasSubstr("FP16"))));
}

}  // namespace
}  // namespace braid
