#include "server/models/torchscript/flatten_outputs.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/script_modules.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kFailed = absl::StatusCode::kFailedPrecondition;

// Returns the paths of the results of a forward() with `body`, with "=None" after the path of a
// None.
absl::StatusOr<std::vector<std::string>> Paths(const std::string& body) {
  torch::jit::Module module = NewModule();
  module.define("def forward(self):\n  x = torch.zeros([1])\n  return " + body + "\n");
  BRAID_ASSIGN_OR_RETURN(const std::vector<OutputLeaf> leaves, Flatten(module.forward({})));
  std::vector<std::string> paths;
  for (const OutputLeaf& leaf : leaves) {
    paths.push_back(leaf.value.defined() ? leaf.path : absl::StrCat(leaf.path, "=None"));
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

TEST(FlattenTest, UsesDictKeysAsPaths) {
  EXPECT_THAT(*Paths("{'logits': x, 'a': x}"), ElementsAre("logits", "a"));
  EXPECT_THAT(*Paths("{'a': {'b': x}, 'c': {'b': x}}"), ElementsAre("a.b", "c.b"));
  EXPECT_THAT(*Paths("{'a': (x, x)}"), ElementsAre("a.0", "a.1"));
  EXPECT_THAT(*Paths("(x, {'a': x})"), ElementsAre("", "a"));
}

TEST(FlattenTest, KeepsNoneInContainers) {
  EXPECT_THAT(*Paths("(x, None, x)"), ElementsAre("", "=None", ""));
  EXPECT_THAT(*Paths("([x, None], x)"), ElementsAre("", "=None", ""));
  EXPECT_THAT(*Paths("{'a': (x, None, x)}"), ElementsAre("a.0", "a.1=None", "a.2"));
}

TEST(FlattenTest, RejectsOtherValues) {
  EXPECT_THAT(Paths("1"), StatusIs(kFailed, HasSubstr("returned a Int (expected tensors")));
  EXPECT_THAT(Paths("(x, 'text')"), StatusIs(kFailed, HasSubstr("String")));
  EXPECT_THAT(Paths("None"), StatusIs(kFailed, HasSubstr("None")));
  EXPECT_THAT(Paths("{1: x}"), StatusIs(kFailed, HasSubstr("keys are not strings")));
}

}  // namespace
}  // namespace braid
