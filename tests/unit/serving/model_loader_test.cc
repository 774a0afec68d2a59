#include "server/serving/model_loader.h"

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/serving/load_model.h"
#include "server/serving/served_models.h"
#include "tests/fakes/host_tensors.h"
#include "tests/fakes/puppet_queue.h"
#include "tests/fakes/script_modules.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/temp_dir.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::StatusOr<ModelConfig> NoConfig(const std::string& path, const std::string&) {
  return absl::InvalidArgumentError("config.pbtxt of " + path);
}

absl::StatusOr<ModelConfig> OneRow(const std::string&, const std::string&, const std::string&) {
  return PuppetConfig(1);
}

class ModelLoaderTest : public ::testing::Test {
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
  ModelLoader Loader(const ConfigReader& read_config = NoConfig) {
    return ModelLoader({dir_.path(), read_config, OneRow, /*loaded=*/nullptr,
                        [this](const std::string& name, bool ready) {
                          changes_.push_back(name + (ready ? " ready" : " not ready"));
                        }},
                       &models_);
  }
  // Returns the output of version 0 for the input 1.
  float Ask(const std::string& name) {
    const auto queue = models_.Find(name, 0);
    EXPECT_THAT(queue, IsOk());
    PendingInference pending;
    EXPECT_THAT((*queue)->Push(MakeRequest(MakeRows("x", 1, 1), &pending)), IsOk());
    return ValuesOf<float>(pending.Wait()->outputs[0])[0];
  }
  absl::Status Load(const ConfigReader& read_config = NoConfig) {
    return Loader(read_config).LoadAll();
  }
  std::string Reason(const std::string& name) const {
    return std::string(models_.Find(name, 0).status().message());
  }

  // m/1/model.pt, which `changes` times becomes another when it has just been checked: x times 11,
  // 12 and so on.
  struct ChangingFile {
    ModelLoaderTest& test;
    const int changes;
    int checks = 0;

    ModelLoader Loader() {
      return ModelLoader({test.dir_.path(), NoConfig, OneRow, /*loaded=*/nullptr,
                          /*changed=*/nullptr,
                          [this](const std::string& path) {
                            if (++checks <= changes) {
                              test.Save("m/1/model.pt", 10 + checks);
                              // Two files of a moment may have one time.
                              std::filesystem::last_write_time(
                                  path, std::filesystem::file_time_type::clock::now() +
                                            std::chrono::seconds(checks));
                            }
                            return absl::OkStatus();
                          }},
                         &test.models_);
    }
  };

  const TempDir dir_;
  WorkerFleet fleet_{2};
  ServedModels models_{fleet_.workers(), fleet_.metrics()};
  std::vector<std::string> changes_;
};

