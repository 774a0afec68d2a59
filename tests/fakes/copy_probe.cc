#include "tests/fakes/copy_probe.h"

#include <optional>

#include "tests/fakes/puppet_queue.h"

namespace braid {

class CopyProbe::Impl {
 public:
  explicit Impl(int64_t max_batch_size)
      : queue_(MakeQueue(
            &fleet_, PuppetConfig(max_batch_size),
            [this](const std::vector<at::Tensor>& inputs) { return Forward(inputs[0]); })) {
    first_.emplace(fleet_.worker(0));
    second_.emplace(fleet_.worker(1));
  }

  RequestQueue& queue() { return *queue_; }
  void Open() {
    first_.reset();
    second_.reset();
  }
  std::vector<Memory> inputs() const {
    const absl::MutexLock lock(&mu_);
    return inputs_;
  }
  std::vector<Memory> outputs() const {
    const absl::MutexLock lock(&mu_);
    std::vector<Memory> memory;
    for (const at::Tensor& output : outputs_) {
      memory.push_back(Of(output));
    }
    return memory;
  }

 private:
  static Memory Of(const at::Tensor& tensor) { return {tensor.data_ptr(), tensor.nbytes()}; }

  absl::StatusOr<std::vector<at::Tensor>> Forward(const at::Tensor& input) {
    const absl::MutexLock lock(&mu_);
    inputs_.push_back(Of(input));
    outputs_.push_back(input.mul(2));
    return std::vector<at::Tensor>{outputs_.back()};
  }

  mutable absl::Mutex mu_;
  std::vector<Memory> inputs_ ABSL_GUARDED_BY(mu_);
  std::vector<at::Tensor> outputs_ ABSL_GUARDED_BY(mu_);
  WorkerFleet fleet_{2};
  const std::shared_ptr<BatchQueue> queue_;
  std::optional<WorkerBlock> first_;
  std::optional<WorkerBlock> second_;
};

CopyProbe::CopyProbe(int64_t max_batch_size) : impl_(std::make_unique<Impl>(max_batch_size)) {}
CopyProbe::~CopyProbe() = default;
RequestQueue& CopyProbe::queue() { return impl_->queue(); }
void CopyProbe::Open() { impl_->Open(); }
std::vector<CopyProbe::Memory> CopyProbe::inputs() const { return impl_->inputs(); }
std::vector<CopyProbe::Memory> CopyProbe::outputs() const { return impl_->outputs(); }

}  // namespace braid
