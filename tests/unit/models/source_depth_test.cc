#include "server/models/source_depth.h"

#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

constexpr auto kFailed = absl::StatusCode::kFailedPrecondition;

std::string Times(size_t count, const std::string& text) {
  std::string all;
  for (size_t i = 0; i < count; ++i) {
    all += text;
  }
  return all;
}

// A function whose second line is `body`.
std::string Function(const std::string& body) {
  return absl::StrCat("def f(x: Tensor) -> Tensor:\n  ", body, "\n  return x\n");
}

// Blocks in each other, all begun by `header`; `before` is what each has before the next.
std::string Blocks(size_t count, const std::string& header, const std::string& before = "") {
  std::string source = "def f(x: Tensor) -> Tensor:\n";
  std::string indent = "  ";
  for (size_t i = 0; i < count; ++i) {
    if (!before.empty()) {
      absl::StrAppend(&source, indent, before, "\n", indent, "  pass\n");
    }
    absl::StrAppend(&source, indent, header, "\n");
    indent += "  ";
  }
  return absl::StrCat(source, indent, "pass\n  return x\n");
}

TEST(SourceDepthTest, WhatNestsInAStatementIsBounded) {
  const std::vector<std::function<std::string(size_t)>> nested = {
      [](size_t n) { return Times(n, "(") + "1" + Times(n, ")"); },
      [](size_t n) { return Times(n, "["); },
      [](size_t n) { return Times(n, "{0:") + "1" + Times(n, "}"); },
      [](size_t n) { return Times(n, "torch.add(") + "x" + Times(n, ", 1)"); },
      [](size_t n) { return Times(n, "(0, ") + "x" + Times(n, ")"); },
      [](size_t n) { return Times(n, "-") + "1"; },
      [](size_t n) { return Times(n, "not ") + "x"; },
      [](size_t n) { return "1" + Times(n, "+1"); },
      [](size_t n) { return "2" + Times(n, "**2"); },
      [](size_t n) { return Times(n, "1 if x else ") + "2"; },
      [](size_t n) { return "x" + Times(n, "[0]"); },
      [](size_t n) { return "x" + Times(n, "[0, 1]"); },
      [](size_t n) { return "x" + Times(n, ".y"); },
      [](size_t n) { return "x" + Times(n, "()"); },
      [](size_t n) { return "x" + Times(n, "(1, 2)"); },
      [](size_t n) { return Times(n, "[") + "y" + Times(n, " for y in x]"); },
      [](size_t n) { return Times(n, "'[' [") + "y" + Times(n, "]"); },
      [](size_t n) { return "(x, " + Times(n, "(") + "1" + Times(n, ")") + ", x)"; },
  };
  for (const auto& expression : nested) {
    const std::string deep = Function("y = " + expression(kMostSourceDepth));
    EXPECT_THAT(CheckSourceDepth(deep),
                StatusIs(kFailed, HasSubstr("nests more than 512 levels in line 2")))
        << deep.substr(0, 100);
    EXPECT_THAT(CheckSourceDepth(Function("y = " + expression(kMostSourceDepth / 8))), IsOk())
        << deep.substr(0, 100);
  }
  const std::string type = Times(kMostSourceDepth, "List[") + "int" + Times(kMostSourceDepth, "]");
  EXPECT_THAT(CheckSourceDepth(Function("y : " + type)), StatusIs(kFailed, HasSubstr("line 2")));
}

// f(1)(1)…: what stands in the first bracket is as deep as what follows it.
TEST(SourceDepthTest, WhatFollowsABracketIsAroundIt) {
  const std::string half = Times(kMostSourceDepth / 2, "-") + "1";
  const std::string calls = Times(kMostSourceDepth / 4, "(x)");
  EXPECT_THAT(CheckSourceDepth(Function("x(" + half + ")")), IsOk());
  EXPECT_THAT(CheckSourceDepth(Function("x" + calls)), IsOk());
  EXPECT_THAT(CheckSourceDepth(Function("x(" + half + ")" + calls + calls)),
              StatusIs(kFailed, HasSubstr("line 2")));
}

TEST(SourceDepthTest, BlocksInEachOtherAreBounded) {
  for (const std::string header : {"if x:", "while x:", "for i in x:", "with x:", "def g():"}) {
    EXPECT_THAT(CheckSourceDepth(Blocks(kMostSourceDepth, header)),
                StatusIs(kFailed, HasSubstr("nests more than 512 levels in line 5")))
        << header;
    EXPECT_THAT(CheckSourceDepth(Blocks(kMostSourceDepth - 20, header)), IsOk()) << header;
  }
  EXPECT_THAT(CheckSourceDepth(Blocks(kMostSourceDepth, "else:", "if x:")),
              StatusIs(kFailed, HasSubstr("line 15")));
  EXPECT_THAT(CheckSourceDepth(Blocks(kMostSourceDepth - 20, "else:", "if x:")), IsOk());
  const std::string elif = "\n  elif x:\n    pass";
  EXPECT_THAT(CheckSourceDepth(Function("if x:\n    pass" + Times(kMostSourceDepth, elif))),
              StatusIs(kFailed, HasSubstr("nests more than 512 levels")));
  EXPECT_THAT(CheckSourceDepth(Function("if x:\n    pass" + Times(kMostSourceDepth - 20, elif))),
              IsOk());
}

TEST(SourceDepthTest, WhatIsLongButNotDeepIsWell) {
  constexpr size_t kMany = 100'000;
  EXPECT_THAT(CheckSourceDepth(Function("y = [" + Times(kMany, "-1, ") + "]")), IsOk());
  EXPECT_THAT(CheckSourceDepth(Function("y = {" + Times(kMany, "0: (1, [2]), ") + "}")), IsOk());
  EXPECT_THAT(CheckSourceDepth(Function("y = '" + Times(kMany, "([{\\'#-") + "'")), IsOk());
  EXPECT_THAT(CheckSourceDepth(Function("y = \"\"\"" + Times(kMany, "([{'") + "\"\"\"")), IsOk());
  EXPECT_THAT(CheckSourceDepth(Function("y = 1 # " + Times(kMany, "("))), IsOk());
  EXPECT_THAT(CheckSourceDepth(Function(Times(kMany, "x = torch.add(x, 1)\n  "))), IsOk());
  EXPECT_THAT(CheckSourceDepth(Function(Times(kMany / 10, "if x:\n    x = 1\n  "))), IsOk());
  EXPECT_THAT(CheckSourceDepth(Times(kMany / 10, Function("x"))), IsOk());
}

TEST(SourceDepthTest, LinesWithoutCodeAreBounded) {
  for (const std::string line : {"\n", "  \t\n", "# (\n", "  #\n", "\\\n"}) {
    EXPECT_THAT(CheckSourceDepth(Function("y = 1\n" + Times(kMostEmptyLines + 1, line))),
                StatusIs(kFailed, HasSubstr("more than 1024 lines without code in line 1027")));
  }
  EXPECT_THAT(CheckSourceDepth(Function("y = 1\n" + Times(kMostEmptyLines - 1, "\n"))), IsOk());
}

TEST(SourceDepthTest, WhatIsNoCodeIsLeftToLibTorch) {
  for (const std::string source :
       {"", "\n", ")", "]]", "def", "  x\n y\n", "'", "\"\"\"", "$", "x = (\n", "(]", "if x:\n)\n",
        "\xff\xfe", "elif x:\n  y\n", "else:\n  y\n", "x = 1 \\"}) {
    EXPECT_THAT(CheckSourceDepth(source), IsOk()) << source;
  }
}

}  // namespace
}  // namespace braid
