#include "server/training/trainer/trainer.h"

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "prometheus/registry.h"
#include "prometheus/text_serializer.h"
#include "server/storage/safetensors.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/temp_dir.h"
#include "tests/fakes/trainer_bench.h"
#include "torch/csrc/jit/serialization/import.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class TrainerTest : public ::testing::Test {
 protected:
  absl::StatusOr<OperationResult> Do(Operation operation) {
    return braid::Do(*trainer_, std::move(operation));
  }
  State Weights() { return *StateOf(*trainer_); }

  TrainerBench bench_{Mlp(), /*workers=*/2};
  std::unique_ptr<Trainer> trainer_ =
      bench_.MustCreate(TrainedSpec(SgdSpec{.lr = 0.1, .momentum = 0.9}));
};

TEST_F(TrainerTest, StartsFromTheServedWeights) {
  const TrainerInfo info = trainer_->info();
  EXPECT_EQ(info.spec.base_version, 1);
  EXPECT_EQ(info.spec.losses[0].output, "y");
  EXPECT_THAT(info.devices, ElementsAre("cpu:0", "cpu:1"));
  EXPECT_EQ(info.step, 0);
  EXPECT_EQ(info.applied_sequence, 0);
  EXPECT_EQ(info.lr, 0.1);
  EXPECT_TRUE(at::equal(Weights()["w1"], Mlp().attr("w1").toTensor().detach()));
}

TEST_F(TrainerTest, StepEqualsForwardBackwardAndOptimStep) {
  BRAID_ASSERT_OK_AND_ASSIGN(const OperationResult step, Do(BatchOperation(1, 20)));
  EXPECT_EQ(step.applied_sequence, 1);
  EXPECT_EQ(step.step, 1);
  EXPECT_FALSE(step.replayed);
  ASSERT_EQ(step.chunks.size(), 2);
  EXPECT_EQ(step.chunks[1].device, "cpu:1");
  EXPECT_EQ(step.chunks[1].rows, 10);

  const State stepped = Weights();
  trainer_ = bench_.MustCreate(TrainedSpec(SgdSpec{.lr = 0.1, .momentum = 0.9}));
  BRAID_ASSERT_OK_AND_ASSIGN(const OperationResult half,
                             Do(BatchOperation(1, 20, OperationKind::kForwardBackward)));
  EXPECT_EQ(half.loss, step.loss);
  EXPECT_EQ(half.step, 0);
  EXPECT_EQ(trainer_->info().accumulated, 1);
  BRAID_ASSERT_OK_AND_ASSIGN(const OperationResult update, Do(OptimStep(2)));
  EXPECT_EQ(update.step, 1);
  EXPECT_FALSE(update.loss.has_value());
  EXPECT_EQ(trainer_->info().accumulated, 0);
  ExpectSameState(Weights(), stepped, 0);
}

TEST_F(TrainerTest, TrainersOfClientsAndOfJobsRunOnTheirWorkers) {
  const WorkerFleet of_clients(2);
  const WorkerFleet of_jobs(2);
  TrainerServices services = bench_.services();
  services.training_workers = of_clients.workers();
  services.job_workers = of_jobs.workers();
  BRAID_ASSERT_OK_AND_ASSIGN(const auto base, bench_.models()->FindReplicas("m", 0));
  const auto step = [&](const std::string& name, int64_t rows) {
    TrainerSpec spec = TrainedSpec(SgdSpec{.lr = 0.1});
    spec.name = name;
    BRAID_ASSERT_OK_AND_ASSIGN(
        const auto trainer,
        Trainer::Create(spec, "id", {base->config(), base->version(), base->replicas()},
                        TrainerFiles(), services));
    EXPECT_THAT(braid::Do(*trainer, BatchOperation(1, rows)), IsOk());
  };
  step("experiment", 20);
  step("job-7", 12);
  EXPECT_EQ(of_clients.worker(1).samples(), 10);
  EXPECT_EQ(of_jobs.worker(1).samples(), 6);
  EXPECT_EQ(bench_.fleet().worker(1).samples(), 0);
}

