#include "server/kernels/recurrent_operators.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/OpMathType.h"
#include "ATen/core/dispatch/Dispatcher.h"
#include "c10/core/GradMode.h"
#include "server/kernels/onednn_product.h"
#include "torch/library.h"

namespace braid {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

constexpr const char* kLstm =
    "lstm(Tensor input, Tensor hidden, Tensor cell, Tensor input_weight, Tensor weight, "
    "Tensor? input_bias, Tensor? bias, Tensor? projection, Tensor? lengths, bool reverse) -> "
    "(Tensor output, Tensor last_hidden, Tensor last_cell, Tensor gates, Tensor cells)";
constexpr const char* kLstmBackward =
    "lstm_backward(Tensor? grad_output, Tensor? grad_last_hidden, Tensor? grad_last_cell, "
    "Tensor input, Tensor hidden, Tensor cell, Tensor input_weight, Tensor weight, "
    "Tensor? input_bias, Tensor? bias, Tensor? projection, Tensor? lengths, bool reverse, "
    "Tensor output, Tensor last_hidden, Tensor last_cell, Tensor gates, Tensor cells) -> "
    "(Tensor grad_input, Tensor grad_hidden, Tensor grad_cell, Tensor grad_input_weight, "
    "Tensor grad_weight, Tensor grad_bias, Tensor grad_projection)";
constexpr const char* kGru =
    "gru(Tensor steps, Tensor hidden, Tensor weight, Tensor? bias, Tensor? lengths, "
    "bool reverse) -> (Tensor output, Tensor last_hidden, Tensor gates)";
constexpr const char* kGruBackward =
    "gru_backward(Tensor? grad_output, Tensor? grad_last_hidden, Tensor output, Tensor gates, "
    "Tensor hidden, Tensor weight, Tensor? lengths, bool reverse) -> (Tensor grad_steps, "
    "Tensor grad_products, Tensor grad_hidden)";
constexpr const char* kRnn =
    "rnn(Tensor steps, Tensor hidden, Tensor weight, Tensor? lengths, bool relu, bool reverse) -> "
    "(Tensor output, Tensor last_hidden)";
constexpr const char* kRnnBackward =
    "rnn_backward(Tensor? grad_output, Tensor? grad_last_hidden, Tensor output, Tensor hidden, "
    "Tensor weight, Tensor? lengths, bool relu, bool reverse) -> (Tensor grad_steps, "
    "Tensor grad_hidden)";

// Order in which time steps run, and the steps that rows have.
class Times {
 public:
  Times(const Tensor& sequence, const OptionalTensor& lengths, bool reverse)
      : count_(sequence.size(0)), reverse_(reverse) {
    TORCH_CHECK(count_ > 0, "a sequence without time steps (expected at least 1)");
    if (lengths) {
      const Tensor times = at::arange(count_, sequence.options().dtype(at::kLong));
      valid_ = times.view({-1, 1, 1}).lt(lengths->to(times.device()).view({1, -1, 1}));
      valid_by_time_ = valid_.unbind();
    }
  }

  int64_t count() const { return count_; }
  // Returns the time of the n-th step.
  size_t Forward(int64_t n) const { return static_cast<size_t>(reverse_ ? count_ - 1 - n : n); }
  // Returns the time of the n-th step from the last.
  size_t Backward(int64_t n) const { return Forward(count_ - 1 - n); }
  size_t Last() const { return Forward(count_ - 1); }

  // True if some rows may lack some steps.
  bool masked() const { return valid_.defined(); }
  // Returns which steps each row has: bool [T, B, 1].
  const Tensor& valid() const { return valid_; }
  const Tensor& ValidAt(size_t time) const { return valid_by_time_[time]; }

  // Returns the state before each step: `states` [T, …] one step later, after `initial` [1, …].
  Tensor Before(const Tensor& states, const Tensor& initial) const {
    const Tensor first = initial.unsqueeze(0).to(states.scalar_type());
    return reverse_ ? at::cat({states.narrow(0, 1, count_ - 1), first})
                    : at::cat({first, states.narrow(0, 0, count_ - 1)});
  }

  // Keeps the state `before` in rows of `state` that lack the step.
  void Keep(size_t time, const Tensor& before, Tensor& state) const {
    if (masked()) {
      at::where_out(state, ValidAt(time), state, before);
    }
  }

