#include "server/models/archive/self_test_tensors.h"

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "absl/strings/escaping.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

constexpr absl::StatusCode kRefused = absl::StatusCode::kFailedPrecondition;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

template <typename T>
std::string Base64(const std::vector<T>& values) {
  return absl::Base64Escape(
      absl::string_view(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)));
}

// Input of `type` with `dims` dynamic dimensions.
PackageInput Any(DataType type, size_t dims = 1) {
  return {"input/x", type, std::vector<PackageDim>(dims)};
}

json Generated(const char* type, std::vector<int64_t> shape, json how) {
  return {{"dtype", type}, {"shape", std::move(shape)}, {"generated", std::move(how)}};
}

at::Tensor Make(const json& said, DataType type) {
  const auto given = GivenTensor::Read(JsonField(said, "x"), Any(type, said["shape"].size()));
  EXPECT_THAT(given, IsOk());
  return given->Make();
}

// The literals are results of braid.exporter.checks.self_test_tensors.
TEST(SelfTestTensorsTest, NumbersMatchThePythonExporter) {
  EXPECT_EQ(SelfTestNumber(1, 0), 0x1.8858b43547040p-1);
  EXPECT_EQ(SelfTestNumber(1, 1), 0x1.021c8d37eacc8p-3);
  EXPECT_EQ(SelfTestNumber(1, 4096), 0x1.bc67617efb233p-1);
  EXPECT_EQ(SelfTestNumber(7, 4294967295), 0x1.d3020e42e0bfbp-1);
  EXPECT_EQ(SelfTestNumber(7, 4294967296), 0x1.fd5630bb2af8bp-1);
  EXPECT_EQ(SelfTestNumber(123456789, 5), 0x1.ad886d30a5691p-1);
}

TEST(SelfTestTensorsTest, TensorsMatchThePythonExporter) {
  const json floats = {{"seed", 3}, {"mean", 0.25}, {"scale", 2.0}, {"min", -1.0}, {"max", 1.5}};
  EXPECT_TRUE(
      at::equal(Make(Generated("FP32", {5}, floats), DataType::kFp32),
                at::tensor({-0x1.0293bcp-1F, 0x1.107abep-2F, -1.0F, -1.0F, 0x1.b4b332p-1F})));
  const json half = {{"seed", 6}, {"mean", 1.0}, {"scale", 0.5}, {"min", 0.0}, {"max", 2.0}};
  EXPECT_TRUE(at::equal(
      Make(Generated("BF16", {2, 2}, half), DataType::kBf16),
      at::tensor({1.0859375, 1.40625, 1.2734375, 0.8125}).view({2, 2}).to(at::kBFloat16)));
  const json small = {{"seed", 3}, {"min", -3}, {"max", 9}};
  EXPECT_TRUE(at::equal(Make(Generated("INT64", {8}, small), DataType::kInt64),
                        at::tensor({1, 3, -3, -2, 5, 4, 3, 4}, at::kLong)));
  const json all = {{"seed", 3},
                    {"min", std::numeric_limits<int64_t>::min()},
                    {"max", std::numeric_limits<int64_t>::max()}};
  EXPECT_TRUE(at::equal(
      Make(Generated("INT64", {3}, all), DataType::kInt64),
      at::tensor({-3481976881309470720, 74216879371644928, -8531540806467670016}, at::kLong)));
  EXPECT_TRUE(at::equal(Make(Generated("BOOL", {5}, {{"seed", 5}}), DataType::kBool),
                        at::tensor({0, 1, 1, 0, 1}).to(at::kBool)));
}

TEST(SelfTestTensorsTest, ElementsDependOnlyOnTheirIndex) {
  const json how = {{"seed", 1}, {"mean", 0}, {"scale", 1}, {"min", -1}, {"max", 1}};
  const int64_t count = (int64_t{1} << 20) + 3;  // more than one chunk
  const at::Tensor made = Make(Generated("FP64", {count}, how), DataType::kFp64);
  for (const int64_t i : {int64_t{0}, int64_t{32768}, count - 3, count - 1}) {
    EXPECT_EQ(made[i].item<double>(), 2 * SelfTestNumber(1, i) - 1) << i;
  }
}

