#include "server/devices/cuda/nccl_communicator.h"

#include <utility>

#include "ATen/cuda/CUDAEvent.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "c10/cuda/CUDAGuard.h"
#include "c10/cuda/CUDAStream.h"
#include "server/base/status.h"
#include "server/devices/cuda/cuda_status.h"
#include "server/devices/run_on.h"
#include "server/devices/worker.h"

namespace braid {
namespace {

// Of two collectives over the same GPUs, begun in another order on each, both would wait for ever.
ABSL_CONST_INIT absl::Mutex one_collective_at_a_time(absl::kConstInit);

absl::StatusOr<ncclDataType_t> NcclType(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return ncclFloat32;
    case at::kDouble:
      return ncclFloat64;
    case at::kHalf:
      return ncclFloat16;
    case at::kBFloat16:
      return ncclBfloat16;
    case at::kLong:
      return ncclInt64;
    case at::kInt:
      return ncclInt32;
    case at::kByte:
    case at::kBool:
      return ncclUint8;
    default:
      return absl::UnimplementedError(absl::StrCat("NCCL has no type for ", c10::toString(type)));
  }
}

class NcclCommunicator final : public Communicator {
 public:
  explicit NcclCommunicator(std::vector<Worker*> workers) : workers_(std::move(workers)) {}

  ~NcclCommunicator() override {
    for (ncclComm_t communicator : communicators_) {
      ncclCommDestroy(communicator);
    }
  }

  absl::Status Init() {
    std::vector<int> gpus;
    for (const Worker* worker : workers_) {
      gpus.push_back(worker->torch_device().index());
      streams_.push_back(
          c10::cuda::getStreamFromPool(/*isHighPriority=*/true, worker->torch_device().index()));
    }
    communicators_.resize(gpus.size());
    ready_.resize(gpus.size());
    return BRAID_NCCL(
        ncclCommInitAll(communicators_.data(), static_cast<int>(gpus.size()), gpus.data()));
  }

  absl::Status Broadcast(const std::vector<at::Tensor>& tensors) override {
    return Run(Phase::kBroadcast, tensors, [&](size_t r, ncclDataType_t type) {
      return ncclBroadcast(tensors[r].data_ptr(), tensors[r].data_ptr(), tensors[r].numel(), type,
                           /*root=*/0, communicators_[r], streams_[r]);
    });
  }

  absl::Status Reduce(const std::vector<at::Tensor>& tensors) override {
    return Run(Phase::kReduce, tensors, [&](size_t r, ncclDataType_t type) {
      return ncclReduce(tensors[r].data_ptr(), tensors[r].data_ptr(), tensors[r].numel(), type,
                        ncclSum, /*root=*/0, communicators_[r], streams_[r]);
    });
  }

  absl::Status AllReduce(const std::vector<at::Tensor>& tensors) override {
    return Run(Phase::kReduce, tensors, [&](size_t r, ncclDataType_t type) {
      return ncclAllReduce(tensors[r].data_ptr(), tensors[r].data_ptr(), tensors[r].numel(), type,
                           ncclSum, communicators_[r], streams_[r]);
    });
  }

  absl::Status MarkReady(size_t rank, size_t index) override {
    std::vector<at::cuda::CUDAEvent>& events = ready_[rank];
    if (events.size() <= index) {
      events.resize(index + 1);
    }
    return CatchTorch([&] {
      events[index].record();
      return absl::OkStatus();
    });
  }

  absl::Status BeginSum(size_t index, const std::vector<at::Tensor>& tensors, bool all) override {
    BRAID_RETURN_IF_ERROR(CatchTorch([&] {
      for (size_t r = 0; r < streams_.size(); ++r) {
        ready_[r][index].block(streams_[r]);
      }
      return absl::OkStatus();
    }));
    const absl::MutexLock lock(&one_collective_at_a_time);
    return Launch(tensors, [&](size_t r, ncclDataType_t type) {
      void* const data = tensors[r].data_ptr();
      const auto count = static_cast<size_t>(tensors[r].numel());
      return all ? ncclAllReduce(data, data, count, type, ncclSum, communicators_[r], streams_[r])
                 : ncclReduce(data, data, count, type, ncclSum, /*root=*/0, communicators_[r],
                              streams_[r]);
    });
  }

  absl::Status FollowSums(size_t rank) override {
    return CatchTorch([&] {
      at::cuda::CUDAEvent sums;
      sums.record(streams_[rank]);
      sums.block(c10::cuda::getCurrentCUDAStream());
      return absl::OkStatus();
    });
  }

 private:
  // One group of one call a rank.
  template <typename Call>
  absl::Status Launch(const std::vector<at::Tensor>& tensors, Call call) {
    BRAID_ASSIGN_OR_RETURN(const ncclDataType_t type, NcclType(tensors[0].scalar_type()));
    BRAID_RETURN_IF_ERROR(BRAID_NCCL(ncclGroupStart()));
    absl::Status status;
    for (size_t r = 0; r < tensors.size(); ++r) {
      status.Update(BRAID_NCCL(call(r, type)));
    }
    status.Update(BRAID_NCCL(ncclGroupEnd()));
    return status;
  }

  // The same, and waits for all streams.
  template <typename Call>
  absl::Status Run(Phase phase, const std::vector<at::Tensor>& tensors, Call call) {
    const absl::MutexLock lock(&one_collective_at_a_time);
    const absl::Time start = absl::Now();
    absl::Status status = Launch(tensors, call);
    for (const c10::cuda::CUDAStream& stream : streams_) {
      const c10::cuda::CUDAGuard guard(stream.device());
      status.Update(BRAID_CUDA(cudaStreamSynchronize(stream)));
    }
    for (Worker* worker : workers_) {
      worker->AddBusy(phase, absl::Now() - start);
    }
    return status;
  }

  const std::vector<Worker*> workers_;
  std::vector<c10::cuda::CUDAStream> streams_;
  std::vector<ncclComm_t> communicators_;
  // By rank and sum; each rank's worker makes its own.
  std::vector<std::vector<at::cuda::CUDAEvent>> ready_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> MakeNccl(std::vector<Worker*> workers) {
  auto communicator = std::make_unique<NcclCommunicator>(std::move(workers));
  BRAID_RETURN_IF_ERROR(communicator->Init());
  return communicator;
}

}  // namespace braid