TEST_F(TrainerTest, AppliesARetriedOperationOnce) {
  BRAID_ASSERT_OK_AND_ASSIGN(const OperationResult first, Do(BatchOperation(1, 20)));
  const State weights = Weights();
  BRAID_ASSERT_OK_AND_ASSIGN(const OperationResult again, Do(BatchOperation(1, 20)));
  EXPECT_TRUE(again.replayed);
  EXPECT_EQ(again.loss, first.loss);
  EXPECT_EQ(again.step, 1);
  ExpectSameState(Weights(), weights, 0);
  Operation other = BatchOperation(1, 7);
  other.fingerprint = {9, 9};
  EXPECT_THAT(Do(std::move(other)), StatusIs(absl::StatusCode::kAborted, HasSubstr("sequence")));
  EXPECT_THAT(Do(BatchOperation(3, 20)),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("expected 2")));
}

TEST_F(TrainerTest, GetSettledWaitsForQueuedOperations) {
  PendingOperation applied;
  PendingOperation refused;
  Pending<absl::StatusOr<TrainerInfo>> settled;
  {
    const WorkerBlock block(bench_.fleet().worker(0));
    trainer_->Submit(BatchOperation(1, 20), applied.done());
    trainer_->Submit(BatchOperation(7, 20), refused.done());
    trainer_->GetSettled(settled.done());
    EXPECT_EQ(trainer_->info().applied_sequence, 0);
    EXPECT_FALSE(settled.answered());
  }
  ASSERT_THAT(settled.Wait(), IsOk());
  EXPECT_EQ(settled.Wait()->applied_sequence, 1);
  EXPECT_TRUE(applied.answered());
  EXPECT_TRUE(refused.answered());
}

TEST_F(TrainerTest, RecordsMetrics) {
  const auto scrape = [this] {
    return prometheus::TextSerializer().Serialize(bench_.metrics()->registry()->Collect());
  };
  const auto of_it = [this](const std::string& name, const std::string& value) {
    return HasSubstr(name + "{trainer=\"" + trainer_->spec().name + "\"} " + value + "\n");
  };
  const auto rate = [this](const std::string& value) {
    return HasSubstr("braid_training_learning_rate{group=\"\",trainer=\"" + trainer_->spec().name +
                     "\"} " + value + "\n");
  };
  EXPECT_THAT(scrape(), AllOf(rate("0.1"), of_it("braid_training_steps_total", "0"),
                              Not(HasSubstr("braid_training_loss{"))));
  ASSERT_THAT(Do(BatchOperation(1, 20)), IsOk());
  ASSERT_THAT(Do(BatchOperation(1, 20)), IsOk());
  ASSERT_THAT(Do(BatchOperation(2, 20, OperationKind::kForwardBackward)), IsOk());
  Operation update = OptimStep(3);
  update.hyper_parameters.lr = 0.25;
  ASSERT_THAT(Do(std::move(update)), IsOk());
  const std::string text = scrape();
  EXPECT_THAT(text, AllOf(of_it("braid_training_steps_total", "2"),
                          of_it("braid_training_step_duration_seconds_count", "2"),
                          of_it("braid_training_replayed_steps_total", "1"),
                          of_it("braid_training_skipped_steps_total", "0"), rate("0.25"),
                          of_it("braid_replica_imbalance_ratio_count", "2"),
                          of_it("braid_training_samples_total", "40")));
  EXPECT_THAT(text,
              AllOf(HasSubstr("phase=\"backward\",trainer="), HasSubstr("work=\"training\"} 20\n"),
                    // It is measured only where the gradients are clipped by it.
                    Not(HasSubstr("braid_training_gradient_norm"))));
}

TEST_F(TrainerTest, AFailedOperationDoesNotUseItsSequenceNumber) {
  const State weights = Weights();
  EXPECT_THAT(Do(OptimStep(1)),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("ForwardBackward first")));
  Operation bad = BatchOperation(1, 20);
  bad.targets[0] = MakeRows("target", 20, 0);
  EXPECT_THAT(Do(std::move(bad)), RefusesField("targets[0].datatype", HasSubstr("FP32")));
  Operation unnamed = BatchOperation(1, 20);
  unnamed.inputs[0].name = "z";
  EXPECT_THAT(Do(std::move(unnamed)), RefusesField("inputs[0].name", HasSubstr("'z'")));
  Operation wild = BatchOperation(1, 20);
  wild.hyper_parameters.lr = -1;
  EXPECT_THAT(Do(std::move(wild)), RefusesField("hyper_parameters.lr", HasSubstr("-1")));
  ExpectSameState(Weights(), weights, 0);
  EXPECT_EQ(trainer_->info().accumulated, 0);
  EXPECT_EQ(trainer_->info().applied_sequence, 0);
  EXPECT_THAT(Do(BatchOperation(1, 20)), IsOk());
}

