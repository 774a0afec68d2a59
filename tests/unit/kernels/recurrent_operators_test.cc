#include "server/kernels/recurrent_operators.h"

#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/core/dispatch/Dispatcher.h"
#include "gtest/gtest.h"
#include "torch/csrc/autograd/autograd.h"

namespace braid {
namespace {

using at::Tensor;
using c10::IValue;

constexpr int64_t kSteps = 6;
constexpr int64_t kRows = 3;
constexpr int64_t kFeatures = 4;
constexpr int64_t kUnits = 5;

enum class Cell { kLstm, kProjectedLstm, kGru, kTanh, kRelu };

std::vector<IValue> CallRecurrent(const char* name, std::vector<IValue> stack) {
  RegisterRecurrentOperators();
  c10::Dispatcher::singleton().findSchemaOrThrow(name, "").callBoxed(stack);
  return stack;
}

IValue Optional(const Tensor& tensor) { return tensor.defined() ? IValue(tensor) : IValue(); }

// Output, final hidden state and, of an LSTM, final cell state.
using Outputs = std::vector<Tensor>;

// Layer with its input and initial states. All tensors need gradients.
struct Layer {
  Cell cell = Cell::kLstm;
  bool reverse = false;
  Tensor input, hidden, cell_state, input_weight, weight, input_bias, bias, projection, lengths;

  bool is_lstm() const { return cell == Cell::kLstm || cell == Cell::kProjectedLstm; }

