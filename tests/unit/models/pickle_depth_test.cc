#include "server/models/pickle_depth.h"

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
constexpr char kProto[] = "\x80\x02";

std::string Times(size_t count, const std::string& text) {
  std::string all;
  for (size_t i = 0; i < count; ++i) {
    all += text;
  }
  return all;
}

std::string Number(size_t value) {
  std::string bytes;
  for (int i = 0; i < 4; ++i) {
    bytes += static_cast<char>(value >> (8 * i));
  }
  return bytes;
}

std::string Text(const std::string& text) { return absl::StrCat("X", Number(text.size()), text); }
std::string Put(size_t id) { return absl::StrCat("r", Number(id)); }
std::string Get(size_t id) { return absl::StrCat("j", Number(id)); }

absl::Status Check(const std::string& values) {
  return CheckPickleDepth(absl::StrCat(kProto, values, "."));
}

TEST(PickleDepthTest, NestedValuesAreBounded) {
  const std::string module = "c__torch__\nM\n)\x81}(" + Text("child");
  const std::vector<std::function<std::string(size_t)>> nested = {
      [](size_t n) { return absl::StrCat(")", Times(n, "\x85")); },
      [](size_t n) { return absl::StrCat(")", Times(n, "N\x86")); },
      [](size_t n) { return absl::StrCat(")", Times(n, "NN\x87")); },
      [](size_t n) { return Times(n, "(") + Times(n, "t"); },
      [](size_t n) { return Times(n, "(") + Times(n, "l"); },
      [](size_t n) { return Times(n, "](") + "N" + Times(n, "e"); },
      [](size_t n) { return Times(n, "]") + "N" + Times(n, "a"); },
      [](size_t n) { return Times(n, "(K\x01") + "N" + Times(n, "d"); },
      [](size_t n) { return Times(n, "}(K\x01") + "N" + Times(n, "u"); },
      [](size_t n) { return Times(n, "}M\x01\x02") + "N" + Times(n, "s"); },
      [&](size_t n) { return Times(n, module) + "N" + Times(n, "ub"); },
      [](size_t n) {
        return Times(n, "ctorch.jit._pickle\nbuild_intlist\n") + "]" + Times(n, "\x85R");
      },
      // Each round takes what the one before it left in the memo.
      [](size_t n) { return ")q\x01" + Times(n, "h\x01\x85q\x01"); },
      [](size_t n) { return "(])" + Put(300) + Times(n, Get(300) + "\x85" + Put(300)) + "t"; },
  };
  for (size_t i = 0; i < nested.size(); ++i) {
    EXPECT_THAT(Check(nested[i](kMostPickleDepth + 1)),
                StatusIs(kFailed, HasSubstr("nests more than 512 values in each other")))
        << i;
    EXPECT_THAT(Check(nested[i](kMostPickleDepth / 2 - 1)), IsOk()) << i;
  }
}

// A list that is in another could grow as deep as there are lists, each changed once.
TEST(PickleDepthTest, NothingGrowsInsideOfAnother) {
  const std::string late = absl::StrCat("]", Put(0), "\x85", Get(0), "(Ne");
  for (const std::string& values : {late, std::string("](]q\x01h\x01") + "eh\x01(Ne",
                                    std::string("]q\x01(h\x01"
                                                "eh\x01(Ne")}) {
    EXPECT_THAT(Check(values), StatusIs(kFailed, HasSubstr("part of others already")));
  }
}

TEST(PickleDepthTest, NamesOfTypesAreBounded) {
  const auto tagged = [](size_t count) {
    const std::string type = Times(count, "List[") + "int" + Times(count, "]");
    return "ctorch.jit._pickle\nrestore_type_tag\n](Ne" + Text(type) + "\x86R";
  };
  EXPECT_THAT(Check(tagged(kMostPickleDepth + 1)),
              StatusIs(kFailed, HasSubstr("a type that nests more than 512 levels")));
  EXPECT_THAT(Check(tagged(kMostPickleDepth)), IsOk());
}

TEST(PickleDepthTest, WhatIsLargeButNotDeepIsWell) {
  constexpr size_t kMany = 100'000;
  const auto list = [](const std::string& value) {
    return absl::StrCat("](", Times(kMany, value), "e");
  };
  EXPECT_THAT(Check(list("K\x01")), IsOk());
  EXPECT_THAT(Check(list("(K\x01K\x02t")), IsOk());
  EXPECT_THAT(Check(list(absl::StrCat("\x8d", Number(4), Number(0), "[[[["))), IsOk());
  EXPECT_THAT(Check(absl::StrCat("}(", Times(kMany, "K\x01G12345678"), "u")), IsOk());
  EXPECT_THAT(Check(absl::StrCat("]", Text(Times(kMany, "([{")), "\x86")), IsOk());
  EXPECT_THAT(Check(absl::StrCat("(", Times(kMany, ")q\x01"), Times(kMany, "h\x01"), "t")), IsOk());
}

TEST(PickleDepthTest, ValuesThatAreNotThereAreMissed) {
  for (const std::string& values : std::vector<std::string>{"\x85",
                                                            "N\x86",
                                                            "NN\x87",
                                                            "t",
                                                            "l",
                                                            "d",
                                                            "e",
                                                            "(e",
                                                            "u",
                                                            "(u",
                                                            "s",
                                                            "}Ns",
                                                            "a",
                                                            "Na",
                                                            "b",
                                                            "Nb",
                                                            "R",
                                                            "Q",
                                                            "\x81",
                                                            "q\x01",
                                                            "h\x01",
                                                            "]h\x01",
                                                            "NN((\x86t",
                                                            "X\xff\xff\xff\x7f",
                                                            "\x8d\xff\xff\xff\xff\xff\xff\xff\xff",
                                                            "ctorch",
                                                            "ctorch\nfoo",
                                                            absl::StrCat("N", Put(1'000'000)),
                                                            absl::StrCat("N", Put(1), Get(2))}) {
    EXPECT_THAT(Check(values), StatusIs(kFailed, HasSubstr("not there"))) << values;
  }
  EXPECT_THAT(CheckPickleDepth("\x80"), StatusIs(kFailed, HasSubstr("damaged")));
}

TEST(PickleDepthTest, WhatIsNoPickleIsLeftToLibTorch) {
  for (const std::string pickle : {"", "V", "no pickle", "\x80\x04\x95"}) {
    EXPECT_THAT(CheckPickleDepth(pickle), IsOk()) << pickle;
  }
}

}  // namespace
}  // namespace braid