TEST_F(TrainerTest, HyperParametersApplyToOneUpdate) {
  Operation still = BatchOperation(1, 20);
  still.hyper_parameters.lr = 0;
  const State weights = Weights();
  ASSERT_THAT(Do(std::move(still)), IsOk());
  ExpectSameState(Weights(), weights, 0);
  ASSERT_THAT(Do(BatchOperation(2, 20)), IsOk());
  EXPECT_FALSE(at::equal(Weights()["w1"], weights.at("w1")));
}

TEST_F(TrainerTest, PublishServesTheWeightsAsTheNextVersion) {
  ASSERT_THAT(Do(BatchOperation(1, 20)), IsOk());
  BRAID_ASSERT_OK_AND_ASSIGN(const OperationResult result, Do(Publish(2)));
  EXPECT_EQ(result.model, "m");
  EXPECT_EQ(result.version, 2);
  Operation forward = BatchOperation(3, 4, OperationKind::kForward);
  forward.mode = Mode::kEval;
  BRAID_ASSERT_OK_AND_ASSIGN(const OperationResult expected, Do(std::move(forward)));
  BRAID_ASSERT_OK_AND_ASSIGN(const InferenceResult served, bench_.Infer(4));
  EXPECT_EQ(served.version, 2);
  EXPECT_EQ(ValuesOf<double>(served.outputs[0]), ValuesOf<double>(expected.outputs[0]));
}

TEST_F(TrainerTest, UpdatesReturnTheLearningRate) {
  BRAID_ASSERT_OK_AND_ASSIGN(const OperationResult half,
                             Do(BatchOperation(1, 20, OperationKind::kForwardBackward)));
  EXPECT_FALSE(half.lr.has_value());
  Operation update = OptimStep(2);
  update.hyper_parameters.lr = 0.25;
  BRAID_ASSERT_OK_AND_ASSIGN(const OperationResult result, Do(std::move(update)));
  EXPECT_EQ(result.lr, 0.25);
  EXPECT_THAT(result.lrs, ElementsAre(GroupLearningRate{"", 0.25}));
  EXPECT_FALSE(result.gradient_norm.has_value());  // nobody asked for it
  std::vector<std::string> phases;
  for (const PhaseTime& phase : result.phases) {
    phases.push_back(phase.name);
  }
  EXPECT_THAT(phases, ElementsAre("queue", "copy_in", "forward", "loss", "backward", "reduce",
                                  "update", "broadcast", "copy_out"));
}

TEST_F(TrainerTest, LearningRatesAreThoseOfTheGroupsThatAreUpdated) {
  TrainerSpec spec = TrainedSpec(SgdSpec{.lr = 1});
  spec.groups = {{.pattern = "^b", .frozen = true}, {.pattern = "^w", .lr = 0.5}};
  spec.schedule.kind = ExponentialScheduleSpec{0.1};
  trainer_ = bench_.MustCreate(spec);
  EXPECT_THAT(trainer_->info().lrs, ElementsAre(GroupLearningRate{"^w", 0.5}));
  EXPECT_THAT(Do(BatchOperation(1, 20))->lrs, ElementsAre(GroupLearningRate{"^w", 0.5}));
  EXPECT_THAT(trainer_->info().lrs, ElementsAre(GroupLearningRate{"^w", 0.05}));
}

