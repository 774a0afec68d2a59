#include "server/batching/row_independence.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ops/empty.h"
#include "ATen/ops/full.h"
#include "ATen/ops/isfinite.h"
#include "ATen/ops/ones.h"
#include "ATen/ops/where.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "c10/core/GradMode.h"
#include "server/base/status.h"
#include "server/batching/run_batch.h"
#include "server/devices/random.h"
#include "server/devices/run_on.h"
#include "server/models/input_check.h"
#include "server/parallel/host_copy.h"

namespace braid {
namespace {

using Tensors = std::vector<at::Tensor>;

constexpr int64_t kRows = 4;
constexpr int kMaxForwards = 8;
constexpr uint64_t kSeed = 1;
// Differences, as a part of the largest output. What a vectorized function rounds to depends on the
// other numbers in its register: some take a slower way if one of them is very large or NaN.
constexpr double kSameShapes = 1e-4;
constexpr double kSameShapesHalf = 2e-2;  // of FP16 and BF16
// Kernels for other batch sizes add in another order.
constexpr double kOtherShapes = 1e-2;
constexpr double kOtherShapesHalf = 5e-2;
// A dependence up to this is approximate: on other rows like it, and on rows of larger numbers.
constexpr double kApproximate = 5e-2;
constexpr double kApproximateLarger = 15e-2;

// What rows are filled with.
enum class Fill { kUniform, kNormal, kNan };

struct Difference {
  size_t output = 0;
  int64_t row = 0;
  double absolute = 0;
  double relative = 0;
};

// Sizes of dims that may be any. Convolutions and pooling need more than a few.
struct Attempt {
  int64_t open_size = 0;
  bool zero_integers = false;
};

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The largest difference of two elements. NaN is like NaN, and infinitely far from numbers, as are
// tensors of different shapes.
double Distance(const at::Tensor& one, const at::Tensor& other) {
  if (one.sizes() != other.sizes()) {
    return kInfinity;
  }
  const at::Tensor a = one.to(c10::kDouble).contiguous();
  const at::Tensor b = other.to(c10::kDouble).contiguous();
  const double* const as = a.const_data_ptr<double>();
  const double* const bs = b.const_data_ptr<double>();
  double largest = 0;
  for (int64_t e = 0; e < a.numel(); ++e) {
    if (as[e] != bs[e] && !(std::isnan(as[e]) && std::isnan(bs[e]))) {
      const double distance = std::abs(as[e] - bs[e]);
      largest = std::max(largest, std::isnan(distance) ? kInfinity : distance);
    }
  }
  return largest;
}

// The dims of `spec` as a request has them. Dims of any size are as in a warm-up request, or
// `open`.
std::vector<int64_t> DimsOf(const TensorSpec& spec, const ModelConfig& config, int64_t open) {
  std::vector<int64_t> dims = spec.dims;
  for (const Warmup& warmup : config.warmups) {
    const auto input = warmup.inputs.find(spec.name);
    if (input != warmup.inputs.end() && input->second.dims.size() == dims.size()) {
      return input->second.dims;
    }
  }
  std::replace_if(
      dims.begin(), dims.end(), [](int64_t dim) { return dim < 0; }, open);
  return dims;
}

bool IsHalf(DataType type) { return type == DataType::kFp16 || type == DataType::kBf16; }

at::Tensor RandomIntegers(const TensorSpec& spec, const std::vector<int64_t>& shape) {
  at::Tensor numbers = at::empty(shape, c10::kLong);
  if (!spec.range) {
    return numbers.random_(0, 2);  // No embedding is too small for these.
  }
  const bool full = spec.range->max == std::numeric_limits<int64_t>::max();
  return numbers.random_(spec.range->min, full ? spec.range->max : spec.range->max + 1);
}

class Tester {
 public:
  Tester(const ModelConfig& config, Worker& worker, Replica& replica)
      : config_(config),
        worker_(worker),
        replica_(replica),
        rows_(std::min(kRows, std::max<int64_t>(config.max_batch_size, 2))) {
    config_.row_independence = RowIndependence::kUnproven;  // The batches are the test's own.
  }

