#include "server/devices/cuda/nccl_clique.h"

#include <atomic>
#include <deque>
#include <utility>

#include "ATen/cuda/CUDAEvent.h"
#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "c10/cuda/CUDAStream.h"
#include "server/base/status.h"
#include "server/devices/cuda/cuda_status.h"

namespace braid {
namespace {

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
      return absl::UnimplementedError(
          absl::StrCat("NCCL does not support dtype ", c10::toString(type)));
  }
}

class CudaNcclClique final : public NcclClique {
 public:
  explicit CudaNcclClique(std::vector<int> gpus) : gpus_(std::move(gpus)), ready_(gpus_.size()) {}
  CudaNcclClique(const CudaNcclClique&) = delete;
  CudaNcclClique& operator=(const CudaNcclClique&) = delete;

  ~CudaNcclClique() override {
    for (ncclComm_t communicator : communicators_) {
      if (!aborted_) {
        ncclCommDestroy(communicator);
      }
    }
  }

  absl::Status Init() {
    for (const int gpu : gpus_) {
      streams_.push_back(c10::cuda::getStreamFromPool(/*isHighPriority=*/true,
                                                      static_cast<c10::DeviceIndex>(gpu)));
    }
    std::vector<ncclComm_t> communicators(gpus_.size());
    BRAID_RETURN_IF_ERROR(BRAID_NCCL(
        ncclCommInitAll(communicators.data(), static_cast<int>(gpus_.size()), gpus_.data())));
    communicators_ = std::move(communicators);
    return absl::OkStatus();
  }

  absl::Status Begin(CollectiveKind kind, const std::vector<at::Tensor>& tensors) override {
    BRAID_ASSIGN_OR_RETURN(const ncclDataType_t type, NcclType(tensors[0].scalar_type()));
    BRAID_RETURN_IF_ERROR(BRAID_NCCL(ncclGroupStart()));
    absl::Status status;
    for (size_t rank = 0; rank < tensors.size(); ++rank) {
      status.Update(BeginRank(kind, rank, tensors[rank], type));
    }
    status.Update(BRAID_NCCL(ncclGroupEnd()));
    return status;
  }

  absl::Status MarkReady(size_t rank, size_t index) override {
    ReadyEvent(rank, index).record();
    return absl::OkStatus();
  }

  absl::Status FollowReady(size_t index) override {
    for (size_t rank = 0; rank < streams_.size(); ++rank) {
      ReadyEvent(rank, index).block(streams_[rank]);
    }
    return absl::OkStatus();
  }

  absl::Status Wait(size_t rank) override {
    return BRAID_CUDA(cudaStreamSynchronize(streams_[rank]));
  }

  absl::StatusOr<bool> Running() override {
    bool running = false;
    for (size_t rank = 0; rank < streams_.size(); ++rank) {
      ncclResult_t error = ncclSuccess;
      BRAID_RETURN_IF_ERROR(BRAID_NCCL(ncclCommGetAsyncError(communicators_[rank], &error)));
      if (error != ncclInProgress) {
        BRAID_RETURN_IF_ERROR(NcclStatus(error, "ncclCommGetAsyncError"));
      }
      const cudaError_t stream = cudaStreamQuery(streams_[rank]);
      running = running || stream == cudaErrorNotReady;
      if (stream != cudaErrorNotReady) {
        BRAID_RETURN_IF_ERROR(CudaStatus(stream, "cudaStreamQuery"));
      }
    }
    return running;
  }

  // A thread may be stuck in Begin(). NCCL ends its call; the members that it uses stay valid.
  void Abort() override {
    aborted_ = true;
    for (ncclComm_t communicator : communicators_) {
      ncclCommAbort(communicator);
    }
  }

 private:
  absl::Status BeginRank(CollectiveKind kind, size_t rank, const at::Tensor& tensor,
                         ncclDataType_t type) {
    void* const data = tensor.data_ptr();
    const auto count = static_cast<size_t>(tensor.numel());
    const ncclComm_t communicator = communicators_[rank];
    switch (kind) {
      case CollectiveKind::kBroadcast:
        return BRAID_NCCL(
            ncclBroadcast(data, data, count, type, /*root=*/0, communicator, streams_[rank]));
      case CollectiveKind::kReduce:
        return BRAID_NCCL(
            ncclReduce(data, data, count, type, ncclSum, /*root=*/0, communicator, streams_[rank]));
      case CollectiveKind::kAllReduce:
        return BRAID_NCCL(
            ncclAllReduce(data, data, count, type, ncclSum, communicator, streams_[rank]));
    }
    return absl::InternalError("unknown collective");
  }

  // Events stay where they are, because ranks add theirs while a sum follows earlier ones.
  at::cuda::CUDAEvent& ReadyEvent(size_t rank, size_t index) ABSL_LOCKS_EXCLUDED(mu_) {
    const absl::MutexLock lock(&mu_);
    std::deque<at::cuda::CUDAEvent>& events = ready_[rank];
    while (events.size() <= index) {
      events.emplace_back();
    }
    return events[index];
  }

  const std::vector<int> gpus_;
  std::vector<c10::cuda::CUDAStream> streams_;
  std::vector<ncclComm_t> communicators_;
  std::atomic<bool> aborted_{false};  // ncclCommAbort() has freed the communicators
  absl::Mutex mu_;
  // By rank and sum.
  std::vector<std::deque<at::cuda::CUDAEvent>> ready_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

absl::StatusOr<std::unique_ptr<NcclClique>> MakeNcclClique(std::vector<int> gpus) {
  auto clique = std::make_unique<CudaNcclClique>(std::move(gpus));
  BRAID_RETURN_IF_ERROR(clique->Init());
  return clique;
}

}  // namespace braid
