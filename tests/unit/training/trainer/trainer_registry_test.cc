#include "server/training/trainer/trainer_registry.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "prometheus/registry.h"
#include "prometheus/text_serializer.h"
#include "tests/fakes/registry_bench.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

class TrainerRegistryTest : public RegistryTest {
 protected:
  TrainerRegistryTest() : RegistryTest("") {}
};

TEST_F(TrainerRegistryTest, FindsATrainerByName) {
  BRAID_ASSERT_OK_AND_ASSIGN(const TrainerInfo created, Create(Named("a")));
  EXPECT_EQ(created.spec.name, "a");
  EXPECT_THAT(Create(Named("b")), IsOk());
  EXPECT_THAT(Get("a"), IsOk());
  std::vector<std::string> names;
  for (const TrainerInfo& info : registry().List()) {
    names.push_back(info.spec.name);
  }
  EXPECT_THAT(names, ElementsAre("a", "b"));
}

TEST_F(TrainerRegistryTest, ReportsTheStateOfEachTrainer) {
  ASSERT_THAT(Create(Named("b")), IsOk());
  ASSERT_THAT(Create(Named("a")), IsOk());
  ASSERT_THAT(Do("a", BatchOperation(1, 20)), IsOk());
  const std::vector<TrainerState> states = registry().States();
  ASSERT_THAT(states, SizeIs(2));
  EXPECT_EQ(states[0].name, "a");
  EXPECT_EQ(states[0].model, "m");
  EXPECT_FALSE(states[0].failed);
  EXPECT_EQ(states[0].step, 1);
  EXPECT_EQ(states[0].lr, 0.1);
  EXPECT_THAT(states[0].devices, SizeIs(2));
  EXPECT_THAT(states[0].memory, SizeIs(2));
  EXPECT_EQ(states[1].name, "b");
  EXPECT_EQ(states[1].step, 0);
}

TEST_F(TrainerRegistryTest, AnEmptyNameBecomesTheModelName) {
  BRAID_ASSERT_OK_AND_ASSIGN(const TrainerInfo created, Create(Named("")));
  EXPECT_EQ(created.spec.name, "m");
}

TEST_F(TrainerRegistryTest, RejectsInvalidNames) {
  const std::string longest(128, 'a');
  for (const std::string& good : {std::string("a"), std::string("A-1_b.c"), longest}) {
    EXPECT_THAT(Create(Named(good)), IsOk()) << good;
  }
  for (const std::string& bad : {std::string(".a"), std::string("a/b"), std::string("a b"),
                                 std::string("ä"), std::string("a\n"), longest + "a"}) {
    EXPECT_THAT(Create(Named(bad)), RefusesField("name", HasSubstr("1 to 128 letters"))) << bad;
  }
}

TEST_F(TrainerRegistryTest, RejectsANameInUse) {
  ASSERT_THAT(Create(Named("a")), IsOk());
  ASSERT_THAT(Do("a", BatchOperation(1, 20)), IsOk());
  // Not how far it is: it may be somebody else's.
  EXPECT_THAT(Create(Named("a")), StatusIs(absl::StatusCode::kAlreadyExists,
                                           AllOf(HasSubstr("'a'"), Not(HasSubstr("step")))));
}