  absl::StatusOr<RowTest> Run() {
    BRAID_RETURN_IF_ERROR(RunOnce());
    if (base_outputs_.empty()) {
      return RowTest{RowIndependence::kUnproven, false,
                     absl::StrCat("the model fails on random inputs: ", failure_)};
    }
    if (largest_ < 0) {
      return RowTest{RowIndependence::kUnproven, false,
                     "all outputs are NaN or infinite for random inputs"};
    }
    BRAID_ASSIGN_OR_RETURN(std::optional<RowTest> test, TestOtherRows());
    if (!test) {
      BRAID_ASSIGN_OR_RETURN(test, TestOtherSizes());
    }
    return test.value_or(RowTest{RowIndependence::kProven});
  }

 private:
  // The outputs of one forward pass, on the host. INVALID_ARGUMENT if the model fails.
  absl::StatusOr<Tensors> Forward(const Tensors& inputs, uint64_t seed = kSeed) {
    ++forwards_;
    std::vector<HostTensor> given;
    for (size_t i = 0; i < inputs.size(); ++i) {
      // The model may work in place. A scalar that is not given has its default.
      if (inputs[i].defined()) {
        given.push_back(ToHost(inputs[i].clone(), config_.inputs[i].name));
      }
    }
    BRAID_ASSIGN_OR_RETURN(const std::vector<HostTensor> checked,
                           CheckInputs(config_, std::move(given), "inputs"));
    Tensors outputs;
    BRAID_RETURN_IF_ERROR(RunOnEach({&worker_}, Phase::kLoad, [&](size_t) -> absl::Status {
      const RandomSeedGuard guard(worker_.torch_device(), seed);
      BRAID_ASSIGN_OR_RETURN(const BatchResult result, RunBatch(config_, worker_, replica_,
                                                                {{&checked, 0, RowsOf(checked)}}));
      for (const HostTensor& output : result.outputs.front()) {
        outputs.push_back(View(output).clone());
      }
      return absl::OkStatus();
    }));
    return outputs;
  }

  // Finds inputs that the model takes, and its outputs for them. `failure_` if there are none.
  absl::Status RunOnce() {
    const bool open =
        std::any_of(config_.inputs.begin(), config_.inputs.end(), [](const TensorSpec& spec) {
          return std::find(spec.dims.begin(), spec.dims.end(), -1) != spec.dims.end();
        });
    const std::vector<Attempt> attempts =
        open ? std::vector<Attempt>{{4, false}, {32, false}, {32, true}}
             : std::vector<Attempt>{{0, false}, {0, true}};
    for (const Attempt& attempt : attempts) {
      attempt_ = attempt;
      base_ = Draw(Fill::kUniform);
      absl::StatusOr<Tensors> outputs = Forward(base_);
      if (outputs.ok()) {
        base_outputs_ = *std::move(outputs);
        MeasureLargest();
        return absl::OkStatus();
      }
      const absl::StatusCode code = outputs.status().code();
      const bool contradicts = code == absl::StatusCode::kFailedPrecondition && !open;
      if (contradicts || code == absl::StatusCode::kUnavailable) {
        return outputs.status();
      }
      failure_ = std::string(outputs.status().message());
    }
    return absl::OkStatus();
  }

  // Of one size, which is that of all batches that are compared bit by bit.
  Tensors Draw(Fill fill) const {
    Tensors drawn;
    for (const TensorSpec& spec : config_.inputs) {
      std::vector<int64_t> shape = DimsOf(spec, config_, attempt_.open_size);
      if (spec.scalar) {
        drawn.push_back(spec.default_value ? at::Tensor() : at::ones({}, ToScalarType(spec.type)));
        continue;
      }
      if (config_.has_batch_dim(spec)) {
        shape.insert(shape.begin(), rows_);
      }
      drawn.push_back(DrawOne(spec, shape, fill).to(ToScalarType(spec.type)));
    }
    return drawn;
  }

  at::Tensor DrawOne(const TensorSpec& spec, const std::vector<int64_t>& shape, Fill fill) const {
    if (!IsFloatingPoint(spec.type)) {
      return attempt_.zero_integers && !spec.range ? at::empty(shape, c10::kLong).zero_()
                                                   : RandomIntegers(spec, shape);
    }
    if (fill == Fill::kNan) {
      return at::full(shape, std::numeric_limits<double>::quiet_NaN(), c10::kDouble);
    }
    const at::Tensor numbers = at::empty(shape, c10::kDouble);
    return fill == Fill::kUniform ? numbers.uniform_() : numbers.normal_(0, 3);
  }

