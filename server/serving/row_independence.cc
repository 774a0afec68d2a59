#include "server/serving/row_independence.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ops/empty.h"
#include "ATen/ops/isfinite.h"
#include "ATen/ops/maximum.h"
#include "ATen/ops/ones.h"
#include "ATen/ops/where.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "c10/core/GradMode.h"
#include "server/base/status.h"
#include "server/batching/run_inference.h"
#include "server/devices/random.h"
#include "server/devices/run_on.h"
#include "server/models/input_check.h"
#include "server/models/name_binding.h"
#include "server/parallel/host_copy.h"

namespace braid {
namespace {

using Tensors = std::vector<at::Tensor>;

constexpr int64_t kRows = 4;
constexpr int kMaxForwards = 8;
constexpr uint64_t kSeed = 1;
// Differences up to these are ignored, relative to the largest value of an output's column, and of
// the whole output, whose rounding errors may appear in a column. Vectorized functions may round
// the last bit differently if neighboring values are very large or NaN.
struct Tolerance {
  double column;
  double output;
};
constexpr Tolerance kSameShapes = {1e-4, 4e-7};
constexpr Tolerance kSameShapesHalf = {2e-2, 1e-3};  // FP16 and BF16
// Kernels for different batch sizes sum in a different order.
constexpr Tolerance kOtherShapes = {5e-3, 1e-5};
constexpr Tolerance kOtherShapesHalf = {5e-2, 1e-2};
// A dependence up to these counts as approximate: on other rows of small and of larger numbers.
constexpr double kApproximate = 5e-2;
constexpr double kApproximateLarger = 15e-2;
// Even rows of the first batch are scaled by this, so that a normalization over the batch is not
// hidden by similar rows.
constexpr double kSmallNumber = 0.1;
// Exceeds thresholds in models, such as a check for image values up to 255.
constexpr double kLargeNumber = 1e4;

// Values for the other rows.
enum class Fill { kSmall, kNormal, kLarge, kNan };

struct Difference {
  size_t output = 0;
  int64_t row = 0;
  double absolute = 0;
  double relative = 0;
  std::string shapes = {};  // where they differ
};

// Values for dims of any size. Convolutions and pooling need more than a few elements.
struct Attempt {
  int64_t open_size = 0;
  bool zero_integers = false;  // those without a range
};

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Returns the dims of `spec` for a request. Dims of any size come from a warm-up request, or are
// `open`, as far as the model takes this size.
std::vector<int64_t> DimsOf(const TensorSpec& spec, const ModelConfig& config, int64_t open) {
  std::vector<int64_t> dims = spec.dims;
  for (const Warmup& warmup : config.warmups) {
    const auto input = warmup.inputs.find(spec.name);
    if (input != warmup.inputs.end() && input->second.dims.size() == dims.size()) {
      return input->second.dims;
    }
  }
  for (const VariableDim& dim : spec.variable_dims) {
    if (dims[dim.dim] < 0) {
      dims[dim.dim] = std::clamp(open / dim.factor, dim.min, dim.max) * dim.factor;
    }
  }
  std::replace_if(
      dims.begin(), dims.end(), [](int64_t dim) { return dim < 0; }, open);
  return dims;
}

bool IsHalf(DataType type) { return type == DataType::kFp16 || type == DataType::kBf16; }

// Returns the largest finite magnitude of each column of [rows, …, columns].
at::Tensor ColumnScales(const at::Tensor& values) {
  const at::Tensor sizes = at::where(at::isfinite(values), values.abs(), 0);
  return sizes.dim() < 2 ? sizes.amax() : sizes.flatten(0, -2).amax(0);
}

RowTest Unproven(std::string reason) {
  return {RowIndependence::kUnproven, false, std::move(reason)};
}

class Tester {
 public:
  Tester(const ModelConfig& config, Worker& worker, Replica& replica)
      : config_(config),
        worker_(worker),
        replica_(replica),
        rows_(std::min(kRows, std::max<int64_t>(config.max_batch_size, 2))) {
    config_.row_independence = RowIndependence::kUnproven;  // RunOnce() must accept any batch.
  }

