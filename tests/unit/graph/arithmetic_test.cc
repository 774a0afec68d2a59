#include "server/graph/arithmetic.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "c10/util/Exception.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace braid {
namespace {

using c10::IValue;
using ::testing::HasSubstr;

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
constexpr int64_t kMin = std::numeric_limits<int64_t>::min();

IValue Apply(const std::string& target, const std::vector<IValue>& arguments) {
  const Arithmetic* found = FindArithmetic(target);
  EXPECT_NE(found, nullptr) << target;
  EXPECT_EQ(found->arity, arguments.size());
  return found->apply(arguments.data());
}

int64_t Whole(const std::string& target, const std::vector<IValue>& arguments) {
  const IValue result = Apply(target, arguments);
  EXPECT_TRUE(result.isInt()) << target;
  return result.toInt();
}

double Real(const std::string& target, const std::vector<IValue>& arguments) {
  const IValue result = Apply(target, arguments);
  EXPECT_TRUE(result.isDouble()) << target;
  return result.toDouble();
}

bool Truth(const std::string& target, const std::vector<IValue>& arguments) {
  const IValue result = Apply(target, arguments);
  EXPECT_TRUE(result.isBool()) << target;
  return result.toBool();
}

void ExpectFails(const std::string& target, const std::vector<IValue>& arguments,
                 const std::string& words) {
  try {
    Apply(target, arguments);
    ADD_FAILURE() << target << " gave a result";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what_without_backtrace(), HasSubstr(words));
  }
}

TEST(ArithmeticTest, DividesAndRoundsLikePython) {
  for (const int64_t a : {-7, -6, -1, 0, 1, 6, 7}) {
    for (const int64_t b : {-3, -2, -1, 1, 2, 3}) {
      const double quotient = std::floor(static_cast<double>(a) / static_cast<double>(b));
      EXPECT_EQ(Whole("_operator.floordiv", {a, b}), static_cast<int64_t>(quotient));
      EXPECT_EQ(Whole("_operator.mod", {a, b}), a - b * static_cast<int64_t>(quotient));
    }
  }
  EXPECT_EQ(Whole("_operator.floordiv", {-kMax, int64_t{2}}), -kMax / 2 - 1);
  EXPECT_EQ(Real("_operator.floordiv", {-7.5, 2.0}), -4);
  EXPECT_EQ(Real("_operator.mod", {-7.5, 2.0}), 0.5);
  EXPECT_EQ(Real("_operator.floordiv", {int64_t{-7}, 2.0}), -4);
  EXPECT_EQ(Real("_operator.floordiv", {-1.0, std::numeric_limits<double>::infinity()}), -1);
}

TEST(ArithmeticTest, KeepsIntegersAndMixesThemWithFloats) {
  EXPECT_EQ(Whole("_operator.add", {int64_t{3}, int64_t{4}}), 7);
  EXPECT_EQ(Whole("_operator.add", {int64_t{3}, true}), 4);
  EXPECT_EQ(Real("_operator.mul", {int64_t{3}, 0.5}), 1.5);
  EXPECT_EQ(Whole("_operator.sub", {int64_t{3}, int64_t{4}}), -1);
  EXPECT_EQ(Whole("_operator.neg", {int64_t{3}}), -3);
  EXPECT_EQ(Real("_operator.truediv", {int64_t{7}, int64_t{2}}), 3.5);
  EXPECT_EQ(Real("torch.sym_max", {int64_t{3}, 2.5}), 3);
  EXPECT_EQ(Whole("torch.sym_min", {int64_t{3}, int64_t{2}}), 2);
}

TEST(ArithmeticTest, RaisesToPowers) {
  EXPECT_EQ(Whole("_operator.pow", {int64_t{-3}, int64_t{3}}), -27);
  EXPECT_EQ(Whole("_operator.pow", {int64_t{0}, int64_t{0}}), 1);
  EXPECT_EQ(Whole("_operator.pow", {int64_t{2}, int64_t{62}}), int64_t{1} << 62);
  EXPECT_EQ(Real("_operator.pow", {int64_t{2}, int64_t{-1}}), 0.5);
  EXPECT_EQ(Real("_operator.pow", {int64_t{9}, 0.5}), 3);
  ExpectFails("_operator.pow", {int64_t{-1}, 0.5}, "negative");
  ExpectFails("_operator.pow", {int64_t{0}, int64_t{-1}}, "by zero");
}

