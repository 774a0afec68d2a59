// Forward and backward as the client asks for them one by one, and evaluation.
#include <algorithm>
#include <utility>

#include "ATen/ops/cat.h"
#include "absl/strings/str_cat.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/devices/run_on.h"
#include "server/devices/worker_group.h"
#include "server/parallel/host_copy.h"
#include "server/training/step/data_parallel_run.h"

namespace braid {
namespace {

// Copies the tensors out of the request's memory, which a kept graph outlives.
void Own(std::vector<HostTensor>* tensors) {
  for (HostTensor& tensor : *tensors) {
    auto bytes = std::make_shared<std::string>(static_cast<const char*>(tensor.data), tensor.bytes);
    tensor.data = bytes->data();
    tensor.owner = std::move(bytes);
  }
}

}  // namespace

absl::StatusOr<WorkResult> DataParallel::Forward(const Batch& batch, bool keep_graph) {
  DropKept();
  Run run(*this, batch);
  std::unique_ptr<Batch> kept;
  if (keep_graph) {
    kept = std::make_unique<Batch>(batch);
    Own(&kept->inputs);
    run.AddPass(std::make_unique<BatchPass>(model(), *kept, 0, batch.rows, /*groups=*/0));
  } else {
    run.AddPasses(*this);
  }
  const bool training = batch.mode == Mode::kTrain;
  WorkResult result;
  std::vector<std::vector<at::Tensor>> gathered(run.passes.size());
  absl::Status status = RunWorkerGroup(
      roster_.workers, run.groups, [&](WorkerGroup& worker_group, size_t rank) -> absl::Status {
        const PeakMemory peak(worker_group.worker(rank).device(), &peaks_[rank]);
        const bool with_loss = !batch.targets.empty() || spec_.loss_mode == LossMode::kModel;
        if (with_loss && rank == roster_.output_rank) {
          BRAID_ASSIGN_OR_RETURN(run.whole, objective_->Denominators(batch.targets, 0, batch.rows));
        }
        for (size_t k = 0; k < run.passes.size(); ++k) {
          BRAID_RETURN_IF_ERROR(run.passes[k]->Forward(worker_group, rank, keep_graph, &run.times));
          if (rank == roster_.output_rank) {
            BRAID_ASSIGN_OR_RETURN(gathered[k], run.passes[k]->GatherOutputs());
          }
          if (with_loss) {
            BRAID_RETURN_IF_ERROR(run.passes[k]->Loss(worker_group, rank, run.whole,
                                                      /*with_gradient=*/false, &run.times));
          } else {
            BRAID_RETURN_IF_ERROR(worker_group.Barrier(rank));
          }
        }
        if (rank == roster_.output_rank) {
          BRAID_RETURN_IF_ERROR(run.times.Measure(worker_group, rank, Phase::kCopyOut, [&] {
            result.outputs = Export(gathered);
            return absl::OkStatus();
          }));
        }
        return training ? ExamineBuffers(run, worker_group, rank, keep_graph) : absl::OkStatus();
      });
  const bool skipped = !run.buffers_stay_finite();
  if (!status.ok() || skipped || (!training && has_buffers())) {
    RollBack();  // an evaluation changes nothing, whatever the model does in it
  }
  BRAID_RETURN_IF_ERROR(status);
  if (!batch.targets.empty() || spec_.loss_mode == LossMode::kModel) {
    result.loss = run.loss();
  }
  Report(run, &result);
  if (keep_graph) {
    kept_batch_ = std::move(kept);
    kept_ = std::move(run.passes.front());
    kept_is_skipped_ = skipped;
    CountBytes();
  } else {
    result.skipped = skipped;
  }
  return result;
}

std::vector<HostTensor> DataParallel::Export(
    const std::vector<std::vector<at::Tensor>>& gathered) const {
  std::vector<HostTensor> outputs;
  for (size_t o = 0; o < gathered.front().size(); ++o) {
    std::vector<at::Tensor> pieces;
    for (const std::vector<at::Tensor>& piece : gathered) {
      pieces.push_back(piece[o]);
    }
    // What was not gathered from several chunks may be the input or a parameter; the recorded reply
    // must outlive both.
    const at::Tensor whole = pieces.size() > 1 ? at::cat(pieces) : pieces.front().clone();
    outputs.push_back(
        ToHost(whole.to(ToScalarType(config_.outputs[o].type)), config_.outputs[o].name));
  }
  return outputs;
}

absl::StatusOr<std::vector<at::Tensor>> DataParallel::ReadOutputGradients(
    const std::vector<HostTensor>& output_gradients) const {
  std::vector<at::Tensor> gradients(config_.outputs.size());
  for (size_t i = 0; i < output_gradients.size(); ++i) {
    const HostTensor& gradient = output_gradients[i];
    const std::string field = absl::StrCat("output_gradients[", i, "]");
    const auto output =
        std::find_if(config_.outputs.begin(), config_.outputs.end(),
                     [&](const TensorSpec& spec) { return spec.name == gradient.name; });
    if (output == config_.outputs.end()) {
      return InvalidField(field + ".name",
                          absl::StrCat("the model has no output '", Excerpt(gradient.name), "'"));
    }
    const auto o = static_cast<size_t>(output - config_.outputs.begin());
    if (gradients[o].defined()) {
      return InvalidField(field + ".name",
                          absl::StrCat("output '", gradient.name, "' is there twice"));
    }
    if (gradient.type != output->type || gradient.shape != kept_->gathered_shape(o)) {
      return InvalidField(
          absl::StrCat(field, gradient.type != output->type ? ".datatype" : ".shape"),
          absl::StrCat("the gradient of '", gradient.name, "' is ", DataTypeName(gradient.type),
                       " ", ShapeString(gradient.shape), "; expected the output's ",
                       DataTypeName(output->type), " ", ShapeString(kept_->gathered_shape(o))));
    }
    gradients[o] = gradient_scale() == 1 ? View(gradient) : View(gradient).mul(gradient_scale());
  }
  if (output_gradients.empty()) {
    return InvalidField("output_gradients", "is empty; expected one for at least one output");
  }
  return gradients;
}

absl::StatusOr<WorkResult> DataParallel::Backward(const std::vector<HostTensor>& output_gradients) {
  if (kept_ == nullptr) {
    return absl::FailedPreconditionError(
        "no graph is kept: call Forward with keep_graph just before Backward");
  }
  BRAID_ASSIGN_OR_RETURN(std::vector<at::Tensor> gradients, ReadOutputGradients(output_gradients));
  BRAID_RETURN_IF_ERROR(JudgeOutputGradients(output_gradients));
  if (kept_is_skipped_) {
    DropKept();
    ++left_out_;
    WorkResult skipped;
    skipped.skipped = true;
    return skipped;
  }
  kept_->SetOutputGradients(std::move(gradients));
  Run run(*this, *kept_batch_);
  run.AddPass(std::move(kept_));
  run.hold = accumulated_ > 0;
  std::vector<size_t> holding = HoldingAfter(run);
  const absl::Status status = RunWorkerGroup(
      roster_.workers, run.groups, [&](WorkerGroup& worker_group, size_t rank) -> absl::Status {
        const PeakMemory peak(worker_group.worker(rank).device(), &peaks_[rank]);
        BRAID_RETURN_IF_ERROR(run.passes.front()->Backward(worker_group, rank, accumulated_ == 0,
                                                           run.hold, &run.times));
        BRAID_RETURN_IF_ERROR(Examine(run, worker_group, rank));
        BRAID_RETURN_IF_ERROR(ExamineSum(run, worker_group, rank));
        return Apply(run, worker_group, rank);
      });
  BRAID_RETURN_IF_ERROR(Recover(run, status));
  BRAID_ASSIGN_OR_RETURN(const Verdict verdict, Judge(run));
  WorkResult result;
  result.skipped = !verdict.counts;
  if (verdict.counts) {
    ++accumulated_;
    holding_ = std::move(holding);
    overflow_ = overflow_ || verdict.overflow;
  } else {
    ++left_out_;
  }
  Report(run, &result);
  return result;
}

absl::Status DataParallel::AddChunkLosses(const BatchPass& pass,
                                          const std::vector<at::Tensor>& outputs,
                                          Evaluation* evaluation) const {
  const std::vector<int64_t>& split = pass.split();
  for (size_t chunk = 0; chunk < split.size(); ++chunk) {
    // As the trainer weights them.
    const double weight = spec_.unweighted_mean
                              ? static_cast<double>(pass.rows()) / static_cast<double>(split.size())
                              : static_cast<double>(split[chunk]);
    BRAID_RETURN_IF_ERROR(
        evaluation->AddChunk(pass.ChunkOfOutputs(outputs, chunk), split[chunk], weight));
  }
  return absl::OkStatus();
}

absl::Status DataParallel::Evaluate(const Batch& batch, Evaluation* evaluation) {
  Run run(*this, batch);
  run.AddPasses(*this);
  int64_t start = 0;
  absl::Status status = RunWorkerGroup(
      roster_.workers, run.groups, [&](WorkerGroup& worker_group, size_t rank) -> absl::Status {
        for (const auto& pass : run.passes) {
          BRAID_RETURN_IF_ERROR(
              pass->Forward(worker_group, rank, /*keep_graph=*/false, &run.times));
          if (rank == roster_.output_rank) {
            BRAID_RETURN_IF_ERROR(
                run.times.Measure(worker_group, rank, Phase::kLoss, [&]() -> absl::Status {
                  BRAID_ASSIGN_OR_RETURN(const std::vector<at::Tensor> outputs,
                                         pass->GatherOutputs());
                  return spec_.loss_mode == LossMode::kModel
                             ? AddChunkLosses(*pass, outputs, evaluation)
                             : evaluation->Add(outputs, batch.targets, start, pass->rows());
                }));
            start += pass->rows();
          }
        }
        return absl::OkStatus();
      });
  // A graph that is kept for Backward() stays.
  ResetBuffers();
  return status;
}

void DataParallel::DropKept() {
  if (kept_ == nullptr) {
    return;
  }
  for (const std::unique_ptr<Stage>& stage : stages_) {
    RunOnEach(stage->workers(), Phase::kBackward, [&](size_t r) {
      stage->replica(r).DropGraph();
      return absl::OkStatus();
    }).IgnoreError();  // frees memory
  }
  kept_.reset();
  kept_batch_.reset();
}

}  // namespace braid