  absl::StatusOr<RowTest> Run() {
    BRAID_RETURN_IF_ERROR(RunBase());
    if (base_outputs_.empty()) {
      return Unproven(absl::StrCat("the model raised an error on random inputs: ", failure_));
    }
    if (!finite_) {
      return Unproven("all outputs are NaN or infinite for random inputs");
    }
    BRAID_ASSIGN_OR_RETURN(std::optional<RowTest> test, TestOtherRows());
    if (!test) {
      BRAID_ASSIGN_OR_RETURN(test, TestOtherSizes());
    }
    RowTest result = test.value_or(RowTest{RowIndependence::kProven});
    for (size_t o = 0; o < base_outputs_.size(); ++o) {
      result.one_number |= !HasRows(o);
    }
    result.narrow_integers = HasInput([this](const TensorSpec& spec) {
      return HasFreeIntegers(spec) && !spec.broadcast && IntegersOf(spec).max <= 1;
    });
    return result;
  }

 private:
  // Returns the outputs of one forward pass, on the host. INVALID_ARGUMENT if the model fails.
  absl::StatusOr<Tensors> Forward(const Tensors& inputs, uint64_t seed = kSeed) {
    ++forwards_;
    std::vector<HostTensor> given;
    for (size_t i = 0; i < inputs.size(); ++i) {
      // The model may modify inputs in place. An omitted scalar has its default.
      if (inputs[i].defined()) {
        given.push_back(ToHost(inputs[i].clone(), config_.inputs[i].name));
      }
    }
    BRAID_ASSIGN_OR_RETURN(const std::vector<HostTensor> checked,
                           CheckInputs(config_, std::move(given), "inputs"));
    Tensors outputs;
    BRAID_RETURN_IF_ERROR(RunOnEach({&worker_}, Phase::kLoad, [&](size_t) -> absl::Status {
      const RandomSeedGuard guard(worker_.torch_device(), seed);
      const int64_t rows = RowsOf(checked);
      BRAID_ASSIGN_OR_RETURN(const std::vector<HostTensor> result,
                             RunOnce(config_, worker_, replica_, checked, rows));
      for (const HostTensor& output : result) {
        outputs.push_back(View(output).clone());
      }
      return absl::OkStatus();
    }));
    return outputs;
  }

  // Runs the model. nullopt, and sets failure_, if it fails or has run often enough. UNAVAILABLE if
  // the device is lost.
  absl::StatusOr<std::optional<Tensors>> Try(const Tensors& inputs, uint64_t seed = kSeed) {
    if (forwards_ == kMaxForwards) {
      contradicts_ = false;
      failure_ = "the test ran too often";
      return std::optional<Tensors>();
    }
    absl::StatusOr<Tensors> outputs = Forward(inputs, seed);
    if (outputs.ok()) {
      return std::optional<Tensors>(*std::move(outputs));
    }
    if (outputs.status().code() == absl::StatusCode::kUnavailable) {
      return outputs.status();
    }
    contradicts_ = outputs.status().GetPayload(kOutputShapePayload).has_value();
    mismatches_ = outputs.status().GetPayload(kMismatchPayload).has_value();
    failure_ = std::string(outputs.status().message());
    return std::optional<Tensors>();
  }

  bool HasInput(absl::FunctionRef<bool(const TensorSpec&)> wanted) const {
    return std::any_of(config_.inputs.begin(), config_.inputs.end(),
                       [&](const TensorSpec& spec) { return !spec.scalar && wanted(spec); });
  }

  static bool HasFreeIntegers(const TensorSpec& spec) {
    return !IsFloatingPoint(spec.type) && spec.type != DataType::kBool && !spec.range;
  }

  // Finds inputs that the model accepts, and its outputs for them. FAILED_PRECONDITION if outputs
  // contradict the configuration: in their shapes for inputs of known sizes, or in their names or
  // datatypes.
  absl::Status RunBase() {
    const bool open = HasInput([](const TensorSpec& spec) {
      return std::find(spec.dims.begin(), spec.dims.end(), -1) != spec.dims.end();
    });
    std::vector<Attempt> attempts = {{/*open_size=*/4}};
    if (open) {
      attempts.push_back({/*open_size=*/32});
    } else if (HasInput(HasFreeIntegers)) {
      attempts.push_back({/*open_size=*/4, /*zero_integers=*/true});
    }
    for (const Attempt& attempt : attempts) {
      attempt_ = attempt;
      base_ = DrawBase();
      BRAID_ASSIGN_OR_RETURN(const std::optional<Tensors> outputs, Try(base_));
      if (outputs) {
        base_outputs_ = *outputs;
        Measure();
        return absl::OkStatus();
      }
    }
    return mismatches_ || (contradicts_ && !open) ? absl::FailedPreconditionError(failure_)
                                                  : absl::OkStatus();
  }

