#include "server/training/data_parallel.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "c10/core/GradMode.h"
#include "server/base/status.h"
#include "server/devices/run_on.h"
#include "server/models/input_check.h"
#include "server/parallel/gather.h"
#include "server/parallel/host_copy.h"
#include "server/parallel/split.h"

namespace braid {
namespace {

// The input fits the configuration, so what the model says of it is the client's to know.
absl::Status NameInputs(const absl::Status& status) {
  if (status.code() != absl::StatusCode::kInternal) {
    return status;
  }
  return InvalidField("inputs", absl::StrCat("the model failed on them: ", status.message(),
                                             "; expected values that it can handle"));
}

int64_t StartOf(const Split& split, size_t chunk) {
  return std::accumulate(split.begin(), split.begin() + static_cast<int64_t>(chunk), int64_t{0});
}

}  // namespace

absl::StatusOr<std::unique_ptr<DataParallel>> DataParallel::Create(
    const ModelConfig& config, Loss loss, std::vector<Worker*> workers,
    std::vector<std::unique_ptr<Replica>> replicas) {
  if (!config.batched()) {
    return absl::FailedPreconditionError(
        absl::StrCat("model '", config.name,
                     "' is not batched (max_batch_size: 0): its batches cannot "
                     "be split over replicas"));
  }
  if (replicas.front()->parameters().empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("model '", config.name, "' has no parameter that requires a gradient"));
  }
  std::vector<std::string> names;
  for (const TensorSpec& output : config.outputs) {
    names.push_back(output.name);
  }
  std::unique_ptr<DataParallel> trained(new DataParallel(
      std::move(loss), std::move(names), ReplicaSet(std::move(workers), std::move(replicas))));
  BRAID_RETURN_IF_ERROR(trained->Init());
  return trained;
}

absl::Status DataParallel::Init() {
  BRAID_ASSIGN_OR_RETURN(communicator_, MakeCommunicator(replicas_.workers()));
  std::vector<std::optional<FlatParameters>> flat(replicas_.size());
  BRAID_RETURN_IF_ERROR(RunOnEach(replicas_.workers(), Phase::kLoad, [&](size_t r) {
    flat[r].emplace(replicas_.replica(r));
    return absl::OkStatus();
  }));
  for (std::optional<FlatParameters>& parameters : flat) {
    flat_.push_back(*std::move(parameters));
  }
  return RunOnEach(replicas_.first_workers(1), Phase::kLoad, [&](size_t) {
    optimizer_ = std::make_unique<Optimizer>(flat_[0]);
    for (const at::Tensor& buffer : replicas_.replica(0).buffers()) {
      buffers_.push_back(buffer.clone());
    }
    return absl::OkStatus();
  });
}

absl::StatusOr<BatchResult> DataParallel::ForwardBackward(const std::vector<HostTensor>& inputs,
                                                          const std::vector<HostTensor>& targets) {
  const int64_t rows = RowsOf(inputs);
  BRAID_ASSIGN_OR_RETURN(const HostTensor target, loss_.PickTarget(targets, rows));
  BatchResult result;
  result.split = ChunkSizes(rows, static_cast<int64_t>(replicas_.size()));

  absl::Status status = [&]() -> absl::Status {
    BRAID_ASSIGN_OR_RETURN(const ChunkOutputs outputs,
                           ForwardChunks(inputs, result.split, Mode::kTrain,
                                         /*keep_graph=*/true));
    BRAID_ASSIGN_OR_RETURN(const LossValue loss, GatherAndLoss(outputs, result.split, target));
    result.loss = loss.loss;
    BRAID_RETURN_IF_ERROR(BackwardChunks(loss.output_gradient, outputs, result.split));
    return CommitBuffers();
  }();
  if (!status.ok()) {
    RollBack();
    return status;
  }
  ++accumulated_;
  ranks_ = std::max(ranks_, result.split.size());
  return result;
}

