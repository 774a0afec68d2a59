#include "server/jobs/served_job_model.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/serving/load_model.h"
#include "tests/fakes/filled_queue.h"
#include "tests/fakes/puppet_queue.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/temp_dir.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Tensors = std::vector<at::Tensor>;

class ServedJobModelTest : public ::testing::Test {
 protected:
  void Serve(ModelConfig config, int64_t version, const PuppetReplica::Function& forward) {
    models_.Serve({std::move(config), version, {fleet_.workers(), Puppets(fleet_, forward)}});
  }
  // Model that adds `offset`.
  void ServeAdding(int64_t version, double offset) {
    Serve(PuppetConfig(16), version, [offset](const Tensors& inputs) -> absl::StatusOr<Tensors> {
      return Tensors{inputs[0] + offset};
    });
  }
  void Open(int64_t batch_size = 0) {
    model_ = std::make_unique<ServedJobModel>(publisher_.get(), "m", batch_size, fleet_.metrics());
    ASSERT_THAT(model_->Open(0), IsOk());
  }
  absl::StatusOr<InferenceResult> Infer(const HostTensor& input) {
    PendingInference pending;
    model_->Infer({input}, input.rows(), pending.done());
    return pending.Wait();
  }

  WorkerFleet fleet_{2};
  ServedModels models_{fleet_.workers(), fleet_.metrics()};
  const TempDir repository_;
  const std::unique_ptr<Publisher> publisher_ =
      *Publisher::Open(&models_, repository_.path(), /*data_dir=*/"");
  Seen seen_;
  std::unique_ptr<ServedJobModel> model_;
};

TEST_F(ServedJobModelTest, OpensTheGivenVersionOrTheNewest) {
  ServeAdding(3, 10);
  ServedJobModel model(publisher_.get(), "m", 0, fleet_.metrics());
  EXPECT_THAT(model.Open(2), StatusIs(absl::StatusCode::kNotFound,
                                      AllOf(HasSubstr("spec.infer.version: "),
                                            HasSubstr("version 2 is not served (served: 3)"))));
  EXPECT_EQ(*model.Open(3), 3);
  EXPECT_EQ(*model.Open(0), 3);
  ServedJobModel other(publisher_.get(), "other", 0, fleet_.metrics());
  EXPECT_THAT(other.Open(0), StatusIs(absl::StatusCode::kNotFound,
                                      HasSubstr("spec.infer.model: unknown model 'other'")));
}

TEST_F(ServedJobModelTest, KeepsItsVersionAfterItIsUnloaded) {
  ServeAdding(3, 10);
  Open();
  ServeAdding(4, 20);
  ASSERT_THAT(models_.Remove("m", "it was unloaded"), IsOk());
  for (int i = 0; i < 3; ++i) {
    BRAID_ASSERT_OK_AND_ASSIGN(const InferenceResult result, Infer(MakeRows("x", 40, 1)));
    EXPECT_EQ(result.version, 3);
    EXPECT_EQ(ValuesOf<float>(result.outputs[0])[39], 50);
    EXPECT_THAT(result.outputs[0].shape, ElementsAre(40, 1));
  }
}

TEST_F(ServedJobModelTest, ChecksInputsLikeModelInfer) {
  ServeAdding(1, 0);
  Open();
  EXPECT_THAT(Infer(MakeRows("z", 2, 0)),
              RefusesField("inputs[0].name", HasSubstr("has no input 'z'")));
  EXPECT_THAT(Infer(MakeHost<double>("x", {1, 1}, {0})),
              RefusesField("inputs[0].datatype", HasSubstr("FP64")));
}

TEST_F(ServedJobModelTest, DependentRowsRunInBatchesOfTheGivenSize) {
  ModelConfig config = PuppetConfig(16);
  config.row_independence = RowIndependence::kDependent;
  Serve(config, 1, Doubling(&seen_));
  Open();
  EXPECT_EQ(model_->request_rows(), 1);
  Open(/*batch_size=*/40);
  EXPECT_EQ(model_->request_rows(), 40);
  ASSERT_THAT(Infer(MakeRows("x", 40, 0)), IsOk());
  EXPECT_THAT(seen_.rows(), ElementsAre(40));
}

TEST_F(ServedJobModelTest, APackageForAFixedNumberOfRowsGetsThem) {
  ModelConfig config = PuppetConfig(0);
  config.inputs[0].dims = {8, 1};
  config.outputs[0].dims = {8, 1};
  config.fixed_rows = true;
  Serve(config, 1, Doubling(&seen_));
  Open();
  EXPECT_EQ(model_->request_rows(), 8);
  BRAID_ASSERT_OK_AND_ASSIGN(const InferenceResult result, Infer(MakeRows("x", 8, 0)));
  EXPECT_EQ(ValuesOf<float>(result.outputs[0]), Doubled(MakeRows("x", 8, 0)));
  EXPECT_THAT(Infer(MakeRows("x", 7, 0)),
              RefusesField("inputs[0].shape", HasSubstr("expected [8, 1]")));
}

TEST_F(ServedJobModelTest, AModelWithoutABatchDimensionGetsOneRowAtATime) {
  Serve(PuppetConfig(0), 1, Doubling(&seen_));
  Open();
  EXPECT_EQ(model_->request_rows(), 1);
  BRAID_ASSERT_OK_AND_ASSIGN(const InferenceResult result,
                             Infer(MakeHost<float>("x", {1, 3}, {1, 2, 3})));
  EXPECT_THAT(seen_.rows(), ElementsAre(3));  // The input has the shape [3].
  EXPECT_THAT(result.outputs[0].shape, ElementsAre(1, 3));
  EXPECT_THAT(result.outputs[0].pieces[0].shape, ElementsAre(1, 3));
  EXPECT_EQ(ValuesOf<float>(result.outputs[0]), (std::vector<float>{2, 4, 6}));
}

TEST_F(ServedJobModelTest, AnOutputWithoutRowsIsAnError) {
  Serve(PuppetConfig(8), 1,
        [](const Tensors& inputs) -> absl::StatusOr<Tensors> { return Tensors{inputs[0].sum()}; });
  Open();
  // One number for each batch, of one row at first.
  while (model_->request_rows() < 4) {
    Infer(MakeRows("x", model_->request_rows(), 0)).IgnoreError();
  }
  EXPECT_THAT(Infer(MakeRows("x", 40, 0)),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("output 'y'"), HasSubstr("for 40 rows"))));
}

}  // namespace
}  // namespace braid