  // The base with every second row, from `first` on, drawn anew.
  Tensors WithOthers(int64_t first, Fill fill) const {
    const Tensors others = Draw(fill);
    Tensors mixed;
    for (size_t i = 0; i < base_.size(); ++i) {
      if (!config_.has_batch_dim(config_.inputs[i]) || config_.inputs[i].scalar) {
        mixed.push_back(base_[i]);
        continue;
      }
      at::Tensor input = base_[i].clone();
      const bool binary = !IsFloatingPoint(config_.inputs[i].type) && !config_.inputs[i].range;
      for (int64_t row = first; row < rows_; row += 2) {
        // Another draw of 0 and 1 may be the same one.
        input[row].copy_(binary && !attempt_.zero_integers ? base_[i][row].eq(0) : others[i][row]);
      }
      mixed.push_back(std::move(input));
    }
    return mixed;
  }

  Tensors Rows(int64_t start, int64_t count) const {
    Tensors rows;
    for (size_t i = 0; i < base_.size(); ++i) {
      const bool cut = !config_.inputs[i].scalar && config_.has_batch_dim(config_.inputs[i]);
      rows.push_back(cut ? base_[i].narrow(0, start, count) : base_[i]);
    }
    return rows;
  }

  // An output without dimensions is one number for a chunk, of which no row has a part.
  bool HasRows(size_t output) const {
    return !config_.outputs[output].dims.empty() || base_outputs_[output].size(0) == rows_;
  }

  void MeasureLargest() {
    for (size_t o = 0; o < base_outputs_.size(); ++o) {
      if (!HasRows(o)) {
        largest_ = std::max(largest_, 0.0);
        continue;
      }
      const at::Tensor values = base_outputs_[o].to(c10::kDouble);
      const at::Tensor finite = at::isfinite(values);
      if (values.numel() == 0 || finite.any().item<bool>()) {
        const at::Tensor sizes = at::where(finite, values.abs(), 0);
        largest_ = std::max(largest_, sizes.numel() == 0 ? 0.0 : sizes.max().item<double>());
      }
    }
  }

  // The largest difference beyond rounding between the base's outputs and `other`, which are of its
  // rows from `start` on: of every `step`-th of them, from `first` on.
  std::optional<Difference> Compare(const Tensors& other, int64_t start, int64_t first,
                                    int64_t step) const {
    std::optional<Difference> largest;
    for (size_t o = 0; o < base_outputs_.size(); ++o) {
      const bool same_shapes = other[o].size(0) == base_outputs_[o].size(0);
      const bool half = IsHalf(config_.outputs[o].type);
      const double tolerance = same_shapes ? half ? kSameShapesHalf : kSameShapes
                               : half      ? kOtherShapesHalf
                                           : kOtherShapes;
      for (int64_t row = first; HasRows(o) && row < other[o].size(0); row += step) {
        const double absolute = Distance(other[o][row], base_outputs_[o][start + row]);
        const double relative = absolute == 0 ? 0 : absolute / std::max(largest_, 1e-30);
        if (relative > tolerance && (!largest || relative > largest->relative)) {
          largest = Difference{o, start + row, absolute, relative};
        }
      }
    }
    return largest;
  }

  std::string Describe(const Difference& difference) const {
    const std::string& name = config_.outputs[difference.output].name;
    return absl::StrCat("row ", difference.row, " of output '", name, "' ",
                        std::isinf(difference.absolute)
                            ? "becomes or ceases to be NaN or infinite"
                            : absl::StrFormat("changes by %.3g (largest value: %.3g)",
                                              difference.absolute, largest_));
  }

