#include "server/batching/run_batch.h"

#include <algorithm>
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
#include "server/models/input_check.h"
#include "server/parallel/host_copy.h"

namespace braid {
namespace {

// `pieces`, one behind the other, on `device`: as they are if there is one and it is there already.
at::Tensor Merge(const std::vector<at::Tensor>& pieces, c10::Device device, Staging* staging) {
  if (!staging->needed()) {
    return pieces.size() == 1 ? pieces.front() : at::cat(pieces);
  }
  std::vector<int64_t> shape = pieces.front().sizes().vec();
  for (size_t p = 1; p < pieces.size(); ++p) {
    shape[0] += pieces[p].size(0);
  }
  const at::Tensor staged = staging->Empty(shape, pieces.front().scalar_type());
  if (pieces.size() == 1) {
    staged.copy_(pieces.front());
  } else {
    at::Tensor whole = staged;
    at::cat_out(whole, pieces);
  }
  return staged.to(at::TensorOptions(device), /*non_blocking=*/true);
}

// None if the model is not batched.
std::optional<int64_t> BatchRows(const ModelConfig& config, const std::vector<BatchPart>& parts) {
  if (!config.batched()) {
    return std::nullopt;
  }
  if (!config.merges_requests()) {
    return RowsOf(*parts.front().inputs);
  }
  return std::accumulate(parts.begin(), parts.end(), int64_t{0},
                         [](int64_t sum, const BatchPart& part) { return sum + part.rows; });
}

// In host memory, once the device is synchronized.
at::Tensor OnHost(const at::Tensor& tensor, Staging* staging) {
  if (!tensor.is_cuda()) {
    return tensor.contiguous();
  }
  const at::Tensor host = staging->Empty(tensor.sizes(), tensor.scalar_type());
  host.copy_(tensor, /*non_blocking=*/true);
  return host;
}

std::vector<at::Tensor> CopyIn(const ModelConfig& config, const Worker& worker,
                               const std::vector<BatchPart>& parts, Staging* staging) {
  std::vector<at::Tensor> inputs;
  for (size_t i = 0; i < config.inputs.size(); ++i) {
    if (config.inputs[i].scalar) {
      inputs.push_back(View((*parts.front().inputs)[i]));  // read on the host; the same in all
      continue;
    }
    std::vector<at::Tensor> rows;
    for (const BatchPart& part : parts) {
      const HostTensor& input = (*part.inputs)[i];
      rows.push_back(config.merges_requests() ? ViewRows(input, part.start, part.rows)
                                              : View(input));
    }
    // What several workers may be given at once must not be one memory: a model may work in place.
    const bool shared =
        rows.size() == 1 && (*parts.front().inputs)[i].broadcast && worker.torch_device().is_cpu();
    at::Tensor merged = Merge(rows, worker.torch_device(), staging);
    inputs.push_back(shared ? merged.clone() : std::move(merged));
  }
  return inputs;
}

// True if `shape` is the configured one: `rows`, if the model is batched, then the output's dims.
bool FitsConfig(at::IntArrayRef shape, const TensorSpec& spec, std::optional<int64_t> rows) {
  if (!rows && shape.empty()) {  // One number, for which Triton's configurations say [1].
    return std::all_of(spec.dims.begin(), spec.dims.end(), [](int64_t dim) { return dim <= 1; });
  }
  const size_t batch_dims = rows ? 1 : 0;
  bool fits = shape.size() == spec.dims.size() + batch_dims && (!rows || shape[0] == *rows);
  for (size_t d = 0; fits && d < spec.dims.size(); ++d) {
    fits = spec.dims[d] < 0 || spec.dims[d] == shape[d + batch_dims];
  }
  return fits;
}

absl::Status Unexpected(const ModelConfig& config, const TensorSpec& spec, at::IntArrayRef shape,
                        std::optional<int64_t> rows) {
  std::vector<int64_t> expected = spec.dims;
  if (rows) {
    expected.insert(expected.begin(), *rows);
  }
  absl::Status status = absl::FailedPreconditionError(absl::StrCat(
      "output '", spec.name, "' of model '", config.name, "' has shape ", ShapeString(shape.vec()),
      rows ? absl::StrCat(" for a batch of ", *rows) : "", ", which does not match ",
      ShapeString(expected), " (-1: any size): correct the output's dims in config.pbtxt",
      rows ? ", or set max_batch_size: 0 if dim 0 is not the batch" : ""));
  status.SetPayload(kOutputShapePayload, absl::Cord());
  return status;
}

// rows: of the batch; none if the model is not batched. parts: requests in the batch.
absl::Status CheckOutputs(const ModelConfig& config, const std::vector<at::Tensor>& outputs,
                          std::optional<int64_t> rows, size_t parts) {
  for (size_t o = 0; o < outputs.size(); ++o) {
    const TensorSpec& spec = config.outputs[o];
    // An output without dimensions is one number for each chunk. It belongs to one request, so a
    // merged batch that has one is run again request by request.
    const bool per_chunk = rows && outputs[o].dim() == 0 && parts == 1;
    if (!per_chunk && !FitsConfig(outputs[o].sizes(), spec, rows)) {
      return Unexpected(config, spec, outputs[o].sizes(), rows);
    }
  }
  return absl::OkStatus();
}

// squeeze(), which configurations make up for by reshape, takes the batch dimension of a single
// row, too.
void AddRow(const ModelConfig& config, std::vector<at::Tensor>* outputs) {
  for (size_t o = 0; o < outputs->size(); ++o) {
    at::Tensor& output = (*outputs)[o];
    const TensorSpec& spec = config.outputs[o];
    if (spec.reshape && output.dim() == static_cast<int64_t>(spec.dims.size())) {
      output = output.unsqueeze(0);
    }
  }
}

std::vector<std::vector<HostTensor>> CopyOut(const ModelConfig& config,
                                             const std::vector<at::Tensor>& outputs,
                                             const std::vector<BatchPart>& parts,
                                             Staging* staging) {
  std::vector<std::vector<HostTensor>> cut(parts.size());
  for (size_t o = 0; o < outputs.size(); ++o) {
    const at::Tensor host = OnHost(outputs[o], staging);
    int64_t start = 0;
    for (size_t p = 0; p < parts.size(); ++p) {
      const at::Tensor part = config.batched() && host.dim() == 0 ? host.unsqueeze(0)
                              : config.merges_requests() ? host.narrow(0, start, parts[p].rows)
                                                         : host;
      cut[p].push_back(ToHost(part, config.outputs[o].name));
      start += parts[p].rows;
    }
  }
  return cut;
}

// The input fits the configuration, so what the model says of it is the client's to know.
absl::StatusOr<std::vector<at::Tensor>> Forward(const ModelConfig& config, Worker& worker,
                                                Replica& replica,
                                                const std::vector<at::Tensor>& inputs) {
  std::vector<at::Tensor> outputs;
  absl::Status status = CatchTorch([&]() -> absl::Status {
    BRAID_ASSIGN_OR_RETURN(outputs, replica.Forward(inputs, Mode::kEval));
    return absl::OkStatus();
  });
  if (status.code() == absl::StatusCode::kInternal) {
    BRAID_RETURN_IF_ERROR(worker.Synchronize());  // or is it the device?
    return InvalidField(
        "inputs", absl::StrCat("model '", config.name, "' raised an error: ", status.message()));
  }
  BRAID_RETURN_IF_ERROR(status);
  return outputs;
}

}  // namespace

absl::StatusOr<BatchResult> RunBatch(const ModelConfig& config, Worker& worker, Replica& replica,
                                     const std::vector<BatchPart>& parts) {
  const c10::AutoGradMode no_grad(false);
  BatchResult result;
  Staging staging(worker.device());
  const absl::Status status = RunFor(worker, [&]() -> absl::Status {
    const std::vector<at::Tensor> inputs = worker.Measure(
        Phase::kCopyIn, [&] { return CopyIn(config, worker, parts, &staging); },
        &result.durations.copy_in);
    absl::StatusOr<std::vector<at::Tensor>> outputs = worker.Measure(
        Phase::kForward, [&] { return Forward(config, worker, replica, inputs); },
        &result.durations.forward);
    BRAID_RETURN_IF_ERROR(outputs.status());
    const std::optional<int64_t> rows = BatchRows(config, parts);
    if (rows == 1) {
      AddRow(config, &*outputs);
    }
    BRAID_RETURN_IF_ERROR(CheckOutputs(config, *outputs, rows, parts.size()));
    result.outputs = worker.Measure(
        Phase::kCopyOut, [&] { return CopyOut(config, *outputs, parts, &staging); },
        &result.durations.copy_out);
    return absl::OkStatus();
  });
  if (!status.ok()) {
    return status;
  }
  return result;
}

}  // namespace braid