absl::StatusOr<BatchResult> DataParallel::Forward(const std::vector<HostTensor>& inputs,
                                                  const std::vector<HostTensor>& targets,
                                                  Mode mode) {
  const int64_t rows = RowsOf(inputs);
  std::optional<HostTensor> target;
  if (!targets.empty()) {
    BRAID_ASSIGN_OR_RETURN(target, loss_.PickTarget(targets, rows));
  }
  BatchResult result;
  result.split = ChunkSizes(rows, static_cast<int64_t>(replicas_.size()));

  absl::Status status = [&]() -> absl::Status {
    BRAID_ASSIGN_OR_RETURN(const ChunkOutputs outputs,
                           ForwardChunks(inputs, result.split, mode, /*keep_graph=*/false));
    BRAID_RETURN_IF_ERROR(
        RunOnEach(replicas_.first_workers(1), Phase::kCopyOut, [&](size_t) -> absl::Status {
          BRAID_ASSIGN_OR_RETURN(const std::vector<at::Tensor> gathered,
                                 Gather(outputs, result.split, replicas_.worker(0).torch_device()));
          for (size_t o = 0; o < gathered.size(); ++o) {
            // What is not gathered may be the input or a parameter; the recorded reply must outlive
            // both.
            const bool own = outputs.size() > 1;
            result.outputs.push_back(
                ToHost(own ? gathered[o] : gathered[o].clone(), output_names_[o]));
          }
          if (target) {
            BRAID_ASSIGN_OR_RETURN(const LossValue loss,
                                   loss_.Compute(gathered[loss_.output_index()], *target,
                                                 /*with_gradient=*/false));
            result.loss = loss.loss;
          }
          return absl::OkStatus();
        }));
    return mode == Mode::kTrain ? CommitBuffers() : absl::OkStatus();
  }();
  if (!status.ok() || (mode == Mode::kEval && !buffers_.empty())) {
    RollBack();  // an evaluation changes nothing, whatever the model does in it
  }
  BRAID_RETURN_IF_ERROR(status);
  return result;
}

absl::StatusOr<DataParallel::ChunkOutputs> DataParallel::ForwardChunks(
    const std::vector<HostTensor>& inputs, const Split& split, Mode mode, bool keep_graph) {
  ChunkOutputs outputs(split.size());
  absl::Status status = RunOnEach(
      replicas_.first_workers(split.size()), Phase::kForward, [&](size_t r) -> absl::Status {
        Replica& replica = replicas_.replica(r);
        Worker& worker = replicas_.worker(r);
        const std::vector<at::Tensor> chunk = worker.Measure(Phase::kCopyIn, [&] {
          std::vector<at::Tensor> rows;
          for (const HostTensor& input : inputs) {
            rows.push_back(ViewRows(input, StartOf(split, r), split[r]).to(worker.torch_device()));
          }
          return rows;
        });
        if (r > 0) {
          replica.SetBuffers(buffers_);
        }
        BRAID_RETURN_IF_ERROR(NameInputs(CatchTorch([&]() -> absl::Status {
          BRAID_ASSIGN_OR_RETURN(outputs[r], keep_graph ? replica.ForwardForTraining(chunk, mode)
                                                        : replica.Forward(chunk, mode));
          return absl::OkStatus();
        })));
        worker.AddSamples(split[r]);
        return absl::OkStatus();
      });
  BRAID_RETURN_IF_ERROR(status);
  return outputs;
}

absl::StatusOr<LossValue> DataParallel::GatherAndLoss(const ChunkOutputs& outputs,
                                                      const Split& split,
                                                      const HostTensor& target) {
  const size_t index = loss_.output_index();
  LossValue value;
  BRAID_RETURN_IF_ERROR(
      RunOnEach(replicas_.first_workers(1), Phase::kLoss, [&](size_t) -> absl::Status {
        ChunkOutputs wanted;
        for (const std::vector<at::Tensor>& chunk : outputs) {
          wanted.push_back({chunk[index]});
        }
        BRAID_ASSIGN_OR_RETURN(const std::vector<at::Tensor> gathered,
                               Gather(wanted, split, replicas_.worker(0).torch_device()));
        BRAID_ASSIGN_OR_RETURN(value,
                               loss_.Compute(gathered.front(), target, /*with_gradient=*/true));
        return absl::OkStatus();
      }));
  return value;
}

absl::Status DataParallel::BackwardChunks(const at::Tensor& output_gradient,
                                          const ChunkOutputs& outputs, const Split& split) {
  const size_t index = loss_.output_index();
  const bool first = accumulated_ == 0;
  std::vector<std::vector<at::Tensor>> gradients(replicas_.size());
  // Idle replicas take part with zeros: what they held before must not be summed.
  for (size_t r = split.size(); r < replicas_.size(); ++r) {
    gradients[r].resize(flat_[r].slots().size());
  }
  const auto backward = [&](size_t r) -> absl::Status {
    if (r < split.size()) {
      std::vector<at::Tensor> chunk(outputs[r].size());
      chunk[index] = ChunkOf(output_gradient, outputs[r][index].dim() == 0, split, r)
                         .to(replicas_.worker(r).torch_device());
      BRAID_ASSIGN_OR_RETURN(gradients[r], replicas_.replica(r).Backward(chunk));
    }
    if (first) {
      flat_[r].Accumulate(gradients[r], first);
    }
    return absl::OkStatus();
  };
  if (first) {
    // Nothing is lost if one replica fails: flat gradients count for nothing until accumulated_
    // does.
    return RunOnEach(replicas_.workers(), Phase::kBackward, backward);
  }
  BRAID_RETURN_IF_ERROR(
      RunOnEach(replicas_.first_workers(split.size()), Phase::kBackward, backward));
  return RunOnEach(replicas_.first_workers(split.size()), Phase::kBackward, [&](size_t r) {
    flat_[r].Accumulate(gradients[r], first);
    return absl::OkStatus();
  });
}