  // Keeps a row and changes the others. None if no row notices.
  absl::StatusOr<std::optional<RowTest>> TestOtherRows() {
    struct Case {
      int64_t changed;  // the first of the rows that change
      Fill fill;
    };
    const bool floats =
        std::any_of(config_.inputs.begin(), config_.inputs.end(), [](const TensorSpec& spec) {
          return IsFloatingPoint(spec.type) && !spec.scalar && !spec.broadcast;
        });
    std::vector<Case> cases = {{1, Fill::kUniform}, {0, Fill::kNormal}};
    if (floats) {
      cases.push_back({1, Fill::kNan});
    }
    std::optional<Difference> found;  // the first
    bool approximate = true;
    bool among_nans = false;
    for (const Case& each : cases) {
      BRAID_ASSIGN_OR_RETURN(const std::optional<Tensors> outputs,
                             Try(WithOthers(each.changed, each.fill)));
      if (!outputs) {
        continue;
      }
      const auto difference = Compare(*outputs, 0, 1 - each.changed, 2);
      if (difference && !found) {
        found = difference;
        among_nans = each.fill == Fill::kNan;
      }
      if (difference && each.fill != Fill::kNan) {
        approximate &= difference->relative <=
                       (each.fill == Fill::kUniform ? kApproximate : kApproximateLarger);
      }
    }
    if (!found) {
      return std::nullopt;
    }
    BRAID_ASSIGN_OR_RETURN(const std::optional<Tensors> again, Try(base_));
    if (!again) {
      return RowTest{RowIndependence::kUnproven, false, "the model fails when it repeats a batch"};
    }
    if (const auto noise = Compare(*again, 0, 0, 1)) {
      return RowTest{
          RowIndependence::kUnproven, false,
          absl::StrCat("outputs differ between two runs on the same inputs: ", Describe(*noise))};
    }
    return RowTest{RowIndependence::kDependent, approximate && !among_nans,
                   absl::StrCat(Describe(*found), " when other rows of a batch of ", rows_,
                                among_nans ? " are NaN" : " change")};
  }

  // Runs rows of the base in smaller batches. None if they give the same within rounding.
  absl::StatusOr<std::optional<RowTest>> TestOtherSizes() {
    for (const auto& [start, count] : {std::pair<int64_t, int64_t>{rows_ - 1, 1}, {1, rows_ - 1}}) {
      BRAID_ASSIGN_OR_RETURN(const std::optional<Tensors> outputs, Try(Rows(start, count)));
      if (!outputs) {
        continue;  // Requests of so many rows fail alone, too.
      }
      const auto difference = Compare(*outputs, start, 0, 1);
      if (!difference) {
        continue;
      }
      BRAID_ASSIGN_OR_RETURN(const std::optional<Tensors> drawn, Try(base_, kSeed + 1));
      if (drawn && Compare(*drawn, 0, 0, 1)) {
        return std::nullopt;  // The model draws random numbers, others for other shapes.
      }
      return RowTest{
          RowIndependence::kDependent, difference->relative <= kApproximate,
          absl::StrCat(Describe(*difference), " in a batch of ", count, " instead of ", rows_)};
    }
    return std::nullopt;
  }

  // None if the model fails on `inputs`, or has run often enough.
  absl::StatusOr<std::optional<Tensors>> Try(const Tensors& inputs, uint64_t seed = kSeed) {
    if (forwards_ == kMaxForwards) {
      return std::optional<Tensors>();
    }
    absl::StatusOr<Tensors> outputs = Forward(inputs, seed);
    if (outputs.ok()) {
      return std::optional<Tensors>(*std::move(outputs));
    }
    if (outputs.status().code() == absl::StatusCode::kUnavailable) {
      return outputs.status();
    }
    return std::optional<Tensors>();
  }

  ModelConfig config_;
  Worker& worker_;
  Replica& replica_;
  const int64_t rows_;
  Attempt attempt_;
  std::string failure_;
  int forwards_ = 0;
  Tensors base_;
  Tensors base_outputs_;
  // Finite absolute value of the base's outputs. Below 0: there is none.
  double largest_ = -1;
};

}  // namespace

absl::StatusOr<RowTest> TestRowIndependence(const ModelConfig& config, Worker& worker,
                                            Replica& replica) {
  std::vector<at::Tensor> buffers;
  BRAID_RETURN_IF_ERROR(RunOnEach({&worker}, Phase::kLoad, [&](size_t) -> absl::Status {
    for (const at::Tensor& buffer : replica.buffers()) {
      buffers.push_back(buffer.clone());
    }
    return absl::OkStatus();
  }));
  absl::StatusOr<RowTest> test;
  BRAID_RETURN_IF_ERROR(RunBesideEach({&worker}, [&](size_t) -> absl::Status {
    const c10::AutoGradMode no_grad(false);
    const RandomSeedGuard seed(c10::kCPU, kSeed);
    test = Tester(config, worker, replica).Run();
    return absl::OkStatus();
  }));
  BRAID_RETURN_IF_ERROR(RunOnEach({&worker}, Phase::kLoad, [&](size_t) -> absl::Status {
    const c10::AutoGradMode no_grad(false);
    replica.SetBuffers(buffers);
    return absl::OkStatus();
  }));
  return test;
}

}  // namespace braid
