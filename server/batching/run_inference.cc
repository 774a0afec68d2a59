#include "server/batching/run_inference.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>

#include "ATen/ops/cat.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "c10/core/GradMode.h"
#include "server/base/status.h"
#include "server/devices/run_on.h"
#include "server/devices/staging.h"
#include "server/models/batch_layout.h"
#include "server/models/input_check.h"
#include "server/parallel/host_copy.h"

namespace braid {
namespace {

using Tensors = std::vector<at::Tensor>;
using Batch = absl::Span<const RequestRows>;

// The phases of one batch, one public method each. Copies and the forward pass are measured.
class BatchRun {
 public:
  BatchRun(const ModelConfig& config, Worker& worker, Replica& replica, Batch batch)
      : config_(config),
        worker_(worker),
        replica_(replica),
        batch_(batch),
        staging_(worker.device()) {}

  // Concatenates the batch's rows of input `i` in host memory. Copies nothing on a CPU slot if the
  // batch has a single part.
  at::Tensor Merge(size_t i) {
    const HostTensor& first = batch_.front().request->inputs()[i];
    if (config_.inputs[i].scalar) {
      return View(first);  // equal in all requests of a batch
    }
    Tensors parts;
    for (const RequestRows& rows : batch_) {
      const HostTensor& input = rows.request->inputs()[i];
      parts.push_back(config_.merges_requests() ? ViewRows(input, rows.start, rows.count)
                                                : View(input));
    }
    if (staging_.needed()) {
      return Stage(parts);
    }
    if (parts.size() > 1) {
      return at::cat(parts);
    }
    // Several workers may receive the same broadcast input, and a model may modify it in place.
    return first.broadcast ? parts.front().clone() : std::move(parts.front());
  }

  // Copies merge(i) to the device for each input i. Merging an input overlaps with the copy of the
  // one before.
  void CopyIn(absl::FunctionRef<at::Tensor(size_t)> merge) {
    const auto copy = [&] {
      const c10::Device device = worker_.torch_device();
      for (size_t i = 0; i < config_.inputs.size(); ++i) {
        at::Tensor host = merge(i);
        const bool stays = device.is_cpu() || config_.inputs[i].scalar;
        inputs_.push_back(stays ? std::move(host)
                                : host.to(at::TensorOptions(device), /*non_blocking=*/true));
      }
    };
    worker_.Measure(Phase::kCopyIn, copy, &result_.durations.copy_in);
  }

  // Runs the model and checks the shapes of its outputs.
  absl::Status Forward() {
    const auto forward = [this] {
      return CatchTorch([this]() -> absl::Status {
        BRAID_ASSIGN_OR_RETURN(outputs_, replica_.Forward(inputs_, Mode::kEval));
        return absl::OkStatus();
      });
    };
    const absl::Status status =
        worker_.Measure(Phase::kForward, forward, &result_.durations.forward);
    if (status.code() == absl::StatusCode::kInternal) {
      BRAID_RETURN_IF_ERROR(worker_.Synchronize());  // reports a lost device instead
      return InvalidField(
          "inputs", absl::StrCat("model '", config_.name, "' raised an error: ", status.message()));
    }
    BRAID_RETURN_IF_ERROR(status);
    return CheckOutputs();
  }

  // Copies the outputs to host memory. The bytes are valid once the device is synchronized.
  void CopyOut() {
    const auto copy = [this] {
      for (at::Tensor& output : outputs_) {
        if (!output.is_cuda()) {
          output = output.contiguous();
          continue;
        }
        at::Tensor host = staging_.Empty(output.sizes(), output.scalar_type());
        host.copy_(output, /*non_blocking=*/true);
        output = std::move(host);
      }
    };
    worker_.Measure(Phase::kCopyOut, copy, &result_.durations.copy_out);
  }

  // Splits the outputs into one view for each RequestRows of the batch.
  void SplitOutputs() {
    result_.outputs.resize(batch_.size());
    for (size_t o = 0; o < outputs_.size(); ++o) {
      const at::Tensor& whole = outputs_[o];
      int64_t start = 0;
      for (size_t p = 0; p < batch_.size(); ++p) {
        const at::Tensor part = config_.batched() && whole.dim() == 0 ? whole.unsqueeze(0)
                                : config_.merges_requests()
                                    ? whole.narrow(0, start, batch_[p].count)
                                    : whole;
        result_.outputs[p].push_back(ToHost(part, config_.outputs[o].name));
        start += batch_[p].count;
      }
    }
  }

  BatchResult result() { return std::move(result_); }

 private:
  // Concatenates `parts` in pinned memory.
  at::Tensor Stage(const Tensors& parts) {
    std::vector<int64_t> shape = parts.front().sizes().vec();
    for (size_t p = 1; p < parts.size(); ++p) {
      shape[0] += parts[p].size(0);
    }
    at::Tensor staged = staging_.Empty(shape, parts.front().scalar_type());
    if (parts.size() == 1) {
      staged.copy_(parts.front());
    } else {
      at::cat_out(staged, parts);
    }
    return staged;
  }