TEST(ArithmeticTest, ComparesLargeIntegersExactly) {
  EXPECT_FALSE(Truth("_operator.eq", {kMax, static_cast<double>(kMax)}));
  EXPECT_TRUE(Truth("_operator.lt", {kMax - 1, kMax}));
  EXPECT_TRUE(Truth("_operator.ne", {int64_t{1}, int64_t{2}}));
  EXPECT_TRUE(Truth("_operator.ge", {int64_t{2}, 2.0}));
  EXPECT_TRUE(Truth("_operator.le", {int64_t{2}, int64_t{2}}));
  EXPECT_FALSE(Truth("_operator.gt", {int64_t{2}, int64_t{2}}));
}

TEST(ArithmeticTest, SelectsAndShifts) {
  EXPECT_TRUE(Truth("_operator.or_", {true, false}));
  EXPECT_FALSE(Truth("_operator.and_", {true, false}));
  EXPECT_EQ(Whole("_operator.and_", {int64_t{6}, int64_t{3}}), 2);
  EXPECT_FALSE(Truth("torch.sym_not", {true}));
  EXPECT_EQ(Whole("torch.sym_ite", {false, int64_t{1}, int64_t{2}}), 2);
  EXPECT_EQ(Whole("_operator.lshift", {int64_t{-3}, int64_t{2}}), -12);
  EXPECT_EQ(Whole("_operator.rshift", {int64_t{-3}, int64_t{1}}), -2);
  EXPECT_EQ(Whole("_operator.rshift", {int64_t{-3}, int64_t{99}}), -1);
}

TEST(ArithmeticTest, RoundsFloatsToIntegers) {
  EXPECT_EQ(Whole("math.trunc", {-2.5}), -2);
  EXPECT_EQ(Whole("torch.sym_int", {2.5}), 2);
  EXPECT_EQ(Whole("math.floor", {-2.5}), -3);
  EXPECT_EQ(Whole("math.ceil", {-2.5}), -2);
  EXPECT_EQ(Real("torch.sym_float", {int64_t{2}}), 2);
  EXPECT_EQ(Real("torch.sym_sqrt", {int64_t{16}}), 4);
  ExpectFails("math.trunc", {1e19}, "64 bits");
  ExpectFails("math.trunc", {std::nan("")}, "64 bits");
  ExpectFails("math.floor", {std::numeric_limits<double>::infinity()}, "64 bits");
}

TEST(ArithmeticTest, RejectsResultsOfMoreThan64Bits) {
  ExpectFails("_operator.add", {kMax, int64_t{1}}, "64 bits");
  ExpectFails("_operator.sub", {kMin, int64_t{1}}, "64 bits");
  ExpectFails("_operator.mul", {kMax, int64_t{2}}, "64 bits");
  ExpectFails("_operator.neg", {kMin}, "64 bits");
  ExpectFails("_operator.floordiv", {kMin, int64_t{-1}}, "64 bits");
  ExpectFails("_operator.pow", {int64_t{2}, int64_t{63}}, "64 bits");
  ExpectFails("_operator.lshift", {int64_t{1}, int64_t{63}}, "64 bits");
  EXPECT_EQ(Whole("_operator.mod", {kMin, int64_t{-1}}), 0);
}

TEST(ArithmeticTest, RejectsDivisionsByZero) {
  for (const char* target : {"_operator.floordiv", "_operator.mod", "_operator.truediv"}) {
    ExpectFails(target, {int64_t{1}, int64_t{0}}, "by zero");
    ExpectFails(target, {1.0, 0.0}, "by zero");
  }
}

TEST(ArithmeticTest, RejectsOtherTypes) {
  ExpectFails("_operator.add", {int64_t{1}, "text"}, "integer");
}

TEST(ArithmeticTest, RejectsOtherFunctions) {
  EXPECT_EQ(FindArithmetic("_operator.matmul"), nullptr);
  EXPECT_EQ(FindArithmetic(""), nullptr);
}

}  // namespace
}  // namespace braid