TEST_F(TrainerTest, ASkippedBatchCountsAsAnOperation) {
  TrainerSpec spec = TrainedSpec(SgdSpec{.lr = 0.1});
  spec.non_finite = NonFinitePolicy::kSkip;
  trainer_ = bench_.MustCreate(spec);
  Operation bad = BatchOperation(1, 20);
  bad.inputs = {ToHost(Inputs(20) * std::numeric_limits<double>::infinity(), "x")};
  BRAID_ASSERT_OK_AND_ASSIGN(const OperationResult result, Do(std::move(bad)));
  EXPECT_TRUE(result.skipped);
  EXPECT_FALSE(result.lr.has_value());
  EXPECT_EQ(result.step, 0);
  EXPECT_EQ(trainer_->info().skipped, 1);
  EXPECT_EQ(trainer_->info().applied_sequence, 1);
}

TEST_F(TrainerTest, UpdatesAdvanceTheSchedule) {
  TrainerSpec spec = TrainedSpec(SgdSpec{.lr = 1});
  spec.schedule.kind = StepScheduleSpec{.step_size = 1, .gamma = 0.5};
  trainer_ = bench_.MustCreate(spec);
  EXPECT_EQ(Do(BatchOperation(1, 20))->lr, 1);
  ASSERT_THAT(Do(BatchOperation(2, 20, OperationKind::kForwardBackward)), IsOk());
  EXPECT_EQ(Do(OptimStep(3))->lr, 0.5);
  EXPECT_EQ(trainer_->info().lr, 0.25);
}

// It looks at the mean of the losses of the batches that an update is made of.
TEST_F(TrainerTest, APlateauLooksAtTheLossesOrAtTheClientsMetric) {
  TrainerSpec spec = TrainedSpec(SgdSpec{.lr = 1e-9});
  spec.schedule.kind = PlateauScheduleSpec{.factor = 0.5, .patience = 0, .min_lr = 0, .eps = 0};
  trainer_ = bench_.MustCreate(spec);
  EXPECT_EQ(Do(BatchOperation(1, 20))->lr, 1e-9);
  EXPECT_EQ(Do(BatchOperation(2, 20))->lr, 1e-9);  // no better than before
  EXPECT_EQ(trainer_->info().lr, 0.5e-9);
  Operation better = BatchOperation(3, 20);
  better.hyper_parameters.metric = -1;
  ASSERT_THAT(Do(std::move(better)), IsOk());
  EXPECT_EQ(trainer_->info().lr, 0.5e-9);
}

TEST_F(TrainerTest, APlateauLooksAtAMetricThatComesWithASkippedUpdate) {
  TrainerSpec spec = TrainedSpec(SgdSpec{.lr = 0.1});
  spec.non_finite = NonFinitePolicy::kSkip;
  spec.schedule.kind = PlateauScheduleSpec{.factor = 0.5, .patience = 0};
  trainer_ = bench_.MustCreate(spec);
  Operation good = BatchOperation(1, 20);
  good.hyper_parameters.metric = 1;
  ASSERT_THAT(Do(std::move(good)), IsOk());
  Operation bad = BatchOperation(2, 20);
  bad.inputs = {ToHost(Inputs(20) * std::numeric_limits<double>::infinity(), "x")};
  bad.hyper_parameters.metric = 5;
  EXPECT_TRUE(Do(std::move(bad))->skipped);
  EXPECT_EQ(trainer_->info().lr, 0.05);
  bad = BatchOperation(3, 20, OperationKind::kForwardBackward);
  bad.inputs = {ToHost(Inputs(20) * std::numeric_limits<double>::infinity(), "x")};
  EXPECT_TRUE(Do(std::move(bad))->skipped);
  Operation update = OptimStep(4);
  update.hyper_parameters.metric = 5;
  EXPECT_TRUE(Do(std::move(update))->skipped);
  EXPECT_EQ(trainer_->info().lr, 0.025);
}