TEST(SelfTestTensorsTest, ReadsStoredBytes) {
  const json said = {
      {"dtype", "FP32"}, {"shape", {1, 2}}, {"data", Base64<float>({0.5F, -INFINITY})}};
  EXPECT_TRUE(at::equal(Make(said, DataType::kFp32), at::tensor({0.5F, -INFINITY}).view({1, 2})));
  const json empty = {{"dtype", "INT64"}, {"shape", {0, 3}}, {"data", ""}};
  EXPECT_EQ(Make(empty, DataType::kInt64).numel(), 0);
}

struct Damage {
  const char* name;
  std::function<void(json&)> make;
  const char* said;
};

class DamagedGivenTensorTest : public ::testing::TestWithParam<Damage> {};

TEST_P(DamagedGivenTensorTest, IsRejectedByFieldAndValue) {
  json said = Generated("INT64", {2, 3}, {{"seed", 1}, {"min", 0}, {"max", 9}});
  PackageInput input{"input/x", DataType::kInt64, {{.min = 1}, {.min = 3, .max = 3}}};
  input.range = ValueRange{0, 9};
  ASSERT_THAT(GivenTensor::Read(JsonField(said, "x"), input), IsOk());
  GetParam().make(said);
  EXPECT_THAT(GivenTensor::Read(JsonField(said, "x"), input),
              StatusIs(kRefused, HasSubstr(GetParam().said)));
}

void Store(json& said, const std::string& data) {
  said.erase("generated");
  said["data"] = data;
}

INSTANTIATE_TEST_SUITE_P(
    All, DamagedGivenTensorTest,
    ::testing::Values(
        Damage{"NoObject", [](json& s) { s = 3; }, "x: expected an object"},
        Damage{"NoDatatype", [](json& s) { s.erase("dtype"); }, "x: has no \"dtype\""},
        Damage{"UnknownDatatype", [](json& s) { s["dtype"] = "FP8"; }, "x.dtype: unknown"},
        Damage{"AnotherDatatype", [](json& s) { s["dtype"] = "INT32"; },
               "x: INT32[2, 3] (expected INT64[from 1, 3])"},
        Damage{"NegativeSize", [](json& s) { s["shape"][0] = -2; }, "x.shape: invalid shape"},
        Damage{"OverflowingShape",
               [](json& s) {
                 s["shape"] = {int64_t{1} << 40, int64_t{1} << 40};
               },
               "x.shape: invalid shape"},
        Damage{"HugeShape",
               [](json& s) {
                 s["shape"] = {int64_t{1} << 40, 3};
               },
               "expected INT64[from 1, 3]"},
        Damage{"AnotherRank", [](json& s) { s["shape"] = {2}; }, "INT64[2] (expected"},
        Damage{"NoRows",
               [](json& s) {
                 s["shape"] = {0, 3};
               },
               "INT64[0, 3] (expected"},
        Damage{"NoData", [](json& s) { s.erase("generated"); }, "x: has no \"data\""},
        Damage{"NoSeed", [](json& s) { s["generated"].erase("seed"); }, "has no \"seed\""},
        Damage{"Backwards", [](json& s) { s["generated"]["min"] = 10; }, "x.generated: "},
        Damage{"OutOfRange", [](json& s) { s["generated"]["max"] = 10; },
               "x.generated: values from 0 to 10 (expected 0 to 9)"},
        Damage{"NoBase64", [](json& s) { Store(s, "?"); }, "x.data: invalid base64"},
        Damage{"FewBytes",
               [](json& s) {
                 Store(s, Base64<int64_t>({1, 2}));
               },
               "x.data: 16 bytes (expected 48 for INT64[2, 3])"},
        Damage{"StoredOutOfRange",
               [](json& s) {
                 Store(s, Base64<int64_t>({1, 2, 3, 4, 5, -1}));
               },
               "x.data: values from -1 to 5"}),
    [](const auto& test) { return test.param.name; });

TEST(SelfTestTensorsTest, RejectsNonFiniteGenerators) {
  const json said =
      Generated("FP32", {2}, {{"seed", 3}, {"mean", "NaN"}, {"scale", 2}, {"min", 0}, {"max", 1}});
  EXPECT_THAT(GivenTensor::Read(JsonField(said, "x"), Any(DataType::kFp32)),
              StatusIs(kRefused, HasSubstr("x.generated.mean: expected a finite number")));
}

TEST(SelfTestTensorsTest, RejectsBooleansOtherThanZeroAndOne) {
  const json said = {{"dtype", "BOOL"}, {"shape", {2}}, {"data", Base64<char>({1, 2})}};
  EXPECT_THAT(GivenTensor::Read(JsonField(said, "x"), Any(DataType::kBool)),
              StatusIs(kRefused, HasSubstr("x.data: bytes other than 0 and 1")));
}