TEST_F(ModelLoaderTest, ServesTheNewestVersionOnEveryWorker) {
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

TEST_F(ModelLoaderTest, ALoadWithoutTestsDoesNotBlockTheWorkers) {
  Save("m/1/model.pt", 2);
  dir_.Write("m/config.pbtxt", "");
  const ConfigReader assumed = [](const std::string&, const std::string&) {
    ModelConfig config = PuppetConfig(8);
    config.row_independence = RowIndependence::kAssumed;
    return config;
  };
  absl::Notification loaded;
  std::thread loading;
  {
    const WorkerBlock first(fleet_.worker(0));
    const WorkerBlock second(fleet_.worker(1));
    loading = std::thread([&] {
      EXPECT_THAT(Load(assumed), IsOk());
      loaded.Notify();
    });
    EXPECT_TRUE(loaded.WaitForNotificationWithTimeout(absl::Seconds(30)));
  }
  loading.join();
  EXPECT_EQ(Ask("m"), 2);
}

TEST_F(ModelLoaderTest, AFailedModelDoesNotStopOthers) {
  dir_.Write("broken/1/model.pt", "this is no archive");
  std::filesystem::create_directories(dir_.path() / "empty");
  Save("m/1/model.pt", 2);
  Save("misconfigured/1/model.pt", 2);
  dir_.Write("misconfigured/config.pbtxt", "");
  ASSERT_THAT(Load(), IsOk());
  EXPECT_THAT(models_.Find("m", 0), IsOk());
  EXPECT_THAT(Reason("broken"), HasSubstr("not a zip archive"));
  EXPECT_THAT(Reason("empty"), HasSubstr("no version folder"));
  EXPECT_THAT(Reason("misconfigured"), HasSubstr("misconfigured/config.pbtxt"));
}

TEST_F(ModelLoaderTest, ReadsTheConfigurationFile) {
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

TEST_F(ModelLoaderTest, ReportsAModuleWithoutForward) {
  torch::jit::Module module = NewModule();
  std::filesystem::create_directories(dir_.path() / "m/1");
  module.save(dir_.path() / "m/1/model.pt");
  ASSERT_THAT(Load(), IsOk());
  EXPECT_THAT(Reason("m"), HasSubstr("no forward method"));
}

TEST_F(ModelLoaderTest, RejectsReservedHealthNames) {
  for (const std::string name : {"liveness", "readiness"}) {
    Save(name + "/1/model.pt", 2);
  }
  Save("Readiness/1/model.pt", 3);
  ModelLoader loader = Loader();
  ASSERT_THAT(loader.LoadAll(), IsOk());
  for (const std::string name : {"liveness", "readiness"}) {
    EXPECT_THAT(Reason(name), HasSubstr("reserved model name '" + name + "'"));
    EXPECT_THAT(loader.Load(name, std::nullopt),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rename the folder")));
  }
  EXPECT_EQ(Ask("Readiness"), 3);
}

TEST_F(ModelLoaderTest, AnEmptyRepositoryIsValidAndAMissingOneIsNot) {
  EXPECT_THAT(Load(), IsOk());
  EXPECT_THAT(ModelLoader({dir_.path() / "missing", NoConfig, OneRow}, &models_).LoadAll(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("missing")));
}

TEST_F(ModelLoaderTest, ServesTheVersionsThatThePolicySelects) {
  for (int version = 1; version <= 3; ++version) {
    Save("m/" + std::to_string(version) + "/model.pt", version);
  }
  dir_.Write("m/config.pbtxt", "");
  for (const auto& [policy, versions] : {
           std::pair<VersionPolicy, std::vector<int64_t>>{LatestVersions{}, {3}},
           {LatestVersions{2}, {2, 3}},
           {LatestVersions{9}, {1, 2, 3}},
           {AllVersions{}, {1, 2, 3}},
           {SpecificVersions{{1, 2, 7}}, {1, 2}},
       }) {
    const auto read = [&policy = policy](const std::string&, const std::string&) {
      ModelConfig config = PuppetConfig(8);
      config.version_policy = policy;
      return absl::StatusOr<ModelConfig>(config);
    };
    ASSERT_THAT(Load(read), IsOk());
    EXPECT_EQ(*models_.Versions("m"), versions);
    EXPECT_EQ(Ask("m"), static_cast<float>(versions.back()));
  }
}

TEST_F(ModelLoaderTest, LoadsAStoredVersionIfNoVersionFolderLoads) {
  dir_.Write("empty/config.pbtxt", "");
  dir_.Write("damaged/1/model.pt", "this is no archive");
  Save("good/1/model.pt", 2);
  std::vector<std::string> asked;
  ModelLoader loader(
      {.directory = dir_.path(),
       .read_config = [](const std::string&, const std::string&) { return PuppetConfig(1); },
       .read_override = OneRow,
       .load_stored = [&](const std::string& name, const std::optional<ModelConfig>& config)
           -> absl::StatusOr<LoadedVersion> {
         asked.push_back(name + (config ? " with config" : ""));
         return absl::NotFoundError("no stored version");
       }},
      &models_);
  ASSERT_THAT(loader.LoadAll(), IsOk());
  EXPECT_THAT(asked, ElementsAre("damaged", "empty with config"));
  EXPECT_THAT(Reason("damaged"), HasSubstr("zip archive"));
  EXPECT_THAT(Reason("empty"), HasSubstr("no version folder"));
  EXPECT_EQ(Ask("good"), 2);
}

TEST_F(ModelLoaderTest, AFailedLoadKeepsTheServedVersions) {
  Save("m/1/model.pt", 2);
  ModelLoader loader = Loader();
  ASSERT_THAT(loader.LoadNamed({}), IsOk());
  EXPECT_THAT(Reason("m"), HasSubstr("was not loaded"));
  ASSERT_THAT(loader.Load("m", std::nullopt), IsOk());
  dir_.Write("m/2/model.pt", "this is no archive");
  EXPECT_THAT(loader.Load("m", std::nullopt),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("zip archive")));
  EXPECT_EQ(*models_.Versions("m"), std::vector<int64_t>{1});
  ASSERT_EQ(models_.List().size(), 2);
  EXPECT_TRUE(models_.List()[0].ready);
  EXPECT_THAT(models_.List()[1].reason, HasSubstr("zip archive"));
  Save("m/2/model.pt", 5);
  ASSERT_THAT(loader.Load("m", std::nullopt), IsOk());
  EXPECT_EQ(Ask("m"), 5);
}

TEST_F(ModelLoaderTest, AServedVersionCarriesTheReasonOfAFailedReload) {
  Save("m/1/model.pt", 2);
  ModelLoader loader = Loader();
  ASSERT_THAT(loader.LoadAll(), IsOk());
  const auto expect_serving = [&](const std::string& reason) {
    EXPECT_EQ(Ask("m"), 2);
    ASSERT_EQ(models_.List().size(), 1);
    EXPECT_TRUE(models_.List()[0].ready);
    EXPECT_THAT(models_.List()[0].reason, HasSubstr(reason));
  };
  dir_.Write("m/config.pbtxt", "");
  loader.Poll();
  expect_serving("config.pbtxt of");
  std::filesystem::remove(dir_.path() / "m/config.pbtxt");
  dir_.Write("m/1/model.pt", "this is no archive");
  loader.Poll();
  expect_serving("zip archive");
  Save("m/1/model.pt", 2);
  loader.Poll();
  expect_serving("");
  EXPECT_EQ(models_.List()[0].reason, "");
}

TEST_F(ModelLoaderTest, AnUnloadedModelCanBeLoadedAgain) {
  Save("m/1/model.pt", 2);
  ModelLoader loader = Loader();
  ASSERT_THAT(loader.LoadNamed({"m"}), IsOk());
  ASSERT_THAT(loader.Unload("m"), IsOk());
  ASSERT_THAT(loader.Unload("m"), IsOk());  // it is already
  EXPECT_THAT(Reason("m"), HasSubstr("unloaded"));
  EXPECT_FALSE(models_.List()[0].ready);
  ASSERT_THAT(loader.Load("m", std::nullopt), IsOk());
  EXPECT_EQ(Ask("m"), 2);
  EXPECT_EQ(changes_,
            (std::vector<std::string>{"m ready", "m not ready", "m not ready", "m ready"}));
  for (const auto& status :
       {loader.Load("n", std::nullopt), loader.Unload("n"), loader.LoadNamed({"n"})}) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kNotFound, HasSubstr("'n'")));
  }
}

