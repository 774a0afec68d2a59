#include "server/devices/device_spec.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const absl::Status kNoGpu = absl::UnavailableError("the driver is too old");

// Returns the names of the slots; empty for invalid text.
std::vector<std::string> Names(const std::string& text, const absl::StatusOr<int>& gpus) {
  std::vector<std::string> names;
  const absl::StatusOr<std::vector<DeviceSlot>> slots = ParseDevices(text, gpus);
  if (slots.ok()) {
    for (const DeviceSlot& slot : *slots) {
      names.push_back(slot.name);
    }
  }
  return names;
}

TEST(ParseDevicesTest, AutoIsEveryGpuOrTwoCpuSlots) {
  EXPECT_THAT(Names("auto", 2), ElementsAre("cuda:0", "cuda:1"));
  EXPECT_THAT(Names("auto", kNoGpu), ElementsAre("cpu:0", "cpu:1"));
}

TEST(ParseDevicesTest, CpuSlotsAddUp) {
  EXPECT_THAT(Names("cpu", kNoGpu), ElementsAre("cpu:0"));
  EXPECT_THAT(Names("cpu*3", kNoGpu), ElementsAre("cpu:0", "cpu:1", "cpu:2"));
  EXPECT_THAT(Names("cpu,cpu*2", kNoGpu), ElementsAre("cpu:0", "cpu:1", "cpu:2"));
}

TEST(ParseDevicesTest, SortsGpusByNumberAndBeforeTheCpu) {
  EXPECT_THAT(Names("cuda", 2), ElementsAre("cuda:0", "cuda:1"));
  EXPECT_THAT(Names(" cpu , cuda:1 ,cuda:0", 2), ElementsAre("cuda:0", "cuda:1", "cpu:0"));
}

TEST(ParseDevicesTest, NamesWorkersThatShareAGpu) {
  EXPECT_THAT(Names("cuda:0*2", 1), ElementsAre("cuda:0/0", "cuda:0/1"));
  EXPECT_THAT(Names("cuda*2", 2), ElementsAre("cuda:0/0", "cuda:0/1", "cuda:1/0", "cuda:1/1"));
}

TEST(ParseDevicesTest, SlotsHaveKindAndIndex) {
  BRAID_ASSERT_OK_AND_ASSIGN(const auto slots, ParseDevices("cuda:1*2,cpu*2", 2));
  EXPECT_THAT(slots, ElementsAre(DeviceSlot{DeviceKind::kCuda, 1, "cuda:1/0"},
                                 DeviceSlot{DeviceKind::kCuda, 1, "cuda:1/1"},
                                 DeviceSlot{DeviceKind::kCpu, 0, "cpu:0"},
                                 DeviceSlot{DeviceKind::kCpu, 1, "cpu:1"}));
}

TEST(ParseDevicesTest, RejectsInvalidSyntaxAndShowsTheGrammar) {
  for (const char* text : {"", "gpu", "cpu:0", "cuda:", "cuda:x", "cuda:-1", "cpu,", "auto,cpu",
                           "auto*2", "*2", "cudax", "CPU"}) {
    EXPECT_THAT(ParseDevices(text, 2),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("is not a device"), HasSubstr("auto, cpu*N, cuda"))))
        << text;
  }
}

TEST(ParseDevicesTest, AcceptsCountsFrom1To64) {
  EXPECT_EQ(Names("cpu*64", kNoGpu).size(), 64);
  for (const char* text : {"cpu*0", "cpu*-1", "cpu*65", "cpu*", "cpu*x", "cpu*2*2",
                           "cpu*99999999999999999999", "cuda:0*0"}) {
    EXPECT_THAT(ParseDevices(text, 1), StatusIs(absl::StatusCode::kInvalidArgument,
                                                AllOf(HasSubstr(text), HasSubstr("not 1 to 64"))))
        << text;
  }
  EXPECT_THAT(ParseDevices("cpu*40,cpu*40", kNoGpu),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("more than 64")));
}

TEST(ParseDevicesTest, RejectsAGpuThatDoesNotExist) {
  EXPECT_THAT(ParseDevices("cuda:2", 2),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("'cuda:2'"), HasSubstr("this machine has 2"))));
}

TEST(ParseDevicesTest, ReportsWhyNoGpuCanBeUsed) {
  for (const char* text : {"cuda", "cuda:0", "cpu,cuda*2"}) {
    EXPECT_THAT(ParseDevices(text, kNoGpu),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("needs a GPU"), HasSubstr("the driver is too old"))))
        << text;
  }
}

TEST(ParseDevicesTest, RejectsAGpuNamedTwice) {
  for (const char* text : {"cuda:0,cuda:0", "cuda,cuda:1", "cuda:0*2,cuda:0"}) {
    EXPECT_THAT(ParseDevices(text, 2),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("names a GPU twice")))
        << text;
  }
}

}  // namespace
}  // namespace braid
