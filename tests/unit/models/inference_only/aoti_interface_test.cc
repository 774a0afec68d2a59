#include "server/models/inference_only/aoti_interface.h"

#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

// Source in the format of PyTorch's code generator.
std::string Says(int input, const std::string& what, const std::string& expected) {
  return absl::StrCat("        ss << \"input_handles[", input, "]: ", what,
                      ", \"\n           << \"", expected,
                      ", \" << \"but got: \" << x << \"\\n\";\n");
}
std::string Type(int input, const std::string& type) {
  return absl::StrCat(
      "ss << \"input_handles[", input,
      "]: unmatched dtype, \"\n   << \"expected: \" << arg_expected_dtype << \"(at::k", type,
      "), \"\n   << \"but got: \" << arg_dtype << \"\\n\";\n");
}
std::string Fixed(int input, int dim, int size) {
  return Says(input, absl::StrCat("unmatched dim value at ", dim),
              absl::StrCat("expected: ", size));
}
std::string Least(int input, int dim, int size) {
  return Says(input, absl::StrCat("dim value is too small at ", dim),
              absl::StrCat("expected it to be >= ", size));
}
std::string Most(int input, int dim, int size) {
  return Says(input, absl::StrCat("dim value is too large at ", dim),
              absl::StrCat("expected to be <= ", size));
}
std::string Stride(int input, int dim, int stride) {
  return Says(input, absl::StrCat("unmatched stride value at ", dim),
              absl::StrCat("expected: ", stride));
}

std::string Leaf() { return R"({"type": null, "context": null, "children_spec": []})"; }
std::string Tree(const std::string& name, const std::string& root) {
  return absl::StrCat("    ", name, " = R\"([1, ", root, "])\";\n");
}
std::string Node(const std::string& type, const std::string& context, const std::string& children) {
  return absl::StrCat(R"({"type": "builtins.)", type, R"(", "context": ")", context,
                      R"(", "children_spec": [)", children, "]}");
}

// x FP32 [2 to 32, 10] and ids INT64 [2 to 32].
std::string TwoInputs() {
  return Type(0, "Float") + Least(0, 0, 2) + Most(0, 0, 32) + Fixed(0, 1, 10) + Stride(0, 0, 10) +
         Stride(0, 1, 1) + Type(1, "Long") + Least(1, 0, 2) + Most(1, 0, 32) + Stride(1, 0, 1);
}

TEST(ParseAotiInterfaceTest, FindsTypesAndSizes) {
  BRAID_ASSERT_OK_AND_ASSIGN(const PackageInterface interface, ParseAotiInterface(TwoInputs()));
  ASSERT_THAT(interface.inputs, SizeIs(2));
  EXPECT_EQ(DescribePackageInput(interface.inputs[0]), "FP32[2 to 32, 10]");
  EXPECT_EQ(DescribePackageInput(interface.inputs[1]), "INT64[2 to 32]");
  EXPECT_EQ(interface.inputs[1].name, "input__1");
}

TEST(ParseAotiInterfaceTest, TreatsSizeWithoutBoundsAsDynamic) {
  BRAID_ASSERT_OK_AND_ASSIGN(
      const PackageInterface interface,
      ParseAotiInterface(Type(0, "Half") + Fixed(0, 1, 3) + Stride(0, 1, 1)));
  const PackageDim& rows = interface.inputs[0].dims[0];
  EXPECT_EQ(rows.min, 0);
  EXPECT_EQ(rows.max, std::numeric_limits<int64_t>::max());
}

TEST(ParseAotiInterfaceTest, ReadsNamesFromTrees) {
  const std::string arguments = Node(
      "tuple", "null", Node("tuple", "null", Leaf()) + ", " + Node("dict", R"([\"ids\"])", Leaf()));
  const std::string results = Node("dict", R"([\"a\", \"b\"])",
                                   Leaf() + ", " + Node("list", "null", Leaf() + ", " + Leaf()));
  BRAID_ASSERT_OK_AND_ASSIGN(
      const PackageInterface interface,
      ParseAotiInterface(TwoInputs() + Tree("in_spec_", arguments) + Tree("out_spec_", results)));
  EXPECT_EQ(interface.inputs[0].name, "input__0");
  EXPECT_EQ(interface.inputs[1].name, "ids");
  EXPECT_THAT(interface.output_paths, ElementsAre("a", "b.0", "b.1"));
}

TEST(ParseAotiInterfaceTest, RejectsIncompleteOrNonContiguousInputs) {
  constexpr auto kFailed = absl::StatusCode::kFailedPrecondition;
  EXPECT_THAT(ParseAotiInterface("int main() {}"),
              StatusIs(kFailed, HasSubstr("does not describe its inputs")));
  EXPECT_THAT(ParseAotiInterface(Type(0, "Float") + Fixed(0, 0, 4) + Fixed(0, 1, 3) +
                                 Stride(0, 0, 1) + Stride(0, 1, 4)),
              StatusIs(kFailed, HasSubstr("non-contiguous")));
  EXPECT_THAT(ParseAotiInterface(Type(0, "ComplexFloat")),
              StatusIs(kFailed, HasSubstr("unsupported datatype")));
  EXPECT_THAT(ParseAotiInterface(Type(0, "Float") + Fixed(3, 0, 4)),
              StatusIs(kFailed, HasSubstr("inconsistent")));
}

TEST(CheckPackageShapeTest, AllowsFewerRowsOnly) {
  BRAID_ASSERT_OK_AND_ASSIGN(const PackageInterface interface, ParseAotiInterface(TwoInputs()));
  const PackageInput& x = interface.inputs[0];
  EXPECT_THAT(CheckPackageShape(x, DataType::kFp32, {32, 10}, 0), IsOk());
  EXPECT_THAT(CheckPackageShape(x, DataType::kFp32, {1, 10}, 0), IsOk());
  EXPECT_THAT(CheckPackageShape(x, DataType::kFp32, {1, 10}, std::nullopt), Not(IsOk()));
  EXPECT_THAT(CheckPackageShape(x, DataType::kFp32, {33, 10}, 0),
              RefusesField("inputs", HasSubstr("FP32[2 to 32, 10]")));
  EXPECT_THAT(CheckPackageShape(x, DataType::kFp32, {4, 9}, 0), Not(IsOk()));
  EXPECT_THAT(CheckPackageShape(x, DataType::kFp64, {4, 10}, 0), Not(IsOk()));
  EXPECT_THAT(CheckPackageShape(x, DataType::kFp32, {4}, 0), Not(IsOk()));
  EXPECT_THAT(CheckPackageShape(x, DataType::kFp32, {1, 10}, 1), Not(IsOk()));
}

TEST(AotiKernelsTest, RejectsIndexChecksInParallelRegions) {
  const std::string threads = "extern \"C\" void one() {\n#pragma omp parallel num_threads(2)\n}\n";
  const std::string check = "extern \"C\" void two() { AOTI_TORCH_CHECK(i < 9, \"index\"); }\n";
  EXPECT_THAT(CheckNoParallelIndexChecks(threads + check + threads), IsOk());
  EXPECT_THAT(CheckNoParallelIndexChecks(""), IsOk());
  EXPECT_THAT(
      CheckNoParallelIndexChecks(check + "extern \"C\" void three() {\n#pragma omp parallel\n" +
                                 "AOTI_TORCH_CHECK(i < 9, \"index\"); }\n"),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("cpp.threads = 1")));
}

}  // namespace
}  // namespace braid
