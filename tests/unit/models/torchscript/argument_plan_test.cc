#include "server/models/torchscript/argument_plan.h"

#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/models/torchscript/flatten_outputs.h"
#include "tests/fakes/script_modules.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kFailed = absl::StatusCode::kFailedPrecondition;

torch::jit::Module ModuleOf(const std::string& arguments, const std::string& result = "0") {
  torch::jit::Module module = NewModule();
  module.define("def forward(self" + arguments + "):\n  return " + result + "\n");
  return module;
}

c10::FunctionSchema Schema(const std::string& arguments) {
  return ModuleOf(arguments).get_method("forward").function().getSchema();
}

std::vector<TensorSpec> Specs(const std::vector<std::string>& names) {
  std::vector<TensorSpec> specs;
  for (const std::string& name : names) {
    specs.push_back({name, DataType::kFp32, {}});
  }
  return specs;
}

// Runs forward(`arguments`), which returns `result`, on inputs `names` with the values 0, 1, 2, …
// in the order of the names.
absl::StatusOr<std::vector<int>> Given(const std::vector<std::string>& names,
                                       const std::string& arguments, const std::string& result) {
  torch::jit::Module module = ModuleOf(arguments, result);
  const c10::FunctionSchema schema = module.get_method("forward").function().getSchema();
  BRAID_ASSIGN_OR_RETURN(const std::vector<ArgumentPlan> plans,
                         PlanArguments(Specs(names), schema));
  std::vector<at::Tensor> inputs;
  for (size_t i = 0; i < names.size(); ++i) {
    inputs.push_back(at::scalar_tensor(static_cast<int64_t>(i)));
  }
  std::vector<c10::IValue> values;
  for (const ArgumentPlan& plan : plans) {
    values.push_back(MakeArgument(plan, inputs));
  }
  BRAID_ASSIGN_OR_RETURN(const std::vector<OutputLeaf> leaves, Flatten(module.forward(values)));
  std::vector<int> given;
  for (const OutputLeaf& leaf : leaves) {
    given.push_back(leaf.value.item<int>());
  }
  return given;
}

TEST(PlanArgumentsTest, MatchesByName) {
  EXPECT_THAT(*Given({"y", "x"}, ", x, y", "(x, y)"), ElementsAre(1, 0));
}

TEST(PlanArgumentsTest, MatchesByNumber) {
  EXPECT_THAT(*Given({"INPUT__1", "INPUT__0"}, ", x, y", "(x, y)"), ElementsAre(1, 0));
  EXPECT_THAT(*Given({"mask__1", "ids__0"}, ", x, y", "(x, y)"), ElementsAre(1, 0));
}

TEST(PlanArgumentsTest, MatchesByPosition) {
  EXPECT_THAT(*Given({"a", "b"}, ", x, y", "(x, y)"), ElementsAre(0, 1));
  EXPECT_THAT(*Given({"input.1", "input.2"}, ", input, x", "(input, x)"), ElementsAre(0, 1));
}

TEST(PlanArgumentsTest, RejectsUnknownNameAmongArgumentNames) {
  const auto refused = [](const std::vector<std::string>& names, const std::string& arguments) {
    return PlanArguments(Specs(names), Schema(arguments)).status();
  };
  EXPECT_THAT(refused({"bb", "a"}, ", a, b"),
              StatusIs(kFailed, AllOf(HasSubstr("input 'bb'"), HasSubstr("forward(a, b)"))));
  EXPECT_THAT(refused({"a", "bb"}, ", a, b"), StatusIs(kFailed, HasSubstr("input 'bb'")));
  EXPECT_THAT(refused({"y", "b"}, ", x, y"), StatusIs(kFailed, HasSubstr("input 'b'")));
  EXPECT_THAT(refused({"x", "m"}, ", x, mask: Optional[Tensor] = None"),
              StatusIs(kFailed, HasSubstr("input 'm'")));
  EXPECT_THAT(refused({"mask"}, ", x, mask: Optional[Tensor] = None"),
              StatusIs(kFailed, HasSubstr("names 1 inputs")));
  EXPECT_THAT(refused({"x", "b", "a"}, ", d: Dict[str, Tensor], x"),
              StatusIs(kFailed, HasSubstr("input 'a'")));
  EXPECT_THAT(refused({"x.0", "x.2", "x.9"}, ", x: List[Tensor], y"),
              StatusIs(kFailed, HasSubstr("input 'x.2'")));
  EXPECT_THAT(refused({"x.1", "x.2"}, ", x: Tuple[Tensor, Tensor]"),
              StatusIs(kFailed, HasSubstr("input 'x.1'")));
}

