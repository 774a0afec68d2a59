#include "server/training/loss/loss_proof.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ATen/TensorOperators.h"
#include "ATen/ops/arange.h"
#include "ATen/ops/cat.h"
#include "ATen/ops/rand.h"
#include "ATen/ops/randint.h"
#include "ATen/ops/randn_like.h"
#include "ATen/ops/zeros_like.h"
#include "absl/strings/str_cat.h"
#include "c10/core/GradMode.h"
#include "server/base/status.h"
#include "server/devices/random.h"
#include "server/devices/run_on.h"
#include "torch/csrc/autograd/autograd.h"

namespace braid {
namespace {

constexpr uint64_t kSeed = 20;
// Total elements of the outputs of the random batches: more would take seconds.
constexpr int64_t kBudget = int64_t{1} << 27;
constexpr int64_t kDraws = 16;
// Rows of the first batch, of a random batch, and of the pool for random batches.
constexpr int64_t kFirstRows = 64;
constexpr int64_t kMaxRows = 7;
constexpr int64_t kPool = 8;

struct Rows {
  at::Tensor output;
  at::Tensor target;
};

struct Value {
  double loss = 0;
  at::Tensor gradient;  // undefined: not requested
};

Rows Slice(const Rows& rows, int64_t start, int64_t count) {
  return {rows.output.narrow(0, start, count), rows.target.narrow(0, start, count)};
}

double Largest(const at::Tensor& values) { return values.abs().max().item<double>(); }

class Comparison {
 public:
  Comparison(LossFunction loss, at::ScalarType type, Reduction reduction, bool gradients)
      : loss_(loss),
        mean_(reduction == Reduction::kMean),
        gradients_(gradients),
        // A module may compute in float32 although the arguments are float64.
        tolerance_(type == at::kDouble || type == at::kFloat ? 1e-4 : 0.05),
        rounding_(type == at::kDouble || type == at::kFloat ? 1e-6 : 0.01) {}

  // Describes how the loss of `rows` differs from the losses of the first `split` rows and the
  // rest; nullopt: no difference, or unknown. Returns the loss's error on `rows`.
  absl::StatusOr<std::optional<std::string>> Run(const Rows& rows, int64_t split) const {
    BRAID_ASSIGN_OR_RETURN(const Value whole, Evaluate(rows, kSeed));
    const int64_t count = rows.output.size(0);
    const absl::StatusOr<Value> redrawn = Evaluate(rows, kSeed + 1);
    const absl::StatusOr<Value> first = Evaluate(Slice(rows, 0, split), kSeed);
    const absl::StatusOr<Value> second = Evaluate(Slice(rows, split, count - split), kSeed);
    if (!std::isfinite(whole.loss) || !redrawn.ok() || redrawn->loss != whole.loss || !first.ok() ||
        !second.ok()) {
      return std::nullopt;
    }
    const double share = static_cast<double>(split) / static_cast<double>(count);
    const double factors[] = {mean_ ? share : 1, mean_ ? 1 - share : 1};
    const double parts[] = {factors[0] * first->loss, factors[1] * second->loss};
    const double sum = parts[0] + parts[1];
    const double scale = std::max(std::abs(whole.loss), std::abs(parts[0]) + std::abs(parts[1]));
    const std::string where =
        absl::StrCat(split, " and ", count - split, " of ", count, " rows make ");
    const double allowed = tolerance_ * scale + rounding_ * TermsOf(whole, rows);
    if (!std::isfinite(sum) || std::abs(whole.loss - sum) > allowed) {
      return absl::StrCat(where, "a loss of ", sum, ", the whole makes ", whole.loss);
    }
    if (gradients_) {
      const at::Tensor joined =
          at::cat({first->gradient * factors[0], second->gradient * factors[1]});
      const double difference = Largest(whole.gradient - joined);
      const double most = Largest(whole.gradient);
      if (std::isfinite(most) && !(difference <= 10 * tolerance_ * most)) {
        return absl::StrCat(where, "gradients that are off by ", difference,
                            ", the whole's largest is ", most);
      }
    }
    return std::nullopt;
  }

 private:
  absl::StatusOr<Value> Evaluate(const Rows& rows, uint64_t seed) const {
    const RandomSeedGuard random(c10::kCPU, seed);
    const c10::AutoGradMode grad(gradients_);
    Value value;
    BRAID_RETURN_IF_ERROR(CatchTorch([&]() -> absl::Status {
      const at::Tensor leaf = rows.output.detach().requires_grad_(gradients_);
      // Copies, because the loss may modify its arguments.
      BRAID_ASSIGN_OR_RETURN(const at::Tensor loss, loss_(leaf.clone(), rows.target.clone()));
      value.loss = loss.item<double>();
      if (gradients_) {
        value.gradient = torch::autograd::grad({loss}, {leaf}, /*grad_outputs=*/{},
                                               /*retain_graph=*/false, /*create_graph=*/false,
                                               /*allow_unused=*/true)[0];
        value.gradient = value.gradient.defined() ? value.gradient : at::zeros_like(leaf);
      }
      return absl::OkStatus();
    }));
    return value;
  }

