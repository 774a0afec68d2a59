#include "server/serving/served_models.h"

#include <memory>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "prometheus/registry.h"
#include "prometheus/text_serializer.h"
#include "server/batching/batch_queue.h"
#include "server/serving/load_model.h"
#include "tests/fakes/eventually.h"
#include "tests/fakes/host_tensors.h"
#include "tests/fakes/puppet_queue.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;
using Tensors = std::vector<at::Tensor>;

class ServedModelsTest : public ::testing::Test {
 protected:
  // Replicas that add `offset`.
  ReplicaSet Adding(double offset) const {
    return {fleet_.workers(),
            Puppets(fleet_, [offset](const Tensors& inputs) -> absl::StatusOr<Tensors> {
              return Tensors{inputs[0] + offset};
            })};
  }
  std::vector<LoadedVersion> Made(int64_t version, double offset) const {
    std::vector<LoadedVersion> versions;
    versions.push_back({PuppetConfig(16), version, Adding(offset)});
    return versions;
  }
  void Serve(const std::string& name, int64_t version, double offset,
             VersionPolicy policy = LatestVersions{}) {
    ModelConfig config = PuppetConfig(16);
    config.name = name;
    config.version_policy = std::move(policy);
    models_.Serve({std::move(config), version, Adding(offset)});
  }
  // Makes a version like one that a trainer published.
  absl::Status ServeVersion(const std::string& name, int64_t version, double offset,
                            std::map<std::string, std::string> origin = {}) {
    return ServeVersion(name, version, offset, std::move(origin), {version});
  }
  absl::Status ServeVersion(const std::string& name, int64_t version, double offset,
                            std::map<std::string, std::string> origin, Routing routing) {
    BRAID_ASSIGN_OR_RETURN(const auto config, models_.FindConfig(name));
    return models_.ServeVersion({*config, version, Adding(offset), std::move(origin)}, config,
                                std::move(routing));
  }
  // Returns the output of the served version for the input 0.
  float Ask(const std::string& name) {
    const auto queue = models_.Find(name, 0);
    EXPECT_THAT(queue, IsOk());
    PendingInference pending;
    EXPECT_THAT((*queue)->Push(MakeRequest(MakeRows("x", 1, 0), &pending)), IsOk());
    return ValuesOf<float>(pending.Wait()->outputs[0])[0];
  }

  WorkerFleet fleet_{2};
  ServedModels models_{fleet_.workers(), fleet_.metrics()};
};

TEST_F(ServedModelsTest, FindsAModelByNameAndVersion) {
  Serve("m", 3, 1);
  for (const int64_t version : {0, 3}) {
    BRAID_ASSERT_OK_AND_ASSIGN(const auto queue, models_.Find("m", version));
    EXPECT_EQ(queue->version(), 3);
    EXPECT_EQ(queue->config().name, "m");
  }
  EXPECT_EQ(Ask("m"), 1);
}

TEST_F(ServedModelsTest, NotFoundListsWhatIsServed) {
  EXPECT_THAT(models_.Find("m", 0), StatusIs(absl::StatusCode::kNotFound, HasSubstr("none")));
  Serve("b", 1, 0);
  Serve("a", 1, 0);
  EXPECT_THAT(models_.Find("m", 0),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("unknown model 'm'"), HasSubstr("'a', 'b'"))));
  EXPECT_THAT(models_.Find("a", 2),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("version 2 is not served"), HasSubstr("served: 1"))));
}

TEST_F(ServedModelsTest, NotFoundGivesTheLoadError) {
  models_.MarkFailed("broken", 4, absl::FailedPreconditionError("no forward method"));
  Serve("m", 1, 0);
  EXPECT_THAT(models_.Find("broken", 0),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no forward method")));
  const std::vector<ModelState> list = models_.List();
  ASSERT_EQ(list.size(), 2);
  EXPECT_EQ(list[0].name, "broken");
  EXPECT_EQ(list[0].version, 4);
  EXPECT_FALSE(list[0].ready);
  EXPECT_EQ(list[0].reason, "no forward method");
  EXPECT_EQ(list[1].name, "m");
  EXPECT_TRUE(list[1].ready);
  EXPECT_EQ(list[1].reason, "");
}

TEST_F(ServedModelsTest, AVersionReplacesTheOneBefore) {
  Serve("m", 3, 1);
  EXPECT_THAT(ServeVersion("m", 4, 2, {{"trainer", "t"}}), IsOk());
  EXPECT_EQ(Ask("m"), 2);
  EXPECT_THAT((*models_.Find("m", 4))->config().origin, ElementsAre(Pair("trainer", "t")));
  EXPECT_THAT(models_.Find("m", 3), StatusIs(absl::StatusCode::kNotFound, HasSubstr("served: 4")));
  EXPECT_THAT(ServeVersion("other", 1, 2),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("'other'")));
}

