#include "server/graph/stored_tensors.h"

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "caffe2/serialize/inline_container.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/status_matchers.h"
#include "tests/unit/graph/graph_json.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

json Sizes(const std::vector<int64_t>& sizes) {
  json list = json::array();
  for (const int64_t size : sizes) {
    list.push_back(Int(size));
  }
  return list;
}

json Payload(const std::string& file, const std::vector<int64_t>& sizes,
             const std::vector<int64_t>& strides, int64_t offset = 0) {
  return {{"path_name", file},
          {"is_param", true},
          {"use_pickle", false},
          {"tensor_meta",
           {{"dtype", 7},
            {"sizes", Sizes(sizes)},
            {"strides", Sizes(strides)},
            {"storage_offset", Int(offset)},
            {"requires_grad", true},
            {"device", {{"type", "cpu"}, {"index", nullptr}}},
            {"layout", 7}}}};
}

class StoredTensorsTest : public ::testing::Test {
 protected:
  StoredTensorsTest()
      : path_(std::filesystem::path(::testing::TempDir()) / "payload_test.pt2"),
        config_({{"config",
                  {{"w", Payload("weight_0", {2, 3}, {3, 1})},
                   {"first", Payload("weight_0", {3}, {1}, 3)},
                   {"t", Payload("weight_0", {3, 2}, {1, 3})},
                   {"empty", Payload("weight_1", {0, 3}, {3, 1})}}}}) {}
  ~StoredTensorsTest() override { std::filesystem::remove(path_); }

  absl::StatusOr<std::vector<StoredTensor>> ReadNames(const std::vector<std::string>& names) {
    caffe2::serialize::PyTorchStreamWriter writer(path_);
    const std::vector<float> values = {0, 1, 2, 3, 4, 5};
    writer.writeRecord("data/weights/weight_0", values.data(), values.size() * sizeof(float));
    writer.writeRecord("data/weights/weight_1", values.data(), 0);
    const std::string config = config_.dump();
    writer.writeRecord("data/weights/g_weights_config.json", config.data(), config.size());
    writer.writeEndOfFile();
    json program = ProgramOf(Graph({}, {}, {}));
    for (const std::string& name : names) {
      program["graph_module"]["graph"]["inputs"].push_back(Tensor(name));
      program["graph_module"]["signature"]["input_specs"].push_back(
          {{"parameter", {{"arg", Named(name)}, {"parameter_name", name}}}});
    }
    const auto read = Program::Read(JsonField(program, ""));
    EXPECT_THAT(read, IsOk());
    return ReadStoredTensors(path_, "g", **read);
  }

  void ExpectRefused(const std::string& words) {
    const auto read = ReadNames({"w"});
    EXPECT_EQ(read.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(read.status().message()), HasSubstr(words));
  }

  const std::string path_;
  json config_;
};

TEST_F(StoredTensorsTest, ReadsTensorsThatShareMemory) {
  const auto read = ReadNames({"w", "t", "first", "empty"});
  ASSERT_THAT(read, IsOk());
  const std::vector<at::Tensor> tensors = PlaceTensors(*read, c10::kCPU);
  const at::Tensor w = at::arange(6, at::kFloat).reshape({2, 3});
  EXPECT_TRUE(at::equal(tensors[0], w));
  EXPECT_TRUE(at::equal(tensors[1], w.t()));
  EXPECT_TRUE(at::equal(tensors[2], w[1]));
  EXPECT_EQ(tensors[3].sizes(), at::IntArrayRef({0, 3}));
  EXPECT_TRUE(tensors[0].is_alias_of(tensors[1]));
}

TEST_F(StoredTensorsTest, NamesMissingTensors) {
  const auto read = ReadNames({"v"});
  EXPECT_THAT(std::string(read.status().message()), HasSubstr("'v' is not in the archive"));
  config_["config"]["w"]["path_name"] = "weight_7";
  ExpectRefused("'data/weights/weight_7' is not in the archive");
}

TEST_F(StoredTensorsTest, RejectsTensorsOutsideOfTheirMemory) {
  config_["config"]["w"] = Payload("weight_0", {2, 4}, {3, 1});
  ExpectRefused("exceeds its storage of 24 bytes");
  config_["config"]["w"] = Payload("weight_0", {2, 3}, {3, 1}, 1);
  ExpectRefused("exceeds its storage");
  config_["config"]["w"] = Payload("weight_0", {INT64_MAX, 2}, {INT64_MAX, 1});
  ExpectRefused("exceeds its storage");
  config_["config"]["w"] = Payload("weight_0", {2, 3}, {-3, 1});
  ExpectRefused("is negative");
  config_["config"]["w"] = Payload("weight_0", {2, 3}, {3});
  ExpectRefused("numbers of strides");
}

TEST_F(StoredTensorsTest, RejectsPicklesAndUnknownTypes) {
  config_["config"]["w"]["use_pickle"] = true;
  ExpectRefused("a tensor subclass");
  config_["config"]["w"] = Payload("weight_0", {2, 3}, {3, 1});
  config_["config"]["w"]["tensor_meta"]["dtype"] = 99;
  ExpectRefused("known datatype");
  config_["config"]["w"] = Payload("weight_0", {2, 3}, {3, 1});
  config_["config"]["w"]["tensor_meta"]["layout"] = 1;
  ExpectRefused("strided");
  config_["config"]["w"] = nullptr;
  ExpectRefused("expected an object");
}

// The meta device stands for a GPU of the replica other than the exporter's.
TEST_F(StoredTensorsTest, CopiesGpuWeightsToTheReplicasDevice) {
  for (const char* name : {"w", "t"}) {
    config_["config"][name]["tensor_meta"]["device"] = {{"type", "cuda"}, {"index", 1}};
  }
  const auto read = ReadNames({"w", "t", "first"});
  ASSERT_THAT(read, IsOk());
  const std::vector<at::Tensor> placed = PlaceTensors(*read, c10::kMeta);
  EXPECT_TRUE(placed[0].is_meta());
  EXPECT_EQ(placed[0].sizes(), at::IntArrayRef({2, 3}));
  EXPECT_EQ(placed[1].strides(), at::IntArrayRef({1, 3}));
  EXPECT_TRUE(placed[0].is_alias_of(placed[1]));
  EXPECT_TRUE(placed[2].is_same((*read)[2].value));  // it was on the CPU
}

}  // namespace
}  // namespace braid