TEST_F(ModelLoaderTest, ALoadRequestMayContainAConfiguration) {
  Save("m/1/model.pt", 2);
  ModelLoader loader = Loader();
  ASSERT_THAT(loader.Load("m", "{}"), IsOk());
  EXPECT_EQ((*models_.Find("m", 0))->config().max_batch_size, 1);
  ASSERT_THAT(loader.Load("m", std::nullopt), IsOk());
  EXPECT_GT((*models_.Find("m", 0))->config().max_batch_size, 1);
}

// Simulates copying a folder: its configuration appears while another model is loaded.
TEST_F(ModelLoaderTest, SeesModelsAddedDuringOtherLoads) {
  for (const bool at_start : {true, false}) {
    Save("a/1/model.pt", 2);
    Save("b/1/model.pt", 3);
    std::filesystem::remove(dir_.path() / "b/config.pbtxt");
    ModelLoader loader({dir_.path(),
                        [](const std::string&, const std::string& name) {
                          ModelConfig config = PuppetConfig(1);
                          config.name = name;
                          return config;
                        },
                        OneRow,
                        [this](const std::string& name, const std::vector<int64_t>&) {
                          if (name == "a") {
                            dir_.Write("b/config.pbtxt", "");
                          }
                        }},
                       &models_);
    if (at_start) {
      ASSERT_THAT(loader.LoadAll(), IsOk());
    }
    loader.Poll();
    loader.Poll();
    EXPECT_EQ((*models_.Find("b", 0))->config().max_batch_size, 1) << at_start;
  }
}