TEST_F(TrainerTest, EvaluationChangesNothingAndHasNoSequenceNumber) {
  ASSERT_THAT(Do(BatchOperation(1, 20)), IsOk());
  const State before = Weights();
  BRAID_ASSERT_OK_AND_ASSIGN(const auto evaluation, trainer_->StartEvaluation({"accuracy"}, 1));
  for (const int64_t rows : {20, 3}) {
    Pending<absl::StatusOr<int64_t>> pending;
    trainer_->Evaluate(evaluation, BatchLayout::kClient, {ToHost(Inputs(rows), "x")},
                       {ToHost(Classes(rows), "target")}, pending.done());
    ASSERT_THAT(pending.Wait(), IsOk());
    EXPECT_EQ(*pending.Wait(), 1);
  }
  EXPECT_EQ(evaluation->Result().rows, 23);
  Pending<absl::StatusOr<int64_t>> without;
  trainer_->Evaluate(evaluation, BatchLayout::kClient, {ToHost(Inputs(3), "x")}, {},
                     without.done());
  EXPECT_THAT(without.Wait(), RefusesField("targets", HasSubstr("missing")));
  EXPECT_THAT(trainer_->StartEvaluation({"f1"}, 1), RefusesField("metrics[0]", HasSubstr("f1")));
  ExpectSameState(Weights(), before, 0);
  EXPECT_EQ(trainer_->info().applied_sequence, 1);
}

TEST_F(TrainerTest, ExportsItsWeights) {
  ASSERT_THAT(Do(BatchOperation(1, 20)), IsOk());
  Pending<absl::StatusOr<std::string>> script;
  trainer_->Export(ExportFormat::kTorchScript, script.done());
  ASSERT_THAT(script.Wait(), IsOk());
  std::stringstream file(*script.Wait());
  const torch::jit::Module loaded = torch::jit::load(file);
  EXPECT_TRUE(at::equal(loaded.attr("w1").toTensor().detach(), Weights()["w1"]));

  Pending<absl::StatusOr<std::string>> tensors;
  trainer_->Export(ExportFormat::kSafetensors, tensors.done());
  ASSERT_THAT(tensors.Wait(), IsOk());
  const TempDir dir;
  dir.Write("weights", *tensors.Wait());
  BRAID_ASSERT_OK_AND_ASSIGN(const std::vector<HostTensor> read,
                             ReadSafetensors((dir.path() / "weights").string()));
  State state;
  for (const HostTensor& tensor : read) {
    state[tensor.name] = View(tensor).clone();
  }
  ExpectSameState(state, Weights(), 0);
}

TEST_F(TrainerTest, ExportsTheParametersThatItTrains) {
  TrainerSpec spec = TrainedSpec(SgdSpec{.lr = 0.1});
  spec.groups = {{.pattern = "^b1$", .frozen = true}};
  trainer_ = bench_.MustCreate(spec);
  ASSERT_THAT(Do(BatchOperation(1, 20)), IsOk());
  Pending<absl::StatusOr<std::string>> tensors;
  trainer_->Export(ExportFormat::kTrainableSafetensors, tensors.done());
  ASSERT_THAT(tensors.Wait(), IsOk());
  const TempDir dir;
  dir.Write("weights", *tensors.Wait());
  BRAID_ASSERT_OK_AND_ASSIGN(const std::vector<HostTensor> read,
                             ReadSafetensors((dir.path() / "weights").string()));
  ASSERT_EQ(read.size(), 2);
  for (size_t i = 0; i < read.size(); ++i) {
    EXPECT_EQ(read[i].name, i == 0 ? "w1" : "w2");
    EXPECT_TRUE(at::equal(View(read[i]), Weights()[read[i].name]));
  }
}

// A trainer whose client computes the loss.
class ClientTrainerTest : public ::testing::Test {
 protected:
  TrainerBench bench_{Mlp(), /*workers=*/2};
  std::unique_ptr<Trainer> trainer_ = bench_.MustCreate(ClientSpec());
};

TEST_F(ClientTrainerTest, StepsAreForwardBackwardAndOptimStep) {
  EXPECT_THAT(Do(*trainer_, BatchOperation(1, 5)),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("client computes")));
  ASSERT_THAT(Do(*trainer_, KeptForward(1)), IsOk());
  ASSERT_THAT(Do(*trainer_, BackwardOfOnes(2)), IsOk());
  EXPECT_EQ(trainer_->info().accumulated, 1);
  EXPECT_EQ(Do(*trainer_, OptimStep(3))->step, 1);
}

TEST_F(ClientTrainerTest, AnotherOperationDropsTheGraph) {
  ASSERT_THAT(Do(*trainer_, KeptForward(1)), IsOk());
  ASSERT_THAT(Do(*trainer_, Publish(2)), IsOk());
  EXPECT_THAT(Do(*trainer_, BackwardOfOnes(3)),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("keep_graph")));
}