  // Returns the range of integers for an input, both ends included. An index out of range may crash
  // the process or a GPU context, so index types without a range get 0 and 1.
  ValueRange IntegersOf(const TensorSpec& spec) const {
    if (spec.range) {
      // random_() excludes its end, so the highest int64 is omitted.
      return {spec.range->min, std::min(spec.range->max, std::numeric_limits<int64_t>::max() - 1)};
    }
    if (attempt_.zero_integers) {
      return {0, 0};
    }
    if (!worker_.torch_device().is_cpu()) {
      return {0, 1};
    }
    switch (spec.type) {
      case DataType::kUint8:
        return {0, std::numeric_limits<uint8_t>::max()};
      case DataType::kInt8:
        return {0, std::numeric_limits<int8_t>::max()};
      case DataType::kInt16:
      case DataType::kUint16:
        return {0, std::numeric_limits<int16_t>::max()};
      default:
        return {0, 1};
    }
  }

  bool IsCut(size_t input) const {
    return !config_.inputs[input].scalar && config_.has_batch_dim(config_.inputs[input]);
  }

  std::vector<int64_t> ShapeOf(const TensorSpec& spec) const {
    std::vector<int64_t> shape = DimsOf(spec, config_, attempt_.open_size);
    if (config_.has_batch_dim(spec)) {
      shape.insert(shape.begin(), rows_);
    }
    return shape;
  }

  // Draws rows_ rows of every input. Even rows have small numbers.
  Tensors DrawBase() const {
    Tensors base;
    for (size_t i = 0; i < config_.inputs.size(); ++i) {
      const TensorSpec& spec = config_.inputs[i];
      if (spec.scalar) {
        base.push_back(spec.default_value ? at::Tensor() : at::ones({}, ToScalarType(spec.type)));
        continue;
      }
      at::Tensor input = Draw(spec, Fill::kNormal, /*first=*/true);
      if (IsCut(i)) {
        const at::Tensor small = Draw(spec, Fill::kSmall, /*first=*/true);
        for (int64_t row = 0; row < rows_; row += 2) {
          input[row].copy_(small[row]);
        }
      }
      base.push_back(input.to(ToScalarType(spec.type)));
    }
    return base;
  }

  // first: draw for the base, which has positive numbers, as logarithms and roots require.
  at::Tensor Draw(const TensorSpec& spec, Fill fill, bool first) const {
    return IsFloatingPoint(spec.type) ? DrawFloats(ShapeOf(spec), fill, first)
                                      : DrawIntegers(ShapeOf(spec), fill, IntegersOf(spec));
  }

  static at::Tensor DrawFloats(const std::vector<int64_t>& shape, Fill fill, bool first) {
    at::Tensor numbers = at::empty(shape, c10::kDouble);
    switch (fill) {
      case Fill::kSmall:
        return numbers.uniform_(0, kSmallNumber);
      case Fill::kNormal:
        return first ? numbers.uniform_() : numbers.normal_(0, 3);
      case Fill::kLarge:
        return numbers.uniform_(kLargeNumber / 2, kLargeNumber);
      case Fill::kNan:
        return numbers.fill_(std::numeric_limits<double>::quiet_NaN());
    }
    return numbers;
  }

  // Draws integers. The lowest integer stands in for NaN.
  static at::Tensor DrawIntegers(const std::vector<int64_t>& shape, Fill fill,
                                 const ValueRange& range) {
    at::Tensor numbers = at::empty(shape, c10::kLong);
    const auto width = static_cast<double>(range.max) - static_cast<double>(range.min);
    const auto low = range.min + static_cast<int64_t>(width * kSmallNumber);
    switch (fill) {
      case Fill::kSmall:
        // A narrow range has no small integers.
        return numbers.random_(range.min, (low > range.min ? low : range.max) + 1);
      case Fill::kNormal:
        return numbers.random_(range.min, range.max + 1);
      case Fill::kLarge:
        return numbers.fill_(range.max);
      case Fill::kNan:
        return numbers.fill_(range.min);
    }
    return numbers;
  }