TEST(PlanArgumentsTest, RejectsMixOfNumbersAndNames) {
  EXPECT_THAT(PlanArguments(Specs({"INPUT__1", "a"}), Schema(", a, b")).status(),
              StatusIs(kFailed, HasSubstr("input 'INPUT__1'")));
  EXPECT_THAT(PlanArguments(Specs({"a", "INPUT__0"}), Schema(", a, b")).status(),
              StatusIs(kFailed, HasSubstr("input 'INPUT__0'")));
  EXPECT_THAT(PlanArguments(Specs({"a", "INPUT__0"}), Schema(", x, y")).status(),
              StatusIs(kFailed, HasSubstr("input 'a'")));
}

TEST(PlanArgumentsTest, BuildsTuples) {
  const std::string pair = ", x: Tuple[Tensor, Tensor], y";
  EXPECT_THAT(*Given({"y", "x.1", "x.0"}, pair, "(x, y)"), ElementsAre(2, 1, 0));
  EXPECT_THAT(*Given({"INPUT__2", "INPUT__0", "INPUT__1"}, pair, "(x, y)"), ElementsAre(1, 2, 0));
  EXPECT_THAT(*Given({"a", "b", "c"}, pair, "(x, y)"), ElementsAre(0, 1, 2));
}

TEST(PlanArgumentsTest, BuildsListsWithOneElementPerInput) {
  EXPECT_THAT(*Given({"x.1", "x.0", "x.2"}, ", x: List[Tensor]", "x"), ElementsAre(1, 0, 2));
  EXPECT_THAT(*Given({"a", "b", "c"}, ", x: List[Tensor], y", "(x, y)"), ElementsAre(0, 1, 2));
}

TEST(PlanArgumentsTest, MatchesDictElementsByPathOrKey) {
  const std::string arguments = ", d: Dict[str, Tensor]";
  EXPECT_THAT(*Given({"d.b", "d.a"}, arguments, "(d['a'], d['b'])"), ElementsAre(1, 0));
  EXPECT_THAT(*Given({"b", "a"}, arguments, "(d['a'], d['b'])"), ElementsAre(1, 0));
  EXPECT_THAT(*Given({"d.a.b"}, arguments, "d['a.b']"), ElementsAre(0));
  EXPECT_THAT(*Given({"b", "a", "x"}, arguments + ", x", "(d['a'], d['b'], x)"),
              ElementsAre(1, 0, 2));
}

TEST(PlanArgumentsTest, BuildsNestedContainers) {
  const std::string arguments = ", d: Dict[str, Tuple[Tensor, List[Tensor]]], y";
  EXPECT_THAT(*Given({"y", "d.k.1.1", "d.k.1.0", "d.k.0"}, arguments, "(d['k'], y)"),
              ElementsAre(3, 2, 1, 0));
}

TEST(PlanArgumentsTest, OmitsOptionalArgumentsWithoutInputs) {
  const std::string arguments = ", x, y: Optional[Tensor] = None, z: Optional[Tensor] = None";
  EXPECT_THAT(*Given({"x"}, arguments, "x"), ElementsAre(0));
  EXPECT_THAT(*Given({"z", "x"}, arguments, "(x, torch._unwrap_optional(z))"), ElementsAre(1, 0));
  EXPECT_THAT(*Given({"x", "y"}, arguments, "(x, torch._unwrap_optional(y))"), ElementsAre(0, 1));
}