absl::Status DataParallel::CommitBuffers() {
  if (buffers_.empty()) {
    return absl::OkStatus();
  }
  return RunOnEach(replicas_.first_workers(1), Phase::kBroadcast, [&](size_t) -> absl::Status {
    const c10::AutoGradMode no_grad(false);
    const std::vector<at::Tensor> now = replicas_.replica(0).buffers();
    for (size_t b = 0; b < now.size(); ++b) {
      if (now[b].sizes() != buffers_[b].sizes() ||
          now[b].scalar_type() != buffers_[b].scalar_type()) {
        return absl::FailedPreconditionError(
            absl::StrCat("the model replaced a buffer of shape ",
                         ShapeString(buffers_[b].sizes().vec()), " by one of shape ",
                         ShapeString(now[b].sizes().vec()), ": buffers keep shape and datatype"));
      }
    }
    for (size_t b = 0; b < now.size(); ++b) {
      buffers_[b].copy_(now[b]);
    }
    replicas_.replica(0).SetBuffers(buffers_);
    return absl::OkStatus();
  });
}

void DataParallel::RollBack() {
  // Only drops memory and writes into memory that is there already: it cannot fail where the
  // operation could.
  RunOnEach(replicas_.workers(), Phase::kBroadcast, [&](size_t r) {
    replicas_.replica(r).DropGraph();
    replicas_.replica(r).SetBuffers(buffers_);
    return absl::OkStatus();
  }).IgnoreError();
}

std::vector<bool> DataParallel::Reached() const {
  std::vector<bool> reached = flat_[0].reached();
  for (size_t r = 1; r < ranks_; ++r) {
    for (size_t p = 0; p < reached.size(); ++p) {
      reached[p] = reached[p] || flat_[r].reached()[p];
    }
  }
  return reached;
}

absl::Status DataParallel::Update(const OptimizerSpec& optimizer) {
  const auto buffers_of = [&](size_t buffer, auto member) {
    std::vector<at::Tensor> tensors;
    for (const FlatParameters& flat : flat_) {
      tensors.push_back((flat.*member)()[buffer]);
    }
    return tensors;
  };
  const size_t buffers = flat_[0].values().size();
  for (size_t b = 0; b < buffers; ++b) {
    BRAID_RETURN_IF_ERROR(communicator_->Reduce(buffers_of(b, &FlatParameters::gradients), ranks_));
  }
  BRAID_RETURN_IF_ERROR(RunOnEach(replicas_.first_workers(1), Phase::kUpdate, [&](size_t) {
    optimizer_->Update(flat_[0], Reached(), optimizer);
    return absl::OkStatus();
  }));
  for (size_t b = 0; b < buffers; ++b) {
    BRAID_RETURN_IF_ERROR(communicator_->Broadcast(buffers_of(b, &FlatParameters::values)));
  }
  accumulated_ = 0;
  ranks_ = 0;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<StateTensor>> DataParallel::State() {
  std::vector<StateTensor> state;
  BRAID_RETURN_IF_ERROR(RunOnEach(replicas_.first_workers(1), Phase::kCopyOut, [&](size_t) {
    for (const StateEntry& entry : replicas_.replica(0).state()) {
      state.push_back({ToHost(entry.value.clone(), entry.name), entry.is_parameter});
    }
    return absl::OkStatus();
  }));
  return state;
}

absl::StatusOr<std::vector<std::unique_ptr<Replica>>> DataParallel::Clone() {
  std::vector<std::unique_ptr<Replica>> clones(replicas_.size());
  BRAID_RETURN_IF_ERROR(RunOnEach(replicas_.workers(), Phase::kLoad, [&](size_t r) {
    replicas_.replica(r).SetBuffers(buffers_);
    clones[r] = replicas_.replica(r).Clone();
    return absl::OkStatus();
  }));
  return clones;
}

}  // namespace braid