TEST_F(TrainerRegistryTest, ARetriedCreateReturnsTheTrainer) {
  TrainerSpec spec = Named("a");
  spec.request_id = "one";
  ASSERT_THAT(Create(spec), IsOk());
  ASSERT_THAT(Do("a", BatchOperation(1, 20)), IsOk());
  BRAID_ASSERT_OK_AND_ASSIGN(const TrainerInfo again, Create(spec));
  EXPECT_EQ(again.step, 1);
  spec.request_id = "two";
  EXPECT_EQ(Create(spec).status().code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(TrainerRegistryTest, ReturnsAnExistingTrainerOfTheModelWithExistOk) {
  ASSERT_THAT(Create(Named("a")), IsOk());
  ASSERT_THAT(Do("a", BatchOperation(1, 20)), IsOk());
  TrainerSpec spec = Named("a");
  spec.exist_ok = true;
  Pending<absl::StatusOr<CreatedTrainer>> pending;
  registry().Create(spec, "", pending.done());
  ASSERT_THAT(pending.Wait(), IsOk());
  EXPECT_FALSE(pending.Wait()->created);
  EXPECT_EQ(pending.Wait()->info.step, 1);
  spec.model = "other";
  EXPECT_EQ(Create(spec).status().code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(TrainerRegistryTest, LimitsTheNumberOfTrainers) {
  TrainerSpec first = Named("0");
  first.request_id = "one";
  ASSERT_THAT(Create(first), IsOk());
  for (size_t t = 1; t < kMost; ++t) {
    ASSERT_THAT(Create(Named(std::to_string(t))), IsOk());
  }
  EXPECT_THAT(Create(Named("more")),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("has 8 trainers"), HasSubstr("--max_trainers"))));
  EXPECT_THAT(Create(first), IsOk());  // it is there
  ASSERT_THAT(Delete("1"), IsOk());
  EXPECT_THAT(Create(Named("more")), IsOk());
}

TEST_F(TrainerRegistryTest, DoesNotRevealATrainerOfAnotherModel) {
  TrainerSpec spec = Named("a");
  spec.request_id = "one";
  ASSERT_THAT(Create(spec), IsOk());
  // Whoever may train this model may have no role for that one.
  spec.model = "other";
  EXPECT_EQ(Create(spec).status().code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(TrainerRegistryTest, NamesTheWrongFieldOfTheSpec) {
  TrainerSpec spec = Named("a");
  spec.model = "";
  EXPECT_THAT(Create(spec), RefusesField("model", HasSubstr("empty")));
  spec.model = "other";
  EXPECT_THAT(Create(spec), StatusIs(absl::StatusCode::kNotFound, HasSubstr("'other'")));
  spec = Named("a");
  spec.base_version = 7;
  EXPECT_THAT(Create(spec), StatusIs(absl::StatusCode::kNotFound, HasSubstr("version 7")));
  spec = Named("a");
  spec.losses[0].name = "hinge";
  EXPECT_THAT(Create(spec), RefusesField("losses[0].name", HasSubstr("hinge")));
  spec = Named("a");
  spec.optimizer = AdamSpec{.decoupled_weight_decay = true, .beta1 = 2};
  EXPECT_THAT(Create(spec), RefusesField("optimizer.adamw.beta1", HasSubstr("2")));
  spec = Named("a");
  spec.output_device = "cuda:9";
  EXPECT_THAT(Create(spec), RefusesField("output_device", HasSubstr("cuda:9")));
  EXPECT_TRUE(registry().List().empty());
}

TEST_F(TrainerRegistryTest, ReturnsNotFoundForUnknownNames) {
  const auto not_found = StatusIs(absl::StatusCode::kNotFound, HasSubstr("unknown trainer 'a'"));
  EXPECT_THAT(Get("a"), not_found);
  EXPECT_THAT(Delete("a"), not_found);
  EXPECT_THAT(Do("a", BatchOperation(1, 20)), not_found);
  Pending<absl::StatusOr<std::vector<StateTensor>>> state;
  registry().GetState("a", state.done());
  EXPECT_THAT(state.Wait(), not_found);
  Pending<absl::StatusOr<TrainerInfo>> settled;
  registry().GetSettled("a", settled.done());
  EXPECT_THAT(settled.Wait(), not_found);
}

TEST_F(TrainerRegistryTest, DeletingFreesNameAndMetrics) {
  const auto scrape = [this] {
    return prometheus::TextSerializer().Serialize(bench().metrics()->registry()->Collect());
  };
  ASSERT_THAT(Create(Named("a")), IsOk());
  ASSERT_THAT(Do("a", BatchOperation(1, 20)), IsOk());
  EXPECT_THAT(scrape(), HasSubstr("braid_training_steps_total{trainer=\"a\"} 1"));
  EXPECT_THAT(Delete("a"), IsOk());
  EXPECT_THAT(scrape(), Not(HasSubstr("trainer=\"a\"")));
  BRAID_ASSERT_OK_AND_ASSIGN(const TrainerInfo again, Create(Named("a")));
  EXPECT_EQ(again.step, 0);
}

TEST_F(TrainerRegistryTest, DeletingEndsQueuedOperations) {
  ASSERT_THAT(Create(Named("a")), IsOk());
  std::vector<PendingOperation> operations(30);
  Pending<absl::Status> deleted;
  {
    const WorkerBlock block(bench().fleet().worker(0));
    for (size_t i = 0; i < operations.size(); ++i) {
      registry().Submit("a", BatchOperation(static_cast<int64_t>(i) + 1, 4), operations[i].done());
    }
    registry().Delete("a", deleted.done());
  }
  EXPECT_THAT(deleted.Wait(), IsOk());
  for (const PendingOperation& operation : operations) {
    ASSERT_TRUE(operation.answered());
    EXPECT_TRUE(operation.Wait().ok() ||
                operation.Wait().status().code() == absl::StatusCode::kNotFound)
        << operation.Wait().status();
  }
}

TEST_F(TrainerRegistryTest, DestructorEndsQueuedOperations) {
  ASSERT_THAT(Create(Named("a")), IsOk());
  std::vector<PendingOperation> operations(30);
  for (size_t i = 0; i < operations.size(); ++i) {
    registry().Submit("a", BatchOperation(static_cast<int64_t>(i) + 1, 4), operations[i].done());
  }
  Stop();
  for (const PendingOperation& operation : operations) {
    EXPECT_TRUE(operation.answered());
  }
}

}  // namespace
}  // namespace braid