  // Returns the base with every second row replaced, starting at `first`.
  Tensors WithOthers(int64_t first, Fill fill) const {
    Tensors mixed;
    for (size_t i = 0; i < base_.size(); ++i) {
      if (!IsCut(i)) {
        mixed.push_back(base_[i]);
        continue;
      }
      const at::Tensor others = Draw(config_.inputs[i], fill, /*first=*/false);
      at::Tensor input = base_[i].clone();
      for (int64_t row = first; row < rows_; row += 2) {
        input[row].copy_(others[row]);
      }
      mixed.push_back(std::move(input));
    }
    return mixed;
  }

  Tensors Rows(int64_t start, int64_t count) const {
    Tensors rows;
    for (size_t i = 0; i < base_.size(); ++i) {
      rows.push_back(IsCut(i) ? base_[i].narrow(0, start, count) : base_[i]);
    }
    return rows;
  }

  // False for an output without dimensions: it has one number per chunk, not per row.
  bool HasRows(size_t output) const {
    return !config_.outputs[output].dims.empty() || base_outputs_[output].size(0) == rows_;
  }

  void Measure() {
    for (size_t o = 0; o < base_outputs_.size(); ++o) {
      const at::Tensor values = base_outputs_[o].to(c10::kDouble);
      finite_ |= values.numel() == 0 || at::isfinite(values).any().item<bool>();
      scales_.push_back(values.numel() == 0 ? values : ColumnScales(values));
    }
  }

  // Returns the difference beyond rounding between two rows of output `o`. NaN equals NaN and
  // differs infinitely from numbers.
  std::optional<Difference> CompareRow(size_t o, const at::Tensor& is, const at::Tensor& was,
                                       bool same_shapes) const {
    if (is.sizes() != was.sizes()) {
      Difference difference{o, 0, kInfinity, kInfinity};
      difference.shapes = absl::StrCat(ShapeString(is.sizes().vec()), " instead of ",
                                       ShapeString(was.sizes().vec()));
      return difference;
    }
    if (is.numel() == 0) {
      return std::nullopt;
    }
    const at::Tensor a = is.to(c10::kDouble);
    const at::Tensor b = was.to(c10::kDouble);
    const at::Tensor like = a.eq(b).logical_or(a.isnan().logical_and(b.isnan()));
    if (like.all().item<bool>()) {
      return std::nullopt;
    }
    const DataType type = config_.outputs[o].type;
    const bool half = IsHalf(type);
    const Tolerance tolerance = same_shapes ? half ? kSameShapesHalf : kSameShapes
                                : half      ? kOtherShapesHalf
                                            : kOtherShapes;
    const at::Tensor apart = at::where(like, 0, a.sub(b).abs()).nan_to_num(kInfinity, kInfinity);
    const at::Tensor allowed =
        at::maximum(scales_[o].mul(tolerance.column), scales_[o].max().mul(tolerance.output));
    const at::Tensor beyond = IsFloatingPoint(type) ? apart.gt(allowed) : like.logical_not();
    if (!beyond.any().item<bool>()) {
      return std::nullopt;
    }
    const at::Tensor relative = apart.div(scales_[o].clamp_min(1e-30));
    return Difference{o, 0, at::where(beyond, apart, 0).max().item<double>(),
                      at::where(beyond, relative, 0).max().item<double>()};
  }

  // Returns the largest difference beyond rounding between `other` and the base's outputs from row
  // `start` on. Compares every `step`-th row, starting at `first`.
  std::optional<Difference> Compare(const Tensors& other, int64_t start, int64_t first,
                                    int64_t step) const {
    std::optional<Difference> largest;
    for (size_t o = 0; o < base_outputs_.size(); ++o) {
      const bool same_shapes = other[o].size(0) == base_outputs_[o].size(0);
      for (int64_t row = first; HasRows(o) && row < other[o].size(0); row += step) {
        auto difference = CompareRow(o, other[o][row], base_outputs_[o][start + row], same_shapes);
        if (difference && (!largest || difference->relative > largest->relative)) {
          difference->row = start + row;
          largest = std::move(difference);
        }
      }
    }
    return largest;
  }

  std::string Describe(const Difference& difference) const {
    const std::string row = absl::StrCat("row ", difference.row, " of output '",
                                         config_.outputs[difference.output].name, "' ");
    if (!difference.shapes.empty()) {
      return absl::StrCat(row, "has shape ", difference.shapes);
    }
    if (std::isinf(difference.absolute)) {
      return absl::StrCat(row, "becomes or ceases to be NaN or infinite");
    }
    return absl::StrFormat("%schanges by %.3g (%.2g of its column's largest value)", row,
                           difference.absolute, difference.relative);
  }