json Sample(const std::vector<double>& elements, std::vector<int64_t> shape, int64_t stride = 1) {
  return {{"dtype", "FP32"},
          {"shape", std::move(shape)},
          {"stride", stride},
          {"data", Base64(elements)},
          {"tolerance", 0.01}};
}

std::optional<std::string> Difference(const json& said, const at::Tensor& tensor) {
  const auto sample = ExpectedSample::Read(JsonField(said, "y"));
  EXPECT_THAT(sample, IsOk());
  return sample->Difference(tensor);
}

TEST(ExpectedSampleTest, AcceptsDifferencesWithinTheTolerance) {
  const json said = Sample({1, 2}, {1, 2});
  EXPECT_EQ(Difference(said, at::tensor({1.009F, 1.991F}).view({1, 2})), std::nullopt);
  EXPECT_EQ(Difference(said, at::tensor({1.5F, 1.25F}).view({1, 2})),
            "differs by up to 0.75 (tolerance 0.01)");
}

TEST(ExpectedSampleTest, ComparesElementsAtTheStride) {
  const json said = Sample({0, 2, 4}, {5}, 2);
  EXPECT_EQ(Difference(said, at::tensor({0.0F, 7.0F, 2.0F, 7.0F, 4.0F})), std::nullopt);
  EXPECT_NE(Difference(said, at::tensor({0.0F, 7.0F, 2.0F, 7.0F, 4.5F})), std::nullopt);
}

TEST(ExpectedSampleTest, NansAndInfinitiesEqualOnlyThemselves) {
  const float nan = std::nanf("");
  const json said = Sample({kNan, kInfinity, 1}, {3});
  EXPECT_EQ(Difference(said, at::tensor({nan, INFINITY, 1.0F})), std::nullopt);
  for (const std::vector<float>& other : std::vector<std::vector<float>>{
           {1, INFINITY, 1}, {nan, -INFINITY, 1}, {nan, 1, 1}, {nan, INFINITY, nan}}) {
    EXPECT_EQ(Difference(said, at::tensor(other)), "differs by up to inf (tolerance 0.01)");
  }
}

TEST(ExpectedSampleTest, ReportsWrongShapeOrDatatype) {
  const json said = Sample({1, 2}, {2});
  EXPECT_EQ(Difference(said, at::ones({2}, at::kDouble)), "is Double[2] (expected FP32[2])");
  EXPECT_EQ(Difference(said, at::ones({2, 1})), "is Float[2, 1] (expected FP32[2])");
}

class DamagedSampleTest : public ::testing::TestWithParam<Damage> {};

TEST_P(DamagedSampleTest, IsRejectedByFieldAndValue) {
  json said = Sample({0, 2, 4}, {5}, 2);
  GetParam().make(said);
  EXPECT_THAT(ExpectedSample::Read(JsonField(said, "y")),
              StatusIs(kRefused, HasSubstr(GetParam().said)));
}

INSTANTIATE_TEST_SUITE_P(
    All, DamagedSampleTest,
    ::testing::Values(
        Damage{"NoStride", [](json& s) { s["stride"] = 0; }, "y: stride 0 (expected at least 1)"},
        Damage{"NegativeTolerance", [](json& s) { s["tolerance"] = -1; },
               "y: tolerance -1 (expected at least 0)"},
        Damage{"NegativeStride", [](json& s) { s["stride"] = -1; }, "y: stride -1"},
        Damage{"OtherStride", [](json& s) { s["stride"] = 1; }, "y.data: 24 bytes (expected 40)"},
        Damage{"HugeShape", [](json& s) { s["shape"][0] = int64_t{1} << 50; }, "y.data: 24 bytes"},
        Damage{"NoBase64", [](json& s) { s["data"] = "?"; }, "y.data: invalid base64"},
        Damage{"HalfANumber",
               [](json& s) {
                 s["data"] = Base64<float>({1, 2, 3});
               },
               "y.data: 12 bytes"},
        Damage{"NoTolerance", [](json& s) { s.erase("tolerance"); }, "has no \"tolerance\""},
        Damage{"TextAsTolerance", [](json& s) { s["tolerance"] = "nan"; },
               "y.tolerance: expected a finite number"}),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace braid
