#include "server/training/step/eval_modules.h"

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::vector<std::string> kModules = {"body",  "body.0", "body.0.bn",
                                           "body2", "head",   "head.bn"};

absl::StatusOr<std::vector<std::string>> Find(const std::vector<std::string>& patterns) {
  return FindEvalModules(patterns, kModules);
}

TEST(FindEvalModulesTest, FindsPatternsInPathsAndAddsTheSubmodules) {
  EXPECT_THAT(*Find({R"(\bbn$)"}), ElementsAre("body.0.bn", "head.bn"));
  EXPECT_THAT(*Find({"^body$"}), ElementsAre("body", "body.0", "body.0.bn"));
  EXPECT_THAT(*Find({"^head", "^body$"}),
              ElementsAre("body", "body.0", "body.0.bn", "head", "head.bn"));
  EXPECT_THAT(*Find({}), ElementsAre());
}

TEST(FindEvalModulesTest, RejectsPatternsWithoutAModule) {
  EXPECT_THAT(
      Find({"head", "^bn"}),
      RefusesField("eval_modules[1]", AllOf(HasSubstr("\"^bn\" matches no submodule"),
                                            HasSubstr("'body', 'body.0'"), HasSubstr("6 in all"))));
  EXPECT_THAT(Find({"("}), RefusesField("eval_modules[0]", HasSubstr("not a regular expression")));
  EXPECT_THAT(Find({""}), RefusesField("eval_modules[0]", HasSubstr("empty")));
}

}  // namespace
}  // namespace braid