TEST_F(ClientTrainerTest, EvaluationMeasuresWithoutALoss) {
  BRAID_ASSERT_OK_AND_ASSIGN(const auto evaluation, trainer_->StartEvaluation({"accuracy"}, 1));
  const auto evaluate = [&](std::vector<HostTensor> targets) {
    Pending<absl::StatusOr<int64_t>> pending;
    trainer_->Evaluate(evaluation, BatchLayout::kClient, {ToHost(Inputs(5), "x")},
                       std::move(targets), pending.done());
    return pending.Wait();
  };
  ASSERT_THAT(evaluate({ToHost(Classes(5), "target")}), IsOk());
  EXPECT_EQ(evaluation->Result().loss, std::nullopt);
  EXPECT_EQ(evaluation->Result().rows, 5);
  EXPECT_THAT(evaluate({}), RefusesField("targets", HasSubstr("'target' is missing")));
  EXPECT_THAT(evaluate({ToHost(Classes(5), "labels")}),
              RefusesField("targets[0].name", HasSubstr("no metric takes a target 'labels'")));
}

TEST_F(ClientTrainerTest, OnlyTrainingKeepsAGraph) {
  Operation forward = KeptForward(1);
  forward.mode = Mode::kEval;
  EXPECT_THAT(Do(*trainer_, std::move(forward)), RefusesField("keep_graph", HasSubstr("TRAIN")));
}

// Operations whose requests are gone when they are answered again.
TEST(TrainerReplayTest, ARecordedReplyOutlivesItsRequest) {
  torch::jit::Module module = TwoLayers();
  module.define("def forward(self, x):\n  return x\n");
  TrainerBench bench(module, /*workers=*/1);
  const std::unique_ptr<Trainer> trainer = bench.MustCreate(TrainedSpec(SgdSpec{}));
  const at::Tensor request = Inputs(4);
  const auto forward = [&] {
    Operation operation;
    operation.kind = OperationKind::kForward;
    operation.sequence = 1;
    operation.inputs = {ToHost(request, "x")};
    PendingOperation pending;
    trainer->Submit(std::move(operation), pending.done());
    return ValuesOf<double>(pending.Wait()->outputs[0]);
  };
  const std::vector<double> first = forward();
  request.fill_(77);  // its memory is somebody else's now
  EXPECT_EQ(forward(), first);
}

TEST(TrainerQueueTest, RejectsOperationsBeyondTheQueueLimit) {
  TrainerBench bench(Mlp(), /*workers=*/1);
  const std::unique_ptr<Trainer> trainer = bench.MustCreate(TrainedSpec(SgdSpec{}));
  std::vector<PendingOperation> pending(65);
  {
    const WorkerBlock block(bench.fleet().worker(0));
    for (size_t i = 0; i < pending.size(); ++i) {
      trainer->Submit(BatchOperation(static_cast<int64_t>(i) + 1, 2), pending[i].done());
    }
    ASSERT_TRUE(pending[64].answered());
    EXPECT_THAT(pending[64].Wait(),
                StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("64 operations")));
  }
  for (size_t i = 0; i < 64; ++i) {
    EXPECT_THAT(pending[i].Wait(), IsOk()) << i;
  }
}

TEST(TrainerQueueTest, DeletingATrainerEndsEveryOperation) {
  TrainerBench bench(Mlp(), /*workers=*/1);
  std::unique_ptr<Trainer> trainer = bench.MustCreate(TrainedSpec(SgdSpec{}));
  std::vector<PendingOperation> pending(60);
  for (size_t i = 0; i < pending.size(); ++i) {
    trainer->Submit(BatchOperation(static_cast<int64_t>(i) + 1, 50), pending[i].done());
  }
  trainer.reset();
  bool deleted = false;
  for (const PendingOperation& operation : pending) {
    ASSERT_TRUE(operation.answered());
    if (deleted || !operation.Wait().ok()) {
      deleted = true;
      EXPECT_THAT(operation.Wait(),
                  StatusIs(absl::StatusCode::kNotFound, HasSubstr("has been deleted")));
    }
  }
}

}  // namespace
}  // namespace braid
