#include "server/training/optim/parameter_groups.h"

#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::vector<std::string>& Names() {
  static const auto& names = *new std::vector<std::string>{"features.0.weight", "features.0.bias",
                                                           "classifier.weight", "classifier.bias"};
  return names;
}

absl::StatusOr<ParameterGroups> Groups(std::vector<ParameterGroupSpec> specs) {
  return ParameterGroups::Create(std::move(specs), Names());
}

std::vector<size_t> GroupsOf(const ParameterGroups& groups, size_t count) {
  std::vector<size_t> of;
  for (size_t p = 0; p < count; ++p) {
    of.push_back(groups.group_of(p));
  }
  return of;
}

TEST(ParameterGroupsTest, HasNoGroupsByDefault) {
  BRAID_ASSERT_OK_AND_ASSIGN(const ParameterGroups groups, Groups({}));
  EXPECT_EQ(groups.size(), 1);
  EXPECT_THAT(GroupsOf(groups, 4), ElementsAre(0, 0, 0, 0));
  EXPECT_FALSE(groups.frozen(0));
}

TEST(ParameterGroupsTest, AssignsAParameterToTheFirstMatchingGroup) {
  BRAID_ASSERT_OK_AND_ASSIGN(const ParameterGroups groups,
                             Groups({{.pattern = "bias$"}, {.pattern = "^features\\.\\d"}}));
  EXPECT_EQ(groups.size(), 3);
  EXPECT_THAT(GroupsOf(groups, 4), ElementsAre(2, 1, 0, 1));
}

TEST(ParameterGroupsTest, FreezesTheParametersOfAFrozenGroup) {
  BRAID_ASSERT_OK_AND_ASSIGN(
      const ParameterGroups groups,
      Groups({{.pattern = "0.bias", .lr = 0.1}, {.pattern = "^features", .frozen = true}}));
  EXPECT_TRUE(groups.frozen(0));
  EXPECT_FALSE(groups.frozen(1));
  EXPECT_FALSE(groups.frozen(2));
}

TEST(ParameterGroupsTest, ARangeKeepsTheGroupsOfItsParameters) {
  BRAID_ASSERT_OK_AND_ASSIGN(
      const ParameterGroups groups,
      Groups({{.pattern = "^features", .frozen = true}, {.pattern = "bias", .lr = 1}}));
  const ParameterGroups range = groups.Range(1, 3);
  EXPECT_EQ(range.size(), 3);
  EXPECT_THAT(GroupsOf(range, 3), ElementsAre(1, 0, 2));
  EXPECT_TRUE(range.frozen(0));
}

TEST(ParameterGroupsTest, RejectsInvalidPatterns) {
  EXPECT_THAT(Groups({{.pattern = "bias"}, {.pattern = "(weight"}}),
              RefusesField("parameter_groups[1].pattern", HasSubstr("missing )")));
  EXPECT_THAT(Groups({{.pattern = ""}}),
              RefusesField("parameter_groups[0].pattern", HasSubstr("is empty")));
}

TEST(ParameterGroupsTest, RejectsAPatternThatNeedsTooMuchMemory) {
  const std::string pattern = absl::StrJoin(std::vector<std::string>(40, ".{1000}"), "");
  EXPECT_THAT(Groups({{.pattern = pattern}}),
              RefusesField("parameter_groups[0].pattern", HasSubstr("pattern too large")));
}

TEST(ParameterGroupsTest, RejectsAPatternWithoutMatch) {
  EXPECT_THAT(Groups({{.pattern = "^weight"}}),
              RefusesField("parameter_groups[0].pattern", HasSubstr("\"^weight\" matches no")));
}

TEST(ParameterGroupsTest, RejectsNumbersOutOfRange) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(Groups({{.pattern = "bias", .lr = -1}}),
              RefusesField("parameter_groups[0].lr", HasSubstr("-1 is out of range")));
  EXPECT_THAT(Groups({{.pattern = "bias", .weight_decay = kNan}}),
              RefusesField("parameter_groups[0].weight_decay", HasSubstr("at least 0")));
  EXPECT_THAT(Groups({{.pattern = "bias", .momentum = -1}}),
              RefusesField("parameter_groups[0].momentum", HasSubstr("at least 0")));
}

TEST(ParameterGroupsTest, RejectsValuesForAFrozenGroup) {
  const auto refuses = [](const ParameterGroupSpec& spec, const std::string& field) {
    EXPECT_THAT(Groups({spec}), RefusesField("parameter_groups[0]." + field, HasSubstr("frozen")));
  };
  refuses({.pattern = "bias", .frozen = true, .lr = 0.1}, "lr");
  refuses({.pattern = "bias", .frozen = true, .weight_decay = 0.1}, "weight_decay");
  refuses({.pattern = "bias", .frozen = true, .momentum = 0.1}, "momentum");
}

TEST(ParameterGroupsTest, RejectsFreezingEveryParameter) {
  EXPECT_THAT(Groups({{.pattern = "weight", .frozen = true}, {.pattern = "bias", .frozen = true}}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("every parameter")));
}

}  // namespace
}  // namespace braid