  // Tests whether rows change if other rows are replaced. nullopt if no row changes.
  absl::StatusOr<std::optional<RowTest>> TestOtherRows() {
    struct Case {
      int64_t changed;  // the first of the rows that change
      Fill fill;
      double approximate;  // the largest relative change that is approximate
    };
    constexpr Case kCases[] = {{1, Fill::kSmall, kApproximate},
                               {0, Fill::kNormal, kApproximateLarger},
                               {1, Fill::kLarge, kInfinity},
                               {0, Fill::kNan, kInfinity}};
    std::optional<Difference> found;  // the first
    bool approximate = false;
    int compared = 0;
    for (const Case& each : kCases) {
      BRAID_ASSIGN_OR_RETURN(const std::optional<Tensors> outputs,
                             Try(WithOthers(each.changed, each.fill)));
      if (!outputs) {
        if (contradicts_) {
          return std::optional<RowTest>({RowIndependence::kDependent, false, failure_});
        }
        continue;
      }
      ++compared;
      const auto difference = Compare(*outputs, 0, 1 - each.changed, 2);
      if (difference && !found) {
        found = difference;
        approximate = each.approximate < kInfinity;
      }
      approximate = approximate && (!difference || std::isinf(each.approximate) ||
                                    difference->relative <= each.approximate);
    }
    if (compared == 0 || attempt_.zero_integers) {
      return std::optional<RowTest>(Unproven("the model accepts no other values: " + failure_));
    }
    if (!found) {
      return std::nullopt;
    }
    BRAID_ASSIGN_OR_RETURN(const std::optional<Tensors> again, Try(base_));
    if (!again) {
      return std::optional<RowTest>(Unproven("the model fails when it repeats a batch"));
    }
    if (const auto noise = Compare(*again, 0, 0, 1)) {
      return std::optional<RowTest>(Unproven(
          absl::StrCat("outputs differ between two runs on the same inputs: ", Describe(*noise))));
    }
    return std::optional<RowTest>(
        {RowIndependence::kDependent, approximate,
         absl::StrCat(Describe(*found), " when other rows of a batch of ", rows_, " change")});
  }

  // Runs rows of the base in smaller batches. nullopt if the outputs are equal within rounding.
  absl::StatusOr<std::optional<RowTest>> TestOtherSizes() {
    for (const auto& [start, count] : {std::pair<int64_t, int64_t>{rows_ - 1, 1}, {1, rows_ - 1}}) {
      BRAID_ASSIGN_OR_RETURN(const std::optional<Tensors> outputs, Try(Rows(start, count)));
      if (!outputs) {
        if (contradicts_) {
          return std::optional<RowTest>({RowIndependence::kDependent, false, failure_});
        }
        continue;  // Requests of so many rows fail alone, too.
      }
      const auto difference = Compare(*outputs, start, 0, 1);
      if (!difference) {
        continue;
      }
      BRAID_ASSIGN_OR_RETURN(const std::optional<Tensors> drawn, Try(base_, kSeed + 1));
      if (drawn && Compare(*drawn, 0, 0, 1)) {
        return std::optional<RowTest>(Unproven(
            "the model draws random numbers, so batches of other sizes cannot be compared"));
      }
      return std::optional<RowTest>(
          {RowIndependence::kDependent, difference->relative <= kApproximate,
           absl::StrCat(Describe(*difference), " in a batch of ", count, " instead of ", rows_)});
    }
    return std::nullopt;
  }

  ModelConfig config_;
  Worker& worker_;
  Replica& replica_;
  const int64_t rows_;
  Attempt attempt_;
  int forwards_ = 0;
  // Error of the last failed forward pass, and whether it concerned the shape of an output, or
  // names and datatypes.
  std::string failure_;
  bool contradicts_ = false;
  bool mismatches_ = false;
  Tensors base_;
  Tensors base_outputs_;
  // Largest magnitude of each column of each output.
  Tensors scales_;
  bool finite_ = false;
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
  BRAID_RETURN_IF_ERROR(RunOnLoadThreads({&worker}, [&](size_t) -> absl::Status {
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
