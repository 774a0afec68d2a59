#include "server/serving/warm_up.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <utility>
#include <vector>

#include "ATen/ops/empty.h"
#include "ATen/ops/zeros.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "server/base/status.h"
#include "server/batching/run_inference.h"
#include "server/devices/run_on.h"
#include "server/models/input_check.h"
#include "server/parallel/host_copy.h"

namespace braid {
namespace {

// Reads a file of `rows` rows, or of one row, which is repeated.
absl::Status ReadInto(const std::filesystem::path& path, const HostTensor& tensor, int64_t rows,
                      char* bytes) {
  std::error_code error;
  const uintmax_t size =
      std::filesystem::file_size(path, error);  // fails unless it is a regular file
  std::ifstream file;
  if (!error) {  // opening a pipe would block
    file.open(path, std::ios::binary);
  }
  if (!file.is_open()) {
    return absl::NotFoundError(absl::StrCat("cannot read '", path.string(), "'"));
  }
  const size_t row = tensor.bytes / static_cast<size_t>(rows);
  if (size != row && size != tensor.bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", path.string(), "' has ", size, " bytes (expected ", row, " for one row, or ",
        tensor.bytes, " for ", DataTypeName(tensor.type), " ", ShapeString(tensor.shape), ")"));
  }
  file.read(bytes, static_cast<std::streamsize>(size));
  if (!file) {
    return absl::DataLossError(absl::StrCat("cannot read '", path.string(), "'"));
  }
  for (size_t done = size; done < tensor.bytes; done += row) {
    std::memcpy(bytes + done, bytes, row);
  }
  return absl::OkStatus();
}

// Returns random values: [0, 1) for floating-point types; for others the input's range, else 0 and
// 1, which are valid indices.
at::Tensor Random(const TensorSpec& spec, const std::vector<int64_t>& shape) {
  if (IsFloatingPoint(spec.type)) {
    return at::empty(shape, ToScalarType(spec.type)).uniform_();
  }
  at::Tensor numbers = at::empty(shape, c10::kLong);
  if (!spec.range) {
    numbers.random_(0, 2);
  } else {
    // random_() excludes its end, so the highest int64 is omitted.
    const bool full = spec.range->max == std::numeric_limits<int64_t>::max();
    numbers.random_(spec.range->min, full ? spec.range->max : spec.range->max + 1);
  }
  return numbers.to(ToScalarType(spec.type));
}

absl::StatusOr<HostTensor> MakeInput(const TensorSpec& spec, const Warmup::Input& input,
                                     bool batched, int64_t rows, const std::string& folder) {
  std::vector<int64_t> shape = input.dims;
  if (batched) {
    shape.insert(shape.begin(), rows);
  }
  at::Tensor tensor = input.fill == Warmup::Fill::kRandom
                          ? Random(spec, shape)
                          : at::zeros(shape, ToScalarType(spec.type));
  HostTensor host = ToHost(tensor, spec.name);
  if (input.fill == Warmup::Fill::kFile) {
    BRAID_RETURN_IF_ERROR(ReadInto(std::filesystem::path(folder) / "warmup" / input.file, host,
                                   batched ? rows : 1, static_cast<char*>(tensor.data_ptr())));
  }
  return host;
}

// Makes and checks the inputs of a warm-up request.
absl::StatusOr<std::vector<HostTensor>> MakeInputs(const ModelConfig& config, const Warmup& warmup,
                                                   const std::string& folder) {
  std::vector<HostTensor> inputs;
  const absl::Status made = CatchTorch([&]() -> absl::Status {
    for (const TensorSpec& spec : config.inputs) {
      const auto input = warmup.inputs.find(spec.name);
      if (input == warmup.inputs.end()) {
        continue;
      }
      BRAID_ASSIGN_OR_RETURN(
          HostTensor tensor,
          MakeInput(spec, input->second, config.has_batch_dim(spec), warmup.batch_size, folder));
      inputs.push_back(std::move(tensor));
    }
    return absl::OkStatus();
  });
  BRAID_RETURN_IF_ERROR(made);
  return CheckInputs(config, std::move(inputs), "inputs");
}

// Copies the inputs, because a model may modify them in place while other workers read them.
std::vector<HostTensor> CopiesOf(const std::vector<HostTensor>& inputs) {
  std::vector<HostTensor> copies;
  for (const HostTensor& input : inputs) {
    HostTensor& copy = copies.emplace_back(ToHost(View(input).clone(), input.name));
    copy.broadcast = input.broadcast;
  }
  return copies;
}

absl::Status Run(const ModelConfig& config, const Warmup& warmup, const std::string& folder,
                 const ReplicaSet& replicas) {
  std::vector<HostTensor> inputs;
  BRAID_RETURN_IF_ERROR(RunOnLoadThreads(replicas.first_workers(1), [&](size_t) -> absl::Status {
    BRAID_ASSIGN_OR_RETURN(inputs, MakeInputs(config, warmup, folder));
    return absl::OkStatus();
  }));
  const int64_t rows = config.batched() ? warmup.batch_size : 1;
  return RepeatOnEach(replicas.workers(), Phase::kLoad, warmup.count, [&](size_t r) {
    return RunOnce(config, replicas.worker(r), replicas.replica(r), CopiesOf(inputs), rows)
        .status();
  });
}

}  // namespace

absl::Status WarmUp(const ModelConfig& config, const std::string& folder,
                    const ReplicaSet& replicas) {
  for (size_t i = 0; i < config.warmups.size(); ++i) {
    const Warmup& warmup = config.warmups[i];
    if (const absl::Status status = Run(config, warmup, folder, replicas); !status.ok()) {
      return absl::Status(status.code(), absl::StrCat("model_warmup[", i, "] ('", warmup.name,
                                                      "'): ", status.message()));
    }
  }
  return absl::OkStatus();
}

}  // namespace braid