  std::vector<Tensor> Differentiated() const {
    std::vector<Tensor> tensors{input, hidden, input_weight, weight, input_bias, bias};
    if (is_lstm()) {
      tensors.push_back(cell_state);
    }
    if (projection.defined()) {
      tensors.push_back(projection);
    }
    return tensors;
  }
};

Layer MakeLayer(Cell cell, at::ScalarType type, bool reverse, bool with_lengths) {
  at::manual_seed(0);
  const auto random = [type](at::IntArrayRef sizes) {
    return at::randn(sizes, at::kDouble).mul_(0.5).to(type).requires_grad_();
  };
  const int64_t gates = cell == Cell::kGru ? 3 : cell == Cell::kTanh || cell == Cell::kRelu ? 1 : 4;
  const int64_t state = cell == Cell::kProjectedLstm ? 2 : kUnits;
  Layer layer;
  layer.cell = cell;
  layer.reverse = reverse;
  layer.input = random({kSteps, kRows, kFeatures});
  layer.hidden = random({kRows, state});
  layer.cell_state = random({kRows, kUnits});
  layer.input_weight = random({gates * kUnits, kFeatures});
  layer.weight = random({gates * kUnits, state});
  layer.input_bias = random({gates * kUnits});
  layer.bias = random({gates * kUnits});
  if (cell == Cell::kProjectedLstm) {
    layer.projection = random({state, kUnits});
  }
  if (with_lengths) {
    layer.lengths = at::tensor({kSteps, int64_t{2}, int64_t{4}});
  }
  return layer;
}

// Runs LibTorch's layer on all rows for all steps.
Outputs RunWhole(const Layer& layer, const Tensor& input, const Tensor& hidden,
                 const Tensor& cell_state) {
  const Tensor steps = layer.reverse ? input.flip(0) : input;
  std::vector<Tensor> weights{layer.input_weight, layer.weight, layer.input_bias, layer.bias};
  if (layer.projection.defined()) {
    weights.push_back(layer.projection);
  }
  Tensor output;
  Tensor last;
  Tensor last_cell;
  const Tensor first = hidden.unsqueeze(0);
  switch (layer.cell) {
    case Cell::kLstm:
    case Cell::kProjectedLstm:
      std::tie(output, last, last_cell) = at::lstm(steps, {first, cell_state.unsqueeze(0)}, weights,
                                                   true, 1, 0.0, true, false, false);
      break;
    case Cell::kGru:
      std::tie(output, last) = at::gru(steps, first, weights, true, 1, 0.0, true, false, false);
      break;
    case Cell::kTanh:
      std::tie(output, last) =
          at::rnn_tanh(steps, first, weights, true, 1, 0.0, true, false, false);
      break;
    case Cell::kRelu:
      std::tie(output, last) =
          at::rnn_relu(steps, first, weights, true, 1, 0.0, true, false, false);
      break;
  }
  Outputs outputs{layer.reverse ? output.flip(0) : output, last.squeeze(0)};
  if (last_cell.defined()) {
    outputs.push_back(last_cell.squeeze(0));
  }
  return outputs;
}

// Runs LibTorch's layer, row by row if they have lengths. Later steps of a row are zero.
Outputs RunReference(const Layer& layer) {
  if (!layer.lengths.defined()) {
    return RunWhole(layer, layer.input, layer.hidden, layer.cell_state);
  }
  std::vector<std::vector<Tensor>> parts(3);
  for (int64_t row = 0; row < kRows; ++row) {
    const auto length = layer.lengths[row].item<int64_t>();
    Outputs outputs = RunWhole(layer, layer.input.narrow(1, row, 1).narrow(0, 0, length),
                               layer.hidden.narrow(0, row, 1), layer.cell_state.narrow(0, row, 1));
    outputs[0] = at::constant_pad_nd(outputs[0], {0, 0, 0, 0, 0, kSteps - length});
    for (size_t i = 0; i < outputs.size(); ++i) {
      parts[i].push_back(outputs[i]);
    }
  }
  Outputs joined{at::cat(parts[0], 1), at::cat(parts[1])};
  if (!parts[2].empty()) {
    joined.push_back(at::cat(parts[2]));
  }
  return joined;
}

// Sums over steps of the products of gradients and states.
Tensor WeightGradient(const Tensor& of_steps, const Tensor& output, const Layer& layer) {
  const Tensor first = layer.hidden.unsqueeze(0).to(output.scalar_type());
  const Tensor before = layer.reverse ? at::cat({output.slice(0, 1), first})
                                      : at::cat({first, output.slice(0, 0, -1)});
  return of_steps.flatten(0, 1).t().mm(before.flatten(0, 1).to(of_steps.scalar_type()));
}

// Runs the operator and its backward operator. Returns outputs, and gradients as Differentiated().
std::pair<Outputs, std::vector<Tensor>> RunOperators(const Layer& layer, Outputs gradients) {
  const c10::AutoGradMode no_grad(false);
  const IValue lengths = Optional(layer.lengths);
  const IValue none;
  if (layer.is_lstm()) {
    const std::vector<IValue> arguments{
        layer.input,  layer.hidden,     layer.cell_state, layer.input_weight,
        layer.weight, layer.input_bias, layer.bias,       Optional(layer.projection),
        lengths,      layer.reverse};
    const std::vector<IValue> results = CallRecurrent("braid::lstm", arguments);
    std::vector<IValue> given{gradients[0], gradients[1], gradients[2]};
    given.insert(given.end(), arguments.begin(), arguments.end());
    given.insert(given.end(), results.begin(), results.end());
    const std::vector<IValue> got = CallRecurrent("braid::lstm_backward", given);
    std::vector<Tensor> found{got[0].toTensor(), got[1].toTensor(), got[3].toTensor(),
                              got[4].toTensor(), got[5].toTensor(), got[5].toTensor(),
                              got[2].toTensor()};
    if (layer.projection.defined()) {
      found.push_back(got[6].toTensor());
    }
    return {{results[0].toTensor(), results[1].toTensor(), results[2].toTensor()}, found};
  }
  const bool gru = layer.cell == Cell::kGru;
  const bool relu = layer.cell == Cell::kRelu;
  const Tensor bias = gru ? layer.input_bias : layer.input_bias + layer.bias;
  const Tensor steps = at::linear(layer.input, layer.input_weight, bias);
  const std::vector<IValue> results =
      gru ? CallRecurrent("braid::gru",
                          {steps, layer.hidden, layer.weight, layer.bias, lengths, layer.reverse})
          : CallRecurrent("braid::rnn",
                          {steps, layer.hidden, layer.weight, lengths, relu, layer.reverse});
  const std::vector<IValue> got =
      gru ? CallRecurrent("braid::gru_backward",
                          {gradients[0], gradients[1], results[0], results[2], layer.hidden,
                           layer.weight, lengths, layer.reverse})
          : CallRecurrent("braid::rnn_backward",
                          {gradients[0], gradients[1], results[0], layer.hidden, layer.weight,
                           lengths, relu, layer.reverse});
  const Tensor of_steps = got[0].toTensor();
  const Tensor of_products = gru ? got[1].toTensor() : of_steps;
  const Tensor flat = of_steps.flatten(0, 1);
  return {{results[0].toTensor(), results[1].toTensor()},
          {flat.mm(layer.input_weight).view_as(layer.input), got.back().toTensor(),
           flat.t().mm(layer.input.flatten(0, 1)),
           WeightGradient(of_products, results[0].toTensor(), layer), flat.sum(0),
           of_products.sum({0, 1})}};
}

void ExpectClose(const Tensor& actual, const Tensor& wanted, double tolerance) {
  ASSERT_EQ(actual.sizes(), wanted.sizes());
  EXPECT_EQ(actual.scalar_type(), wanted.scalar_type());
  const Tensor difference = (actual.to(at::kDouble) - wanted.to(at::kDouble)).abs();
  EXPECT_LE(difference.max().item<double>(), tolerance);
}

using Parameters = std::tuple<Cell, bool, bool>;

class RecurrentOperatorsTest : public ::testing::TestWithParam<Parameters> {
 protected:
  static void Compare(at::ScalarType type, double tolerance) {
    const auto [cell, reverse, with_lengths] = GetParam();
    const Layer layer = MakeLayer(cell, type, reverse, with_lengths);
    const Outputs wanted = RunReference(layer);
    Outputs gradients;
    for (const Tensor& output : wanted) {
      gradients.push_back(at::randn_like(output));
    }
    if (with_lengths) {  // Later steps are not part of a packed sequence.
      gradients[0] =
          gradients[0] *
          at::arange(kSteps).view({-1, 1, 1}).lt(layer.lengths.view({1, -1, 1})).to(type);
    }
    const std::vector<Tensor> of_wanted =
        torch::autograd::grad(wanted, layer.Differentiated(), gradients);
    const auto [outputs, of_outputs] = RunOperators(layer, gradients);
    ASSERT_EQ(outputs.size(), wanted.size());
    for (size_t i = 0; i < outputs.size(); ++i) {
      const Tensor compared =
          i == 0 && with_lengths
              ? outputs[i] *
                    at::arange(kSteps).view({-1, 1, 1}).lt(layer.lengths.view({1, -1, 1})).to(type)
              : outputs[i];
      ExpectClose(compared, wanted[i].detach(), tolerance);
    }
    ASSERT_EQ(of_outputs.size(), of_wanted.size());
    for (size_t i = 0; i < of_outputs.size(); ++i) {
      SCOPED_TRACE(i);
      ExpectClose(of_outputs[i], of_wanted[i], 20 * tolerance);
    }
  }
};

TEST_P(RecurrentOperatorsTest, EqualLibTorchInFloat64) { Compare(at::kDouble, 1e-14); }

TEST_P(RecurrentOperatorsTest, EqualLibTorchInFloat32) { Compare(at::kFloat, 1e-6); }

TEST_P(RecurrentOperatorsTest, ApproximateLibTorchInBfloat16) { Compare(at::kBFloat16, 0.05); }

INSTANTIATE_TEST_SUITE_P(Layers, RecurrentOperatorsTest,
                         ::testing::Combine(::testing::Values(Cell::kLstm, Cell::kProjectedLstm,
                                                              Cell::kGru, Cell::kTanh, Cell::kRelu),
                                            ::testing::Bool(), ::testing::Bool()));

TEST(RecurrentOperators, TreatMissingGradientsAsZero) {
  for (const Cell cell : {Cell::kLstm, Cell::kProjectedLstm}) {
    const Layer layer = MakeLayer(cell, at::kDouble, false, false);
    const c10::AutoGradMode no_grad(false);
    const std::vector<IValue> arguments{layer.input,      layer.hidden,
                                        layer.cell_state, layer.input_weight,
                                        layer.weight,     layer.input_bias,
                                        layer.bias,       Optional(layer.projection),
                                        IValue(),         false};
    const std::vector<IValue> results = CallRecurrent("braid::lstm", arguments);
    const Tensor of_cell = at::randn_like(layer.cell_state);
    std::vector<std::vector<Tensor>> found;
    for (const bool explicit_zeros : {false, true}) {
      std::vector<IValue> given{IValue(), IValue(), of_cell};
      if (explicit_zeros) {
        given[0] = at::zeros_like(results[0].toTensor());
        given[1] = at::zeros_like(results[1].toTensor());
      }
      given.insert(given.end(), arguments.begin(), arguments.end());
      given.insert(given.end(), results.begin(), results.end());
      std::vector<Tensor>& tensors = found.emplace_back();
      for (const IValue& each : CallRecurrent("braid::lstm_backward", given)) {
        tensors.push_back(each.toTensor());
      }
    }
    for (size_t i = 0; i < found[0].size(); ++i) {
      EXPECT_TRUE(at::equal(found[0][i], found[1][i])) << i;
    }
  }
}

TEST(RecurrentOperators, RejectSequencesWithoutSteps) {
  const Layer layer = MakeLayer(Cell::kTanh, at::kFloat, false, false);
  const Tensor steps = at::zeros({0, kRows, kUnits});
  EXPECT_THROW(
      CallRecurrent("braid::rnn", {steps, layer.hidden, layer.weight, IValue(), false, false}),
      c10::Error);
}

TEST(RecurrentOperators, RejectStatesOfOtherSizes) {
  const Layer layer = MakeLayer(Cell::kGru, at::kFloat, false, false);
  const Tensor steps = at::zeros({kSteps, kRows + 1, 3 * kUnits});
  EXPECT_THROW(
      CallRecurrent("braid::gru", {steps, layer.hidden, layer.weight, IValue(), IValue(), false}),
      c10::Error);
}

}  // namespace
}  // namespace braid
