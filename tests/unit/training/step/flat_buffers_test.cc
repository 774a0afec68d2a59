#include "server/training/step/flat_buffers.h"

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "gmock/gmock.h"
#include "server/training/optim/parameter_groups.h"
#include "server/training/step/stage.h"
#include "tests/fakes/operator_counter.h"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/trained_module.h"

namespace braid {
namespace {

// The buffers of two batch norms.
std::vector<at::Tensor> Statistics() {
  return {at::arange(5, at::kFloat),       at::ones({3, 2}, at::kFloat),
          at::scalar_tensor(7, at::kLong), at::full({7}, 2.5, at::kFloat),
          at::zeros({0}, at::kFloat),      at::scalar_tensor(8, at::kLong)};
}

TEST(FlatBuffersTest, KeepsOneTensorPerDatatype) {
  const FlatBuffers buffers(Statistics());
  EXPECT_EQ(buffers.flat().size(), 2);
  const std::vector<at::Tensor> expected = Statistics();
  ASSERT_EQ(buffers.views().size(), expected.size());
  for (size_t b = 0; b < expected.size(); ++b) {
    const at::Tensor& view = buffers.views()[b];
    EXPECT_TRUE(at::equal(view, expected[b]) && view.scalar_type() == expected[b].scalar_type());
    EXPECT_TRUE(view.is_alias_of(buffers.flat()[view.scalar_type() == at::kLong ? 1 : 0]));
  }
}

TEST(FlatBuffersTest, CopiesTheValues) {
  std::vector<at::Tensor> values = Statistics();
  FlatBuffers buffers(values);
  for (at::Tensor& value : values) {
    value.fill_(1);
  }
  EXPECT_TRUE(at::equal(buffers.views()[0], Statistics()[0]));
  buffers.Assign(values);
  for (size_t b = 0; b < values.size(); ++b) {
    EXPECT_TRUE(at::equal(buffers.views()[b], values[b]));
  }
}

TEST(FlatBuffersTest, PadsWithZerosSoThatFlatTensorsAreFinite) {
  const FlatBuffers buffers(Statistics());
  EXPECT_EQ(buffers.flat()[0].sum().item<float>(), 10 + 6 + 7 * 2.5);
}

TEST(FlatBuffersTest, MayBeEmpty) {
  FlatBuffers buffers((std::vector<at::Tensor>()));
  buffers.Assign({});
  EXPECT_TRUE(buffers.empty() && buffers.On(at::kCPU).empty());
}

// 50 layers of batch statistics: the check for finite values reads one tensor per datatype.
TEST(StageBuffersTest, ChecksAllBuffersAtOnce) {
  torch::jit::Module module = TwoLayers();
  for (int layer = 0; layer < 50; ++layer) {
    module.register_buffer("mean" + std::to_string(layer), at::zeros({3}, at::kDouble));
    module.register_buffer("calls" + std::to_string(layer), at::zeros({}, at::kLong));
  }
  module.define("def forward(self, x):\n  return (x @ self.w1 + self.b1) @ self.w2\n");
  const WorkerFleet fleet(2);
  PlacedStage placed{"", ReplicaSet(fleet.workers(), MakeReplicas(module, TrainedConfig(), 2)),
                     nullptr};
  BRAID_ASSERT_OK_AND_ASSIGN(const ParameterGroups groups,
                             ParameterGroups::Create({}, {"w1", "b1", "w2"}));
  BRAID_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Stage> stage,
                             Stage::Create(std::move(placed), groups, /*share_parameters=*/true));
  const OperatorCounter reductions("aten::aminmax");
  EXPECT_TRUE(stage->BuffersStayFinite());
  EXPECT_EQ(reductions.count(), 1);
  stage->replica(0).buffers()[0].fill_(std::numeric_limits<double>::infinity());
  EXPECT_FALSE(stage->BuffersStayFinite());
  stage->CommitBuffers();
  EXPECT_TRUE(stage->BuffersStayFinite());  // the committed buffer is not finite either
  stage->ResetBuffers(1);
  EXPECT_TRUE(at::equal(stage->replica(1).buffers()[0], stage->replica(0).buffers()[0]));
}

}  // namespace
}  // namespace braid