TEST(PlanArgumentsTest, MatchesOptionalElementsByPosition) {
  const std::vector<std::string> numbers = {"INPUT__0", "INPUT__1", "INPUT__2"};
  EXPECT_THAT(*Given(numbers, ", x, more: Optional[Tuple[Tensor, List[Tensor]]] = None",
                     "(x, torch._unwrap_optional(more))"),
              ElementsAre(0, 1, 2));
  EXPECT_THAT(*Given(numbers, ", x, more: Optional[Tuple[Tensor, Tensor]] = None",
                     "(x, torch._unwrap_optional(more))"),
              ElementsAre(0, 1, 2));
  EXPECT_THAT(*Given(numbers, ", x: List[Tuple[Tensor, Tensor]], y: Optional[Tensor]",
                     "(x, torch._unwrap_optional(y))"),
              ElementsAre(0, 1, 2));
  EXPECT_THAT(*Given(numbers, ", x: List[Optional[Tensor]]",
                     "[torch._unwrap_optional(x[0]), torch._unwrap_optional(x[2])]"),
              ElementsAre(0, 2));
  // Positions do not determine where the first of two lists ends.
  EXPECT_THAT(*Given(numbers, ", x: List[Tensor], y: Optional[List[Tensor]] = None", "x"),
              ElementsAre(0, 1, 2));
}

TEST(PlanArgumentsTest, RejectsAmbiguousPositions) {
  const std::string arguments = ", x: List[Tensor], y: Optional[Tensor] = None";
  EXPECT_THAT(PlanArguments(Specs({"INPUT__0", "INPUT__1"}), Schema(arguments)).status(),
              StatusIs(kFailed, HasSubstr("are ambiguous")));
  EXPECT_THAT(*Given({"INPUT__0"}, arguments, "x"), ElementsAre(0));
  EXPECT_THAT(*Given({"y", "x.0"}, arguments, "(x, torch._unwrap_optional(y))"), ElementsAre(1, 0));
  // The keys show that all inputs belong to the dict.
  EXPECT_THAT(
      *Given({"a", "b"}, ", d: Dict[str, Tensor], y: Optional[Tensor] = None", "(d['a'], d['b'])"),
      ElementsAre(0, 1));
}

TEST(PlanArgumentsTest, RejectsPartlyGivenArguments) {
  EXPECT_THAT(PlanArguments(Specs({"x", "more.0"}),
                            Schema(", x, more: Optional[Tuple[Tensor, Tensor]] = None"))
                  .status(),
              StatusIs(kFailed, HasSubstr("names 2 inputs")));
}

TEST(PlanArgumentsTest, RejectsNumbersAsDictKeys) {
  const std::string arguments = ", d: Dict[str, Tensor]";
  EXPECT_THAT(PlanArguments(Specs({"INPUT__0", "INPUT__1"}), Schema(arguments)).status(),
              StatusIs(kFailed, AllOf(HasSubstr("'INPUT__0' has a number"),
                                      HasSubstr("name the input after the key"))));
  EXPECT_THAT(*Given({"d.INPUT__0"}, arguments, "d['INPUT__0']"), ElementsAre(0));
  EXPECT_THAT(*Given({"place__1", "place__0"}, arguments, "(d['place__0'], d['place__1'])"),
              ElementsAre(1, 0));
}

TEST(PlanArgumentsTest, RejectsInputsThatFitNoCall) {
  EXPECT_THAT(PlanArguments(Specs({"x"}), Schema(", x, y")).status(),
              StatusIs(kFailed, AllOf(HasSubstr("names 1 inputs"), HasSubstr("forward(x, y)"))));
  EXPECT_THAT(PlanArguments(Specs({"a", "b", "c"}), Schema(", x, y")).status(),
              StatusIs(kFailed, HasSubstr("names 3 inputs")));
  EXPECT_THAT(PlanArguments(Specs({"a__0", "b__2"}), Schema(", x, y")).status(),
              StatusIs(kFailed, HasSubstr("'b__2'")));
  EXPECT_THAT(PlanArguments(Specs({"a__1", "b__1"}), Schema(", x, y")).status(),
              StatusIs(kFailed, HasSubstr("'b__1' is a duplicate or out of range")));
  EXPECT_THAT(PlanArguments(Specs({"x"}), Schema(", x, s: str")).status(),
              StatusIs(kFailed, HasSubstr("forward(x, s: str)")));
  EXPECT_THAT(
      PlanArguments(Specs({"x.0", "x.2"}), Schema(", x: Tuple[Tensor, Tensor, Tensor]")).status(),
      StatusIs(kFailed, HasSubstr("names 2 inputs")));
}

