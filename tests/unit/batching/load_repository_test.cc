#include "server/batching/load_repository.h"

#include <filesystem>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/batching/served_models.h"
#include "tests/fakes/host_tensors.h"
#include "tests/fakes/puppet_queue.h"
#include "tests/fakes/script_modules.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/temp_dir.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<ModelConfig> NoConfig(const std::string& path, const std::string&) {
  return absl::InvalidArgumentError("config.pbtxt of " + path);
}

class LoadRepositoryTest : public ::testing::Test {
 protected:
  // A file with x [B, 1] times `factor`, with a recorded example.
  void Save(const std::string& file, int factor) const {
    torch::jit::Module module = NewModule();
    module.define("def forward(self, x):\n  return x * " + std::to_string(factor) + "\n");
    module.define(
        "def get_all_bundled_inputs(self) -> List[Tuple[Tensor]]:\n"
        "  return [(torch.zeros([2, 1]),)]\n");
    const std::filesystem::path path = dir_.path() / file;
    std::filesystem::create_directories(path.parent_path());
    module.save(path);
  }
  absl::Status Load(const ConfigReader& read_config = NoConfig) {
    return LoadRepository(dir_.path(), read_config, &models_);
  }
  std::string Reason(const std::string& name) const {
    return std::string(models_.Find(name, 0).status().message());
  }

  const TempDir dir_;
  WorkerFleet fleet_{2};
  ServedModels models_{fleet_.workers(), fleet_.metrics()};
};

TEST_F(LoadRepositoryTest, ServesTheNewestVersionOnEveryWorker) {
  Save("m/1/model.pt", 2);
  Save("m/2/model.pt", 3);
  ASSERT_THAT(Load(), IsOk());
  BRAID_ASSERT_OK_AND_ASSIGN(const auto queue, models_.Find("m", 0));
  EXPECT_EQ(queue->version(), 2);
  EXPECT_EQ(queue->config().inputs[0].name, "x");
  for (size_t busy = 0; busy < 2; ++busy) {
    const WorkerBlock block(fleet_.worker(busy));  // the other one has to answer
    PendingInference pending;
    ASSERT_THAT(queue->Push(MakeRequest(MakeRows("x", 1, 5), &pending)), IsOk());
    ASSERT_THAT(pending.Wait(), IsOk());
    EXPECT_EQ(ValuesOf<float>(pending.Wait()->outputs[0])[0], 15);
    EXPECT_EQ(pending.Wait()->chunks[0].device, fleet_.worker(1 - busy).name());
  }
}

TEST_F(LoadRepositoryTest, OneThatFailsStopsNoOther) {
  dir_.Write("broken/1/model.pt", "this is no archive");
  std::filesystem::create_directories(dir_.path() / "empty");
  Save("m/1/model.pt", 2);
  Save("misconfigured/1/model.pt", 2);
  dir_.Write("misconfigured/config.pbtxt", "");
  ASSERT_THAT(Load(), IsOk());
  EXPECT_THAT(models_.Find("m", 0), IsOk());
  EXPECT_THAT(Reason("broken"), HasSubstr("it is no zip archive"));
  EXPECT_THAT(Reason("empty"), HasSubstr("no version folder"));
  EXPECT_THAT(Reason("misconfigured"), HasSubstr("misconfigured/config.pbtxt"));
}

TEST_F(LoadRepositoryTest, TheConfigurationIsTheFiles) {
  Save("m/1/model.pt", 2);
  dir_.Write("m/config.pbtxt", "");
  const auto read = [](const std::string&, const std::string& name) {
    ModelConfig config = PuppetConfig(7);
    config.name = name;
    config.inputs[0].name = "INPUT__0";
    return absl::StatusOr<ModelConfig>(config);
  };
  ASSERT_THAT(Load(read), IsOk());
  const ModelConfig& config = (*models_.Find("m", 0))->config();
  EXPECT_EQ(config.max_batch_size, 7);
  EXPECT_EQ(config.inputs[0].name, "INPUT__0");
}

TEST_F(LoadRepositoryTest, AModuleWithoutForwardSaysSo) {
  torch::jit::Module module = NewModule();
  std::filesystem::create_directories(dir_.path() / "m/1");
  module.save(dir_.path() / "m/1/model.pt");
  ASSERT_THAT(Load(), IsOk());
  EXPECT_THAT(Reason("m"), HasSubstr("no forward method"));
}

TEST_F(LoadRepositoryTest, AnEmptyRepositoryIsFineAndAMissingOneIsNot) {
  EXPECT_THAT(Load(), IsOk());
  EXPECT_THAT(LoadRepository(dir_.path() / "missing", NoConfig, &models_),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("missing")));
}

}  // namespace
}  // namespace braid