TEST_F(ServedModelsTest, KeepsAsManyVersionsAsThePolicySays) {
  for (const int64_t version : {1, 2, 3}) {
    Serve("all", version, 1, AllVersions{});
    Serve("two", version, 1, LatestVersions{2});
  }
  EXPECT_THAT(*models_.Versions("all"), ElementsAre(1, 2, 3));
  EXPECT_THAT(*models_.Versions("two"), ElementsAre(2, 3));
  EXPECT_EQ((*models_.Find("all", 0))->version(), 3);
  EXPECT_EQ((*models_.Find("all", 1))->version(), 1);
  ASSERT_THAT(ServeVersion("all", 2, 1), IsOk());  // back to it
  EXPECT_THAT(*models_.Versions("all"), ElementsAre(1, 2));
  ASSERT_EQ(models_.List().size(), 4);
  EXPECT_EQ(models_.List()[1].version, 2);
  EXPECT_THAT(models_.Versions("other"), StatusIs(absl::StatusCode::kNotFound, HasSubstr("all")));
}

TEST_F(ServedModelsTest, NextVersionFailsIfThePolicyExcludesIt) {
  Serve("m", 1, 1, SpecificVersions{{1, 3}});
  EXPECT_THAT(models_.NextVersion("m"), StatusIs(absl::StatusCode::kFailedPrecondition,
                                                 AllOf(HasSubstr("version 2"), HasSubstr("1, 3"))));
  ASSERT_THAT(models_.ReserveVersion("m", 2), IsOk());
  EXPECT_EQ(*models_.NextVersion("m"), 3);
}

TEST_F(ServedModelsTest, ReplaceKeepsLaterPublishedVersions) {
  Serve("m", 1, 1);
  ASSERT_THAT(ServeVersion("m", 2, 2, {{"trainer", "t"}}), IsOk());
  models_.MarkFailed("m", 3, absl::FailedPreconditionError("broken"));
  EXPECT_EQ(models_.List().size(), 2);
  models_.Replace(Made(1, 5));
  EXPECT_THAT(*models_.Versions("m"), ElementsAre(2));
  EXPECT_EQ(Ask("m"), 2);
  EXPECT_EQ(models_.List().size(), 1);
  models_.Replace(Made(4, 6));
  EXPECT_THAT(*models_.Versions("m"), ElementsAre(4));
  EXPECT_EQ(Ask("m"), 6);
}

TEST_F(ServedModelsTest, ALabelledVersionIsServedInAdditionToThePolicy) {
  Serve("m", 1, 1);
  // A later version with a label does not change the current one.
  ASSERT_THAT(ServeVersion("m", 2, 2, {}, {.current = 1, .labels = {{"canary", 2}}}), IsOk());
  EXPECT_THAT(*models_.Versions("m"), ElementsAre(1, 2));
  EXPECT_EQ((*models_.Find("m", 0))->version(), 1);
  EXPECT_EQ((*models_.FindLabel("m", "canary"))->version(), 2);
  EXPECT_THAT(models_.FindLabel("m", "stable"),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("no label 'stable'"), HasSubstr("labels: canary"))));
  ASSERT_THAT(models_.SetRouting("m", {.current = 2, .labels = {{"old", 1}}}), IsOk());
  EXPECT_EQ((*models_.Find("m", 0))->version(), 2);
  EXPECT_EQ((*models_.FindLabel("m", "old"))->version(), 1);
  ASSERT_THAT(models_.SetRouting("m", {.current = 2}), IsOk());
  EXPECT_THAT(*models_.Versions("m"), ElementsAre(2));
  EXPECT_THAT(models_.FindLabel("m", "old"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("none")));
}