  // Returns the magnitude of the terms of a loss, which may cancel each other, as in (output *
  // target).mean().
  static double TermsOf(const Value& whole, const Rows& rows) {
    const double terms =
        whole.gradient.defined() ? (whole.gradient * rows.output).abs().sum().item<double>() : 0;
    return std::isfinite(terms) ? terms : 0;
  }

  const LossFunction loss_;
  const bool mean_;
  const bool gradients_;
  const double tolerance_;  // relative to the losses
  const double rounding_;   // relative to their terms
};

// Returns at most `most` of the rows, evenly spread.
at::Tensor Spread(const at::Tensor& rows, int64_t most) {
  const int64_t count = std::min(most, rows.size(0));
  const at::Tensor index = (at::arange(count, at::kLong) * rows.size(0)).floor_divide(count);
  return rows.index_select(0, index.to(rows.device()));
}

// Makes random batches with the thread's random number generator.
class Draws {
 public:
  Draws(const at::Tensor& outputs, const at::Tensor& targets)
      : outputs_(Spread(outputs, kPool).cpu()) {
    const at::Tensor flat =
        (targets.scalar_type() == at::kBool ? targets.to(at::kByte) : targets).flatten();
    const int64_t row = targets.numel() / targets.size(0);
    std::vector<at::Tensor> pool = {Spread(targets, kPool / 2)};
    // A marker value such as ignore_index may occur in few rows.
    for (const at::Tensor& place : {flat.argmin(), flat.argmax()}) {
      pool.push_back(targets.narrow(0, place.item<int64_t>() / row, 1));
    }
    targets_ = at::cat(pool);
    least_ = targets_.to(at::kDouble).min().item<double>();
    most_ = targets_.to(at::kDouble).max().item<double>();
  }

  Rows Next(int64_t draw, int64_t count) const {
    at::Tensor output = Pick(outputs_, count);
    if (draw % 2 == 1) {
      output = output + at::randn_like(output);
    }
    return {output, Target(draw / 2 % 4, count)};
  }

 private:
  static at::Tensor Pick(const at::Tensor& pool, int64_t count) {
    return pool.index_select(0, at::randint(pool.size(0), {count}, at::kLong));
  }

  at::Tensor Target(int64_t kind, int64_t count) const {
    std::vector<int64_t> shape = targets_.sizes().vec();
    shape[0] = count;
    const bool floating = targets_.is_floating_point();
    if (kind == 1) {  // each element of a row from another row
      const at::Tensor flat = targets_.reshape({targets_.size(0), -1});
      const at::Tensor from = at::randint(flat.size(0), {count, flat.size(1)}, at::kLong);
      return flat.gather(0, from).reshape(shape);
    }
    if (kind == 2 && std::isfinite(most_ - least_)) {
      const double width = most_ - least_ + (floating ? 0 : 1);
      const at::Tensor values = at::rand(shape, at::kDouble) * width + least_;
      return (floating ? values : values.floor().clamp(least_, most_)).to(targets_.scalar_type());
    }
    if (kind == 3 && floating) {  // such as a mask
      return at::randint(2, shape, at::kLong).to(targets_.scalar_type());
    }
    return Pick(targets_, count);
  }

  at::Tensor outputs_;
  at::Tensor targets_;
  double least_ = 0;
  double most_ = 0;
};

absl::Status NotAdditive(const std::string& evidence, Reduction reduction) {
  const bool mean = reduction == Reduction::kMean;
  return absl::FailedPreconditionError(absl::StrCat(
      evidence, " (expected a ", mean ? "mean" : "sum",
      " over rows, because the loss is computed on parts of the batch; otherwise use loss_mode "
      "central without micro_batch",
      mean ? ", or reduction sum for a sum over rows)" : ")"));
}

}  // namespace

absl::Status ProveParts(LossFunction loss, const at::Tensor& outputs, const at::Tensor& targets,
                        Reduction reduction, bool gradients) {
  if (outputs.numel() == 0 || targets.numel() == 0) {
    return absl::OkStatus();
  }
  const RandomSeedGuard random(c10::kCPU, kSeed);
  const Comparison comparison(loss, outputs.scalar_type(), reduction, gradients);
  const int64_t row = outputs.numel() / outputs.size(0);
  const int64_t first = std::min(
      {outputs.size(0), targets.size(0), std::clamp(kBudget / (8 * row), int64_t{2}, kFirstRows)});
  if (first > 1) {
    const Rows rows = {outputs.narrow(0, 0, first).cpu(), targets.narrow(0, 0, first)};
    BRAID_ASSIGN_OR_RETURN(const std::optional<std::string> evidence,
                           comparison.Run(rows, (first + 1) / 2));
    if (evidence) {
      return NotAdditive(*evidence, reduction);
    }
  }
  const Draws draws(outputs, targets);
  const int64_t most = std::clamp(kBudget / (64 * row), int64_t{2}, kMaxRows);
  const int64_t count = std::clamp(kBudget / (8 * row * most), int64_t{4}, kDraws);
  for (int64_t draw = 0; draw < count; ++draw) {
    const int64_t rows = 2 + draw % (most - 1);
    const auto evidence = comparison.Run(draws.Next(draw, rows), 1 + draw % (rows - 1));
    if (evidence.ok() && *evidence) {
      return NotAdditive(**evidence, reduction);
    }
  }
  return absl::OkStatus();
}

}  // namespace braid
