#include "server/rpc/inference/infer_parameters.h"

#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/made_config.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TensorSpec Scalar(const std::string& name, DataType type) {
  TensorSpec spec;
  spec.name = name;
  spec.type = type;
  spec.broadcast = true;
  spec.scalar = true;
  return spec;
}

ModelConfig Config() {
  return MakeConfig(8,
                    {{"x", DataType::kFp32, {3}},
                     Scalar("n", DataType::kInt64),
                     Scalar("flag", DataType::kBool),
                     Scalar("alpha", DataType::kFp64)},
                    {{"y", DataType::kFp32, {3}}});
}

Parameters Scalars() {
  Parameters parameters;
  parameters["n"].set_int64_param(-7);
  parameters["flag"].set_bool_param(true);
  parameters["alpha"].set_double_param(0.25);
  return parameters;
}

template <typename T>
T ValueOf(const HostTensor& tensor) {
  T value;
  std::memcpy(&value, tensor.data, sizeof(T));
  return value;
}

TEST(AddScalarsTest, ParametersBecomeScalarTensors) {
  std::vector<HostTensor> tensors;
  ASSERT_THAT(AddScalars(Config(), Scalars(), &tensors), IsOk());
  ASSERT_THAT(tensors, SizeIs(3));
  for (const HostTensor& tensor : tensors) {
    EXPECT_THAT(tensor.shape, IsEmpty());
    EXPECT_EQ(tensor.bytes, DataTypeSize(tensor.type));
  }
  EXPECT_EQ(ValueOf<int64_t>(tensors[0]), -7);
  EXPECT_TRUE(ValueOf<bool>(tensors[1]));
  EXPECT_EQ(ValueOf<double>(tensors[2]), 0.25);
}

TEST(AddScalarsTest, IntegersAreValidNumbers) {
  Parameters parameters = Scalars();
  parameters["n"].set_uint64_param(9);
  parameters["alpha"].set_int64_param(2);
  std::vector<HostTensor> tensors;
  ASSERT_THAT(AddScalars(Config(), parameters, &tensors), IsOk());
  EXPECT_EQ(ValueOf<int64_t>(tensors[0]), 9);
  EXPECT_EQ(ValueOf<double>(tensors[2]), 2.0);
}

TEST(AddScalarsTest, RejectsOtherTypes) {
  const auto refused = [](const char* name, const auto& change) {
    Parameters parameters = Scalars();
    change(parameters[name]);
    std::vector<HostTensor> tensors;
    EXPECT_THAT(AddScalars(Config(), parameters, &tensors),
                RefusesField(std::string("parameters.") + name, HasSubstr("expected")));
  };
  refused("n", [](auto& p) { p.set_double_param(1.0); });
  refused("n", [](auto& p) { p.set_bool_param(true); });
  refused("n", [](auto& p) { p.set_uint64_param(std::numeric_limits<uint64_t>::max()); });
  refused("n", [](auto& p) { p.set_string_param("1"); });
  refused("flag", [](auto& p) { p.set_int64_param(1); });
  refused("alpha", [](auto& p) { p.set_string_param("1"); });
  refused("alpha", [](auto& p) { p.set_int64_param(std::numeric_limits<int64_t>::max()); });
  refused("alpha", [](auto& p) { p.Clear(); });
}

TEST(AddScalarsTest, OmitsMissingParameters) {
  Parameters parameters = Scalars();
  parameters.erase("flag");
  std::vector<HostTensor> tensors;
  ASSERT_THAT(AddScalars(Config(), parameters, &tensors), IsOk());
  ASSERT_THAT(tensors, SizeIs(2));
  EXPECT_EQ(tensors[1].name, "alpha");
}

TEST(AddScalarsTest, RejectsScalarsSentAsTensors) {
  std::vector<HostTensor> tensors(1);
  tensors[0].name = "n";
  EXPECT_THAT(AddScalars(Config(), Scalars(), &tensors),
              RefusesField("inputs[0].name", HasSubstr("parameter")));
}

TEST(CheckParametersTest, RejectsUnsupportedParametersByName) {
  for (const char* name : {"sequence_id", "sequence_start", "triton_anything"}) {
    Parameters parameters;
    parameters[name].set_int64_param(1);
    EXPECT_THAT(CheckParameters(parameters),
                StatusIs(absl::StatusCode::kUnimplemented, HasSubstr(name)));
  }
  Parameters harmless;
  harmless["sequence_id"].set_int64_param(0);
  harmless["sequence_end"].set_bool_param(false);
  harmless["triton_enable_empty_final_response"].set_bool_param(true);
  harmless["trace"].set_string_param("of the client's own");
  EXPECT_THAT(CheckParameters(harmless), IsOk());
}

TEST(ReadScheduleTest, ReadsPriorityAndTimeout) {
  Parameters parameters;
  parameters["priority"].set_uint64_param(2);
  parameters["timeout"].set_int64_param(1500);
  const absl::Time deadline = absl::UnixEpoch();
  BRAID_ASSERT_OK_AND_ASSIGN(const auto schedule, ReadSchedule(parameters, deadline));
  EXPECT_EQ(schedule.priority, 2);
  EXPECT_EQ(schedule.timeout, absl::Microseconds(1500));
  EXPECT_EQ(schedule.deadline, deadline);
}

TEST(ReadScheduleTest, RejectsNegativeValuesAndOtherTypes) {
  for (const char* name : {"priority", "timeout"}) {
    const std::string field = std::string("parameters.") + name;
    Parameters parameters;
    parameters[name].set_int64_param(-1);
    EXPECT_THAT(ReadSchedule(parameters, absl::InfiniteFuture()),
                RefusesField(field, HasSubstr("-1")));
    parameters[name].set_string_param("1");
    EXPECT_THAT(ReadSchedule(parameters, absl::InfiniteFuture()),
                RefusesField(field, HasSubstr("string")));
  }
}

}  // namespace
}  // namespace braid