TEST_F(ServedModelsTest, ReplaceKeepsPinnedAndLabelledVersions) {
  models_.Replace(Made(2, 2));
  ASSERT_THAT(ServeVersion("m", 1, 1, {}, {1, /*pinned=*/true, {{"stable", 1}}}), IsOk());
  EXPECT_THAT(*models_.Versions("m"), ElementsAre(1));
  models_.Replace(Made(3, 3));
  EXPECT_THAT(*models_.Versions("m"), ElementsAre(1));
  EXPECT_EQ(Ask("m"), 1);
  ASSERT_THAT(models_.SetRouting("m", {.current = 1, .labels = {{"stable", 1}}}), IsOk());
  models_.Replace(Made(3, 3));
  EXPECT_THAT(*models_.Versions("m"), ElementsAre(1, 3));
  EXPECT_EQ(Ask("m"), 3);
}

TEST_F(ServedModelsTest, RemovesOnlyAVersionThatNoRequestGets) {
  for (const int64_t version : {1, 2, 3}) {
    Serve("m", version, 1, AllVersions{});
  }
  ASSERT_THAT(models_.SetRouting("m", {.current = 3, .labels = {{"stable", 2}}}), IsOk());
  for (const int64_t version : {1, 2, 3, 4}) {
    models_.RemoveVersion("m", version);
  }
  EXPECT_THAT(*models_.Versions("m"), ElementsAre(2, 3));
}

TEST_F(ServedModelsTest, ARemovedVersionCompletesItsRequestsAndIsFreed) {
  Serve("m", 1, 1);
  std::weak_ptr<BatchQueue> freed = *models_.FindReplicas("m", 0);
  PendingInference pending;
  {
    const WorkerBlock first(fleet_.worker(0));
    const WorkerBlock second(fleet_.worker(1));
    ASSERT_THAT((*models_.Find("m", 0))->Push(MakeRequest(MakeRows("x", 1, 0), &pending)), IsOk());
    ASSERT_THAT(models_.Remove("m", "unloaded"), IsOk());
    EXPECT_THAT(models_.Find("m", 0),
                StatusIs(absl::StatusCode::kNotFound, HasSubstr("not served: unloaded")));
    EXPECT_FALSE(freed.expired());
  }
  EXPECT_THAT(pending.Wait(), IsOk());
  EXPECT_TRUE(Eventually([&] { return freed.expired(); }));
  EXPECT_EQ(models_.List()[0].reason, "unloaded");
  models_.Forget("m");
  EXPECT_TRUE(models_.List().empty());
  EXPECT_THAT(models_.Remove("m", ""), StatusIs(absl::StatusCode::kNotFound, HasSubstr("'m'")));
}

TEST_F(ServedModelsTest, ServedVersionsReportTheirMemory) {
  ModelConfig config = PuppetConfig(16);
  const std::vector<Parameter> parameters = {{"w", at::zeros({5, 2})}, {"b", at::zeros({3})}};
  std::vector<std::unique_ptr<Replica>> replicas;
  for (int r = 0; r < 2; ++r) {
    replicas.push_back(std::make_unique<PuppetReplica>(nullptr, parameters));
  }
  models_.Serve({config, 7, ReplicaSet(fleet_.workers(), std::move(replicas))});
  const std::vector<ServedVersion> served = models_.Served();
  ASSERT_EQ(served.size(), 1);
  EXPECT_EQ(served[0].model, config.name);
  EXPECT_EQ(served[0].version, 7);
  EXPECT_THAT(served[0].memory, ElementsAre(Pair("cpu:0", 13 * 4), Pair("cpu:1", 13 * 4)));
}

TEST_F(ServedModelsTest, MetricsOfAModelEndWithItsLastRequest) {
  const auto scrape = [this] {
    return prometheus::TextSerializer().Serialize(fleet_.metrics()->registry()->Collect());
  };
  Serve("m", 1, 0);
  Ask("m");
  {
    BRAID_ASSERT_OK_AND_ASSIGN(const auto queue, models_.Find("m", 0));
    EXPECT_THAT(models_.Remove("m", "it was unloaded"), IsOk());
    EXPECT_THAT(scrape(), HasSubstr("braid_inference_samples_total{model=\"m\"} 1"));
  }
  const WorkerBlock first(fleet_.worker(0));  // they have let go of what they ran
  const WorkerBlock second(fleet_.worker(1));
  EXPECT_THAT(scrape(), Not(HasSubstr("model=\"m\"")));
}