 private:
  const int64_t count_;
  const bool reverse_;
  Tensor valid_;
  std::vector<Tensor> valid_by_time_;
};

// Product of matrices with a constant right side. Operands and results have the dtype `computed`;
// the product has that of the matrix.
class Multiplier {
 public:
  Multiplier(Tensor matrix, at::ScalarType computed)
      : matrix_(std::move(matrix)), converts_(matrix_.scalar_type() != computed) {}

  void Multiply(const Tensor& left, Tensor& result) const {
    if (converts_) {
      result.copy_(at::mm(left.to(matrix_.scalar_type()), matrix_));
    } else {
      at::mm_out(result, left, matrix_);
    }
  }

  // added: [rows, columns] or [columns].
  void MultiplyAdd(const Tensor& added, const Tensor& left, Tensor& result) const {
    if (converts_) {
      at::add_out(result, added, at::mm(left.to(matrix_.scalar_type()), matrix_));
    } else {
      at::addmm_out(result, added, left, matrix_);
    }
  }

 private:
  const Tensor matrix_;
  const bool converts_;
};

// Returns `count` parts of `size` elements of the last dim from part `first`, one tensor per step.
std::vector<Tensor> Parts(const Tensor& sequence, int64_t size, int64_t first, int64_t count = 1) {
  return sequence.narrow(2, first * size, count * size).unbind();
}

Tensor Part(const Tensor& sequence, int64_t size, int64_t index) {
  return sequence.narrow(2, index * size, size);
}

at::ScalarType ComputedType(const Tensor& steps) { return at::toOpMathType(steps.scalar_type()); }

at::ScalarType StateType(const Tensor& steps, const Tensor& initial) {
  return c10::promoteTypes(steps.scalar_type(), initial.scalar_type());
}

Tensor EmptySequence(const Tensor& steps, int64_t size) {
  return at::empty({steps.size(0), steps.size(1), size},
                   steps.options().dtype(ComputedType(steps)));
}

void CheckSizes(const Tensor& steps, const Tensor& hidden, const Tensor& weight, int64_t gates) {
  TORCH_CHECK(steps.dim() == 3 && hidden.dim() == 2 && weight.dim() == 2 &&
                  steps.size(2) == weight.size(0) && weight.size(0) % gates == 0 &&
                  hidden.size(0) == steps.size(1) && hidden.size(1) == weight.size(1),
              "steps ", steps.sizes(), ", hidden state ", hidden.sizes(), " and weight ",
              weight.sizes(), " do not match (expected [T, B, ", gates, "*H], [B, P] and [", gates,
              "*H, P])");
  TORCH_CHECK(steps.scalar_type() == weight.scalar_type(), "steps are ", steps.scalar_type(),
              " and the weight is ", weight.scalar_type(), " (expected the same dtype)");
}

// Returns a copy of `gradient` in `type`, or zeros shaped like `state`.
Tensor InitialGradient(const OptionalTensor& gradient, const Tensor& state, at::ScalarType type) {
  return gradient
             ? gradient->to(state.options().dtype(type), /*non_blocking=*/false, /*copy=*/true)
             : at::zeros_like(state, state.options().dtype(type), at::MemoryFormat::Contiguous);
}

// Gradient of the output by step. Empty if it is zero.
std::vector<Tensor> ByStep(const OptionalTensor& gradient) {
  return gradient ? gradient->unbind() : std::vector<Tensor>();
}

void AddStep(const std::vector<Tensor>& gradients, size_t time, Tensor& sum) {
  if (!gradients.empty()) {
    sum.add_(gradients[time]);
  }
}

// Arguments of the LSTM operators.
struct LstmLayer {
  const Tensor& input;
  const Tensor& hidden;
  const Tensor& cell;
  const Tensor& input_weight;
  const Tensor& weight;
  const OptionalTensor& input_bias;
  const OptionalTensor& bias;
  const OptionalTensor& projection;
  const OptionalTensor& lengths;
  bool reverse;