// A model that disappears during the loads does not stop them and is removed.
TEST_F(ModelLoaderTest, ModelsRemovedDuringOtherLoadsAreNotFound) {
  Save("a/1/model.pt", 2);
  Save("b/1/model.pt", 3);
  ModelLoader loader({dir_.path(), NoConfig, OneRow,
                      [this](const std::string&, const std::vector<int64_t>&) {
                        std::filesystem::remove_all(dir_.path() / "b");
                      }},
                     &models_);
  ASSERT_THAT(loader.LoadAll(), IsOk());
  EXPECT_EQ(Ask("a"), 2);
  EXPECT_THAT(Reason("b"), HasSubstr("model 'b' is not in the repository"));
  loader.Poll();
  EXPECT_EQ(models_.List().size(), 1);
}

// Every replica must serve the contents that were checked.
TEST_F(ModelLoaderTest, ReloadsAFileThatIsReplacedWhileItIsRead) {
  Save("m/1/model.pt", 2);
  ChangingFile file{*this, /*changes=*/1};
  ModelLoader loader = file.Loader();
  ASSERT_THAT(loader.LoadAll(), IsOk());
  EXPECT_EQ(file.checks, 2);
  EXPECT_EQ(Ask("m"), 11);
  loader.Poll();
  EXPECT_EQ(file.checks, 2);  // it is served as it is
}

TEST_F(ModelLoaderTest, DoesNotServeAFileThatKeepsChanging) {
  Save("m/1/model.pt", 2);
  ChangingFile file{*this, /*changes=*/100};
  ModelLoader loader = file.Loader();
  EXPECT_THAT(loader.Load("m", std::nullopt),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("files changed during")));
  EXPECT_EQ(file.checks, 5);
  EXPECT_THAT(Reason("m"), HasSubstr("files changed during"));
}

TEST_F(ModelLoaderTest, PollFindsNewChangedAndRemovedModels) {
  Save("a/1/model.pt", 2);
  Save("b/1/model.pt", 3);
  ModelLoader loader = Loader();
  ASSERT_THAT(loader.LoadAll(), IsOk());
  changes_.clear();
  loader.Poll();
  EXPECT_EQ(changes_, std::vector<std::string>{});
  Save("a/2/model.pt", 4);
  Save("c/1/model.pt", 5);
  std::filesystem::remove_all(dir_.path() / "b");
  loader.Poll();
  EXPECT_EQ(Ask("a"), 4);
  EXPECT_EQ(Ask("c"), 5);
  EXPECT_THAT(Reason("b"), HasSubstr("unknown model 'b' (the repository has"));
  EXPECT_EQ(changes_, (std::vector<std::string>{"a ready", "c ready", "b not ready"}));
  std::filesystem::remove_all(dir_.path() / "a/2");
  loader.Poll();
  EXPECT_EQ(*models_.Versions("a"), std::vector<int64_t>{1});
}

}  // namespace
}  // namespace braid