TEST_F(ServedModelsTest, NextVersionFollowsTheHighest) {
  Serve("m", 3, 1);
  EXPECT_EQ(*models_.NextVersion("m"), 4);
  ASSERT_THAT(ServeVersion("m", 7, 2), IsOk());
  EXPECT_EQ(*models_.NextVersion("m"), 8);
  ASSERT_THAT(ServeVersion("m", 3, 1), IsOk());  // an older one again
  EXPECT_EQ((*models_.Find("m", 0))->version(), 3);
  EXPECT_EQ(*models_.NextVersion("m"), 8);
  ASSERT_THAT(models_.ReserveVersion("m", 11), IsOk());
  EXPECT_EQ(*models_.NextVersion("m"), 12);
  ASSERT_THAT(models_.ReserveVersion("m", 5), IsOk());
  EXPECT_EQ(*models_.NextVersion("m"), 12);
  EXPECT_EQ((*models_.Find("m", 0))->version(), 3);
  EXPECT_THAT(models_.NextVersion("other"), StatusIs(absl::StatusCode::kNotFound, HasSubstr("m")));
  EXPECT_THAT(models_.ReserveVersion("other", 1),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("m")));
}

TEST_F(ServedModelsTest, FindsTheConfigurationOfAModel) {
  Serve("m", 3, 1);
  ASSERT_THAT(ServeVersion("m", 4, 2, {{"trainer", "t"}}), IsOk());
  BRAID_ASSERT_OK_AND_ASSIGN(const auto config, models_.FindConfig("m"));
  EXPECT_EQ(config->name, "m");
  EXPECT_TRUE(config->origin.empty());  // that is the version's
  EXPECT_THAT(models_.FindConfig("other"), StatusIs(absl::StatusCode::kNotFound, HasSubstr("m")));
}

// A version for the previous configuration would undo the load, or outlive the unload.
TEST_F(ServedModelsTest, ServeVersionFailsAfterAReload) {
  Serve("m", 1, 1);
  BRAID_ASSERT_OK_AND_ASSIGN(const auto config, models_.FindConfig("m"));
  models_.Replace(Made(1, 5));
  EXPECT_THAT(models_.ServeVersion({*config, 2, Adding(2)}, config, {2}),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("'m' was reloaded")));
  EXPECT_EQ((*models_.Find("m", 0))->version(), 1);
  EXPECT_EQ(Ask("m"), 5);
  BRAID_ASSERT_OK_AND_ASSIGN(const auto later, models_.FindConfig("m"));
  ASSERT_THAT(models_.Remove("m", "unloaded"), IsOk());
  EXPECT_THAT(models_.ServeVersion({*later, 2, Adding(2)}, later, {2}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("unloaded")));
  EXPECT_THAT(models_.Find("m", 0), StatusIs(absl::StatusCode::kNotFound, HasSubstr("unloaded")));
}

TEST_F(ServedModelsTest, ServesAVersionWithItsOwnConfiguration) {
  Serve("m", 1, 1);
  BRAID_ASSERT_OK_AND_ASSIGN(const auto config, models_.FindConfig("m"));
  ModelConfig own = *config;
  own.inputs[0].range = ValueRange{0, 9};
  ASSERT_THAT(models_.ServeVersion({own, 2, Adding(2)}, config, {2}), IsOk());
  EXPECT_EQ((*models_.Find("m", 0))->config().inputs[0].range->max, 9);
  EXPECT_EQ(*models_.FindConfig("m"), config);
}

TEST_F(ServedModelsTest, QueuedRequestsRunOnTheirVersion) {
  Serve("m", 1, 1);
  std::vector<PendingInference> before(5);
  {
    const WorkerBlock first(fleet_.worker(0));
    const WorkerBlock second(fleet_.worker(1));
    for (PendingInference& pending : before) {
      const auto queue = *models_.Find("m", 0);
      ASSERT_THAT(queue->Push(MakeRequest(MakeRows("x", 10, 0), &pending)), IsOk());
    }
    ASSERT_THAT(ServeVersion("m", 2, 2), IsOk());
  }
  for (const PendingInference& pending : before) {
    EXPECT_EQ(pending.Wait()->version, 1);
    EXPECT_EQ(ValuesOf<float>(pending.Wait()->outputs[0]), ValuesOf<float>(MakeRows("y", 10, 1)));
  }
  EXPECT_EQ(Ask("m"), 2);
}

}  // namespace
}  // namespace braid