  int64_t units() const { return weight.size(0) / 4; }
};

using LstmResult = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;
using LstmGradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

// True if oneDNN supports bfloat16 on this processor.
bool HasOneDnnBfloat16() {
  static const auto kIsSupported = c10::Dispatcher::singleton()
                                       .findSchemaOrThrow("mkldnn::_is_mkldnn_bf16_supported", "")
                                       .typed<bool()>();
  return kIsSupported.call();
}

// True if oneDNN's LSTM supports the layer, as LibTorch decides in training. It is faster, and
// needs three times the memory.
bool FitsOneDnnLstm(const LstmLayer& layer) {
  const at::ScalarType type = layer.input.scalar_type();
  if (!HasOneDnn() || layer.projection || layer.lengths ||
      !(type == at::kFloat || (type == at::kBFloat16 && HasOneDnnBfloat16()))) {
    return false;
  }
  const auto fits = [type](const Tensor& each) {
    return each.device().is_cpu() && each.scalar_type() == type && each.numel() > 0;
  };
  return fits(layer.input) && fits(layer.hidden) && fits(layer.cell) && fits(layer.input_weight) &&
         fits(layer.weight);
}

// LibTorch's number of an LSTM, miopenLSTM and cudnnLSTM in its sources.
constexpr int64_t kLstmMode = 2;

// The result's `gates` are oneDNN's workspace, in bytes, and `cells` are empty.
LstmResult OneDnnLstm(const LstmLayer& layer) {
  const c10::AutoGradMode with_workspace(true);
  const Tensor no_bias = at::zeros({layer.weight.size(0)}, layer.weight.options());
  auto [output, hidden, cell, workspace] = at::mkldnn_rnn_layer(
      layer.input.contiguous(), layer.input_weight.contiguous(), layer.weight.contiguous(),
      layer.input_bias.value_or(no_bias), layer.bias.value_or(no_bias), layer.hidden.contiguous(),
      layer.cell.contiguous(), layer.reverse, /*batch_sizes=*/{}, kLstmMode, layer.units(),
      /*num_layers=*/1, /*has_biases=*/true, /*bidirectional=*/false, /*batch_first=*/false,
      /*train=*/true);
  return {output, hidden, cell, workspace, at::empty({0}, output.options())};
}

LstmGradients OneDnnLstmBackward(const LstmLayer& layer, const OptionalTensor& grad_output,
                                 const OptionalTensor& grad_last_hidden,
                                 const OptionalTensor& grad_last_cell, const Tensor& output,
                                 const Tensor& last_hidden, const Tensor& last_cell,
                                 const Tensor& workspace) {
  const Tensor no_bias = at::zeros({layer.weight.size(0)}, layer.weight.options());
  auto [input, input_weight, weight, input_bias, bias, hidden, cell] =
      at::mkldnn_rnn_layer_backward(
          layer.input.contiguous(), layer.input_weight.contiguous(), layer.weight.contiguous(),
          layer.input_bias.value_or(no_bias), layer.bias.value_or(no_bias),
          layer.hidden.contiguous(), layer.cell.contiguous(), output, last_hidden, last_cell,
          grad_output, grad_last_hidden, grad_last_cell, layer.reverse, kLstmMode, layer.units(),
          /*num_layers=*/1,
          /*has_biases=*/true, /*train=*/true, /*bidirectional=*/false, /*batch_sizes=*/{},
          /*batch_first=*/false, workspace);
  // Gradients in bfloat16 are returned in float32.
  const at::ScalarType type = layer.weight.scalar_type();
  return {input.to(type),
          hidden.to(type),
          cell.to(type),
          input_weight.to(type),
          weight.to(type),
          bias.to(type),
          at::empty({0}, layer.weight.options())};
}

// Returns the input times the input weight, plus the biases: [T, B, 4*H].
Tensor LstmSteps(const LstmLayer& layer) {
  if (!layer.input_bias || !layer.bias) {
    return at::linear(layer.input, layer.input_weight,
                      layer.input_bias ? layer.input_bias : layer.bias);
  }
  return at::linear(layer.input, layer.input_weight, *layer.input_bias + *layer.bias);
}

LstmResult RunLstm(const LstmLayer& layer) {
  const Tensor steps = LstmSteps(layer);
  CheckSizes(steps, layer.hidden, layer.weight, 4);
  const Times times(steps, layer.lengths, layer.reverse);
  const at::ScalarType type = ComputedType(steps);
  const int64_t units = layer.units();
  const Multiplier recurrent(layer.weight.t(), type);
  const Multiplier projected(layer.projection.value_or(layer.weight).t(), type);

  const Tensor gates = EmptySequence(steps, 4 * units);
  const Tensor cells = EmptySequence(steps, units);
  const Tensor states = EmptySequence(steps, layer.weight.size(1));
  const std::vector<Tensor> given = steps.to(type).unbind();
  std::vector<Tensor> all = gates.unbind();
  std::vector<Tensor> in_and_forget = Parts(gates, units, 0, 2);
  const std::vector<Tensor> in = Parts(gates, units, 0);
  const std::vector<Tensor> forget = Parts(gates, units, 1);
  std::vector<Tensor> candidate = Parts(gates, units, 2);
  std::vector<Tensor> out = Parts(gates, units, 3);
  std::vector<Tensor> cell_after = cells.unbind();
  std::vector<Tensor> after = states.unbind();

  Tensor unprojected = at::empty_like(cell_after.front());
  Tensor h = layer.hidden.to(type);
  Tensor c = layer.cell.to(type);
  for (int64_t n = 0; n < times.count(); ++n) {
    const size_t t = times.Forward(n);
    recurrent.MultiplyAdd(given[t], h, all[t]);
    in_and_forget[t].sigmoid_();
    candidate[t].tanh_();
    out[t].sigmoid_();
    at::mul_out(cell_after[t], forget[t], c);
    cell_after[t].addcmul_(in[t], candidate[t]);
    at::tanh_out(unprojected, cell_after[t]);
    if (layer.projection) {
      unprojected.mul_(out[t]);
      projected.Multiply(unprojected, after[t]);
    } else {
      at::mul_out(after[t], unprojected, out[t]);
    }
    times.Keep(t, c, cell_after[t]);
    times.Keep(t, h, after[t]);
    c = cell_after[t];
    h = after[t];
  }
  const at::ScalarType state_type = StateType(steps, layer.hidden);
  return {states.to(state_type), h.clone().to(state_type),
          c.clone().to(StateType(steps, layer.cell)), gates, cells};
}

// Derivatives in the steps of all times.
struct LstmDerivatives {
  Tensor by_gates;  // [T, B, 4, H]: of the cell state, and for the output gate of the hidden state,
                    // by the gates before their activations
  Tensor hidden_by_cell;         // [T, B, H]
  Tensor cell_by_previous_cell;  // [T, B, H]
};

// squashed: tanh of `cells`. Padded times pass gradients on unchanged.
LstmDerivatives DerivativesOf(const LstmLayer& layer, const Times& times, const Tensor& gates,
                              const Tensor& cells, const Tensor& squashed) {
  const int64_t units = layer.units();
  const Tensor in = Part(gates, units, 0);
  Tensor forget = Part(gates, units, 1);
  const Tensor candidate = Part(gates, units, 2);
  const Tensor out = Part(gates, units, 3);
  const Tensor by_gates = at::empty({gates.size(0), gates.size(1), 4, units}, gates.options());
  Tensor result = by_gates.select(2, 0);
  at::sigmoid_backward_out(result, candidate, in);
  result = by_gates.select(2, 1);
  at::sigmoid_backward_out(result, times.Before(cells, layer.cell), forget);
  result = by_gates.select(2, 2);
  at::tanh_backward_out(result, in, candidate);
  result = by_gates.select(2, 3);
  at::sigmoid_backward_out(result, squashed, out);
  Tensor hidden_by_cell = at::tanh_backward(out, squashed);
  if (times.masked()) {
    by_gates.mul_(times.valid().unsqueeze(3));
    hidden_by_cell.mul_(times.valid());
    forget = forget.masked_fill(times.valid().logical_not(), 1);
  }
  return {by_gates, hidden_by_cell, forget};
}

// states: before the projection. of_states: gradient of those after it.
Tensor ProjectionGradient(const Times& times, const Tensor& of_states, const Tensor& states,
                          at::ScalarType type) {
  const Tensor valid = times.masked() ? states * times.valid() : states;
  return at::mm(of_states.flatten(0, 1).t().to(type), valid.flatten(0, 1).to(type));
}

LstmGradients RunLstmBackward(const LstmLayer& layer, const OptionalTensor& grad_output,
                              const OptionalTensor& grad_last_hidden,
                              const OptionalTensor& grad_last_cell, const Tensor& output,
                              const Tensor& gates, const Tensor& cells) {
  const Times times(gates, layer.lengths, layer.reverse);
  const at::ScalarType type = gates.scalar_type();
  const at::ScalarType weight_type = layer.weight.scalar_type();
  const int64_t units = layer.units();
  const Multiplier recurrent(layer.weight, type);
  const Multiplier projected(layer.projection.value_or(layer.weight), type);

  const Tensor squashed = cells.tanh();
  // The loop turns by_gates into the gradients of the gates, in place.
  const LstmDerivatives derivatives = DerivativesOf(layer, times, gates, cells, squashed);
  const Tensor& factors = derivatives.by_gates;
  const std::vector<Tensor> given = ByStep(grad_output);
  const std::vector<Tensor> all = factors.view_as(gates).unbind();
  std::vector<Tensor> by_cell = factors.narrow(2, 0, 3).unbind();
  std::vector<Tensor> by_hidden = factors.select(2, 3).unbind();
  const std::vector<Tensor> hidden_by_cell = derivatives.hidden_by_cell.unbind();
  const std::vector<Tensor> cell_by_previous = derivatives.cell_by_previous_cell.unbind();
  const Tensor of_states =
      at::empty(layer.projection ? output.sizes() : at::IntArrayRef{0}, gates.options());
  std::vector<Tensor> of_state = of_states.unbind();

  Tensor unprojected = at::empty_like(layer.cell, gates.options());
  Tensor h = InitialGradient(grad_last_hidden, layer.hidden, type);
  Tensor c = InitialGradient(grad_last_cell, layer.cell, type);
  for (int64_t n = 0; n < times.count(); ++n) {
    const size_t t = times.Backward(n);
    AddStep(given, t, h);
    if (layer.projection) {
      of_state[t].copy_(h);
      projected.Multiply(h, unprojected);
    }
    const Tensor& own = layer.projection ? unprojected : h;
    c.addcmul_(own, hidden_by_cell[t]);
    by_cell[t].mul_(c.unsqueeze(1));
    by_hidden[t].mul_(own);
    c.mul_(cell_by_previous[t]);
    const Tensor kept = times.masked() ? h * times.ValidAt(t).logical_not() : Tensor();
    recurrent.Multiply(all[t], h);
    if (kept.defined()) {
      h.add_(kept);
    }
  }

  const Tensor of_steps = factors.view({-1, 4 * units}).to(weight_type);
  const Tensor of_projection =
      layer.projection
          ? ProjectionGradient(times, of_states, squashed * Part(gates, units, 3), weight_type)
          : at::empty({0}, layer.weight.options());
  const Tensor before = times.Before(output, layer.hidden).flatten(0, 1).to(weight_type);
  return {at::mm(of_steps, layer.input_weight).view_as(layer.input),
          h.to(layer.hidden.scalar_type()),
          c.to(layer.cell.scalar_type()),
          at::mm(of_steps.t(), layer.input.flatten(0, 1)),
          at::mm(of_steps.t(), before),
          of_steps.sum(0),
          of_projection};
}

LstmResult Lstm(const Tensor& input, const Tensor& hidden, const Tensor& cell,
                const Tensor& input_weight, const Tensor& weight, const OptionalTensor& input_bias,
                const OptionalTensor& bias, const OptionalTensor& projection,
                const OptionalTensor& lengths, bool reverse) {
  const LstmLayer layer{input,      hidden, cell,       input_weight, weight,
                        input_bias, bias,   projection, lengths,      reverse};
  return FitsOneDnnLstm(layer) ? OneDnnLstm(layer) : RunLstm(layer);
}

LstmGradients LstmBackward(const OptionalTensor& grad_output,
                           const OptionalTensor& grad_last_hidden,
                           const OptionalTensor& grad_last_cell, const Tensor& input,
                           const Tensor& hidden, const Tensor& cell, const Tensor& input_weight,
                           const Tensor& weight, const OptionalTensor& input_bias,
                           const OptionalTensor& bias, const OptionalTensor& projection,
                           const OptionalTensor& lengths, bool reverse, const Tensor& output,
                           const Tensor& last_hidden, const Tensor& last_cell, const Tensor& gates,
                           const Tensor& cells) {
  const LstmLayer layer{input,      hidden, cell,       input_weight, weight,
                        input_bias, bias,   projection, lengths,      reverse};
  return gates.scalar_type() == at::kByte
             ? OneDnnLstmBackward(layer, grad_output, grad_last_hidden, grad_last_cell, output,
                                  last_hidden, last_cell, gates)
             : RunLstmBackward(layer, grad_output, grad_last_hidden, grad_last_cell, output, gates,
                               cells);
}

// Parts of a GRU's `gates`: reset, update, product of the new gate, new.
std::tuple<Tensor, Tensor, Tensor> Gru(const Tensor& steps, const Tensor& hidden,
                                       const Tensor& weight, const OptionalTensor& bias,
                                       const OptionalTensor& lengths, bool reverse) {
  CheckSizes(steps, hidden, weight, 3);
  const Times times(steps, lengths, reverse);
  const at::ScalarType type = ComputedType(steps);
  const int64_t units = weight.size(0) / 3;
  const Multiplier recurrent(weight.t(), type);

  const Tensor gates = EmptySequence(steps, 4 * units);
  const Tensor states = EmptySequence(steps, units);
  const Tensor computed = steps.to(type);
  const std::vector<Tensor> given = Parts(computed, units, 0, 2);
  const std::vector<Tensor> given_new = Parts(computed, units, 2);
  std::vector<Tensor> reset_and_update = Parts(gates, units, 0, 2);
  const std::vector<Tensor> reset = Parts(gates, units, 0);
  const std::vector<Tensor> update = Parts(gates, units, 1);
  std::vector<Tensor> product_of_new = Parts(gates, units, 2);
  std::vector<Tensor> candidate = Parts(gates, units, 3);
  std::vector<Tensor> after = states.unbind();

  Tensor products = at::empty({steps.size(1), 3 * units}, gates.options());
  const Tensor products_of_both = products.narrow(1, 0, 2 * units);
  const Tensor products_of_new = products.narrow(1, 2 * units, units);
  const Tensor added = bias ? bias->to(type) : Tensor();
  Tensor h = hidden.to(type);
  for (int64_t n = 0; n < times.count(); ++n) {
    const size_t t = times.Forward(n);
    if (bias) {
      recurrent.MultiplyAdd(added, h, products);
    } else {
      recurrent.Multiply(h, products);
    }
    at::add_out(reset_and_update[t], given[t], products_of_both);
    reset_and_update[t].sigmoid_();
    product_of_new[t].copy_(products_of_new);
    at::addcmul_out(candidate[t], given_new[t], reset[t], products_of_new);
    candidate[t].tanh_();
    at::lerp_out(after[t], candidate[t], h, update[t]);
    times.Keep(t, h, after[t]);
    h = after[t];
  }
  const at::ScalarType state_type = StateType(steps, hidden);
  return {states.to(state_type), h.clone().to(state_type), gates};
}

std::tuple<Tensor, Tensor, Tensor> GruBackward(const OptionalTensor& grad_output,
                                               const OptionalTensor& grad_last_hidden,
                                               const Tensor& output, const Tensor& gates,
                                               const Tensor& hidden, const Tensor& weight,
                                               const OptionalTensor& lengths, bool reverse) {
  const Times times(gates, lengths, reverse);
  const at::ScalarType type = gates.scalar_type();
  const int64_t units = hidden.size(1);

  // Derivatives, by the hidden state, of the reset and the update gate before their activations, of
  // the product of the new gate, and of the new gate. They become gradients in place.
  const Tensor factors = at::empty({gates.size(0), gates.size(1), 4, units}, gates.options());
  const Tensor reset = Part(gates, units, 0);
  Tensor update = Part(gates, units, 1);
  const Tensor candidate = Part(gates, units, 3);
  Tensor of_reset = factors.select(2, 0);
  Tensor of_update = factors.select(2, 1);
  Tensor of_product = factors.select(2, 2);
  Tensor of_new = factors.select(2, 3);
  at::tanh_backward_out(of_new, update.neg().add_(1), candidate);
  at::mul_out(of_product, of_new, reset);
  at::sigmoid_backward_out(of_reset, of_new * Part(gates, units, 2), reset);
  at::sigmoid_backward_out(of_update, times.Before(output.to(type), hidden).sub_(candidate),
                           update);
  if (times.masked()) {
    factors.mul_(times.valid().unsqueeze(3));
    update = update.masked_fill(times.valid().logical_not(), 1);
  }

  const std::vector<Tensor> given = ByStep(grad_output);
  std::vector<Tensor> all = factors.unbind();
  const std::vector<Tensor> of_products = factors.view_as(gates).narrow(2, 0, 3 * units).unbind();
  const std::vector<Tensor> kept = update.unbind();
  const Multiplier recurrent(weight, type);
  Tensor h = InitialGradient(grad_last_hidden, hidden, type);
  for (int64_t n = 0; n < times.count(); ++n) {
    const size_t t = times.Backward(n);
    AddStep(given, t, h);
    all[t].mul_(h.unsqueeze(1));
    h.mul_(kept[t]);
    recurrent.MultiplyAdd(h, of_products[t], h);
  }
  const Tensor gradients = factors.view_as(gates);
  const Tensor grad_steps =
      at::cat({gradients.narrow(2, 0, 2 * units), gradients.narrow(2, 3 * units, units)}, 2);
  return {grad_steps.to(weight.scalar_type()),
          gradients.narrow(2, 0, 3 * units).contiguous().to(weight.scalar_type()),
          h.to(hidden.scalar_type())};
}

std::tuple<Tensor, Tensor> Rnn(const Tensor& steps, const Tensor& hidden, const Tensor& weight,
                               const OptionalTensor& lengths, bool relu, bool reverse) {
  CheckSizes(steps, hidden, weight, 1);
  const Times times(steps, lengths, reverse);
  const at::ScalarType type = ComputedType(steps);
  const Multiplier recurrent(weight.t(), type);

  const Tensor states = EmptySequence(steps, weight.size(0));
  const std::vector<Tensor> given = steps.to(type).unbind();
  std::vector<Tensor> after = states.unbind();
  Tensor h = hidden.to(type);
  for (int64_t n = 0; n < times.count(); ++n) {
    const size_t t = times.Forward(n);
    recurrent.MultiplyAdd(given[t], h, after[t]);
    if (relu) {
      after[t].relu_();
    } else {
      after[t].tanh_();
    }
    times.Keep(t, h, after[t]);
    h = after[t];
  }
  const at::ScalarType state_type = StateType(steps, hidden);
  return {states.to(state_type), h.clone().to(state_type)};
}

std::tuple<Tensor, Tensor> RnnBackward(const OptionalTensor& grad_output,
                                       const OptionalTensor& grad_last_hidden, const Tensor& output,
                                       const Tensor& hidden, const Tensor& weight,
                                       const OptionalTensor& lengths, bool relu, bool reverse) {
  const Times times(output, lengths, reverse);
  const at::ScalarType type = at::toOpMathType(weight.scalar_type());
  const Multiplier recurrent(weight, type);

  const std::vector<Tensor> states = output.to(type).unbind();
  const Tensor gradients = at::empty(output.sizes(), output.options().dtype(type));
  std::vector<Tensor> of_steps = gradients.unbind();
  const std::vector<Tensor> given = ByStep(grad_output);
  Tensor h = InitialGradient(grad_last_hidden, hidden, type);
  for (int64_t n = 0; n < times.count(); ++n) {
    const size_t t = times.Backward(n);
    AddStep(given, t, h);
    if (relu) {
      at::threshold_backward_out(of_steps[t], h, states[t], 0);
    } else {
      at::tanh_backward_out(of_steps[t], h, states[t]);
    }
    if (times.masked()) {
      of_steps[t].mul_(times.ValidAt(t));
      h.mul_(times.ValidAt(t).logical_not());
      recurrent.MultiplyAdd(h, of_steps[t], h);
    } else {
      recurrent.Multiply(of_steps[t], h);
    }
  }
  return {gradients.to(weight.scalar_type()), h.to(hidden.scalar_type())};
}

torch::Library MakeLibrary() {
  torch::Library library(torch::Library::DEF, "braid", std::nullopt, __FILE__, __LINE__);
  const auto define = [&library](const char* schema, auto kernel) {
    library.def(schema, torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, kernel));
  };
  define(kLstm, &Lstm);
  define(kLstmBackward, &LstmBackward);
  define(kGru, &Gru);
  define(kGruBackward, &GruBackward);
  define(kRnn, &Rnn);
  define(kRnnBackward, &RnnBackward);
  return library;
}

}  // namespace

void RegisterRecurrentOperators() { static const torch::Library kLibrary = MakeLibrary(); }

}  // namespace braid