TEST(ScalarArgumentsTest, ReturnsDefaultValues) {
  const std::vector<TensorSpec> scalars =
      ScalarArguments(Schema(", x, n: int, flag: bool = True, f: float = 0.5, k: int = 3"));
  ASSERT_EQ(scalars.size(), 4);
  EXPECT_EQ(scalars[0].type, DataType::kInt64);
  EXPECT_TRUE(scalars[0].scalar && scalars[0].broadcast);
  EXPECT_FALSE(scalars[0].default_value.has_value());
  EXPECT_EQ(scalars[1].default_value, ScalarValue(true));
  EXPECT_EQ(scalars[2].default_value, ScalarValue(0.5));
  EXPECT_EQ(scalars[3].default_value, ScalarValue(int64_t{3}));
}

TEST(ScalarArgumentsTest, SupportsOptionalScalars) {
  const std::string arguments = ", x, m: Optional[float] = None, n: Optional[int] = 3";
  torch::jit::Module module = ModuleOf(arguments, "x if m is None else x * m");
  const c10::FunctionSchema schema = module.get_method("forward").function().getSchema();
  const std::vector<TensorSpec> scalars = ScalarArguments(schema);
  ASSERT_EQ(scalars.size(), 2);
  EXPECT_EQ(scalars[0].type, DataType::kFp64);
  EXPECT_EQ(scalars[0].default_value, ScalarValue());
  EXPECT_EQ(scalars[1].type, DataType::kInt64);
  EXPECT_EQ(scalars[1].default_value, ScalarValue(int64_t{3}));
  BRAID_ASSERT_OK_AND_ASSIGN(const std::vector<ArgumentPlan> plans,
                             PlanArguments({Specs({"x"})[0], scalars[0], scalars[1]}, schema));
  const auto value = [&](const at::Tensor& m) {
    std::vector<c10::IValue> values;
    for (const ArgumentPlan& plan : plans) {
      values.push_back(
          MakeArgument(plan, {at::full({1}, 5.0), m, at::scalar_tensor(3, at::kLong)}));
    }
    return module.forward(values).toTensor().item<double>();
  };
  EXPECT_EQ(value(at::empty({0}, at::kDouble)), 5);
  EXPECT_EQ(value(at::scalar_tensor(2.5, at::kDouble)), 12.5);
}

TEST(ScalarArgumentsTest, PassesTensorsAsNumbers) {
  torch::jit::Module module =
      ModuleOf(", x, n: int, flag: bool = False", "x * n if flag else x + n");
  const c10::FunctionSchema schema = module.get_method("forward").function().getSchema();
  std::vector<TensorSpec> inputs = Specs({"x"});
  for (const TensorSpec& scalar : ScalarArguments(schema)) {
    inputs.push_back(scalar);
  }
  BRAID_ASSERT_OK_AND_ASSIGN(const std::vector<ArgumentPlan> plans, PlanArguments(inputs, schema));
  const std::vector<at::Tensor> values = {at::full({1}, 5.0), at::scalar_tensor(3, at::kLong),
                                          at::scalar_tensor(true, at::kBool)};
  std::vector<c10::IValue> arguments;
  for (const ArgumentPlan& plan : plans) {
    arguments.push_back(MakeArgument(plan, values));
  }
  EXPECT_EQ(module.forward(arguments).toTensor().item<double>(), 15);
}

}  // namespace
}  // namespace braid