  // Rows of the batch; nullopt for a model without a batch dimension.
  std::optional<int64_t> Rows() const {
    if (!config_.batched()) {
      return std::nullopt;
    }
    if (!config_.merges_requests()) {
      return RowsOf(batch_.front().request->inputs());
    }
    return std::accumulate(batch_.begin(), batch_.end(), int64_t{0},
                           [](int64_t sum, const RequestRows& rows) { return sum + rows.count; });
  }

  absl::Status CheckOutputs() {
    const std::optional<int64_t> rows = Rows();
    for (size_t o = 0; o < outputs_.size(); ++o) {
      at::Tensor& output = outputs_[o];
      const TensorSpec& spec = config_.outputs[o];
      // squeeze() in a model also removes the batch dimension of a single row. Configurations
      // declare such outputs with `reshape`.
      if (rows == 1 && spec.reshape && output.dim() == static_cast<int64_t>(spec.dims.size())) {
        output = output.unsqueeze(0);
      }
      // An output without dimensions is one number per chunk and belongs to one request. A merged
      // batch with such an output is split and retried request by request.
      const bool per_chunk = rows && output.dim() == 0 && batch_.size() == 1;
      if (!per_chunk && !MatchesConfig(output.sizes(), spec, rows)) {
        return ShapeError(spec, output.sizes(), rows);
      }
    }
    return absl::OkStatus();
  }

  // True if `shape` is [rows,] + spec.dims.
  static bool MatchesConfig(at::IntArrayRef shape, const TensorSpec& spec,
                            std::optional<int64_t> rows) {
    if (!rows && shape.empty()) {  // Triton configurations declare a single number as [1].
      return std::all_of(spec.dims.begin(), spec.dims.end(), [](int64_t dim) { return dim <= 1; });
    }
    const size_t batch_dims = rows ? 1 : 0;
    bool matches = shape.size() == spec.dims.size() + batch_dims && (!rows || shape[0] == *rows);
    for (size_t d = 0; matches && d < spec.dims.size(); ++d) {
      matches = spec.dims[d] < 0 || spec.dims[d] == shape[d + batch_dims];
    }
    return matches;
  }

  absl::Status ShapeError(const TensorSpec& spec, at::IntArrayRef shape,
                          std::optional<int64_t> rows) const {
    std::vector<int64_t> expected = spec.dims;
    if (rows) {
      expected.insert(expected.begin() + static_cast<std::ptrdiff_t>(spec.batch_dim), *rows);
    }
    absl::Status status = absl::FailedPreconditionError(absl::StrCat(
        "output '", spec.name, "' of model '", config_.name, "' has shape ",
        ShapeString(ClientShape(shape.vec(), spec.batch_dim)),
        rows ? absl::StrCat(" for a batch of ", *rows) : "", ", which does not match ",
        ShapeString(expected), " (-1: any size): correct the output's dims in config.pbtxt",
        rows ? absl::StrCat(", or set max_batch_size: 0 if dim ", spec.batch_dim,
                            " is not the batch")
             : ""));
    status.SetPayload(kOutputShapePayload, absl::Cord());
    return status;
  }

  const ModelConfig& config_;
  Worker& worker_;
  Replica& replica_;
  const Batch batch_;
  Staging staging_;
  Tensors inputs_;
  Tensors outputs_;
  BatchResult result_;
};

}  // namespace

absl::Status RunInference(const ModelConfig& config, Worker& worker, Replica& replica,
                          TakeBatch take, ReplyToBatch reply) {
  const c10::AutoGradMode no_grad(false);
  const Batch batch = take();
  if (batch.empty()) {
    return absl::OkStatus();
  }
  BatchRun run(config, worker, replica, batch);
  const absl::Status status = RunAndSynchronize(worker, [&run]() -> absl::Status {
    run.CopyIn([&run](size_t input) { return run.Merge(input); });
    BRAID_RETURN_IF_ERROR(run.Forward());
    run.CopyOut();
    run.SplitOutputs();
    return absl::OkStatus();
  });
  if (status.ok()) {
    reply(run.result());
  }
  return status;
}

absl::StatusOr<std::vector<HostTensor>> RunOnce(const ModelConfig& config, Worker& worker,
                                                Replica& replica,
                                                const std::vector<HostTensor>& inputs,
                                                int64_t rows) {
  const RequestRows all{
      std::make_shared<InferenceRequest>(inputs, rows, InferenceRequest::Schedule{},
                                         [](const absl::StatusOr<InferenceResult>&) {}),
      0, rows};
  std::vector<HostTensor> outputs;
  BRAID_RETURN_IF_ERROR(RunInference(
      config, worker, replica, /*take=*/[&] { return absl::MakeConstSpan(&all, 1); },
      /*reply=*/[&](BatchResult result) { outputs = std::move(result.outputs.front()); }));
  return outputs;
}

}  // namespace braid
