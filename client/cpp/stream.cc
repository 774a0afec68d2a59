#include "client/cpp/stream.h"

#include <limits>
#include <utility>

#include "client/cpp/messages.h"

namespace braid::client {
namespace {

LossResult TakeLoss(Pipeline::Reply&& reply) {
  LossResult result = ReadLoss(std::move(reply.message));
  result.reply_lost = reply.lost;
  if (reply.lost) result.loss = std::numeric_limits<double>::quiet_NaN();
  return result;
}

OperationResult TakeStatus(Pipeline::Reply&& reply) {
  OperationResult result = ReadStatus(reply.message);
  result.reply_lost = reply.lost;
  return result;
}

int64_t TakeVersion(Pipeline::Reply&& reply) { return ReadVersion(reply.message); }

}  // namespace

Stream::Stream(std::shared_ptr<Handle> handle, const StreamOptions& options)
    : handle_(std::move(handle)),
      pipeline_(*handle_, options.depth, options.timeout.value_or(handle_->policy().timeout)) {
  handle_->set_pipeline(&pipeline_);
}

Stream::~Stream() {
  pipeline_.Abandon();
  Release();
}

template <typename Result>
Stream::Future<Result> Stream::Submit(v1::StreamRequest&& operation,
                                      Result (*read)(Pipeline::Reply&&)) {
  std::promise<absl::StatusOr<Result>> promise;
  Future<Result> future = promise.get_future();
  pipeline_.Submit(std::move(operation), [promise = std::move(promise),
                                          read](absl::StatusOr<Pipeline::Reply> reply) mutable {
    if (reply.ok()) {
      promise.set_value(read(*std::move(reply)));
    } else {
      promise.set_value(reply.status());
    }
  });
  return future;
}

Stream::Future<LossResult> Stream::Step(std::vector<Tensor> inputs, std::vector<Tensor> targets,
                                        const StepOptions& options) {
  return Submit(StepMessage(std::move(inputs), std::move(targets), options), TakeLoss);
}

Stream::Future<LossResult> Stream::ForwardBackward(std::vector<Tensor> inputs,
                                                   std::vector<Tensor> targets, bool report_split) {
  return Submit(ForwardBackwardMessage(std::move(inputs), std::move(targets), report_split),
                TakeLoss);
}

Stream::Future<OperationResult> Stream::OptimStep(const v1::HyperParameters& hyper_parameters) {
  return Submit(OptimStepMessage(hyper_parameters), TakeStatus);
}

Stream::Future<int64_t> Stream::Publish() { return Submit(PublishMessage(), TakeVersion); }

absl::Status Stream::Finish() {
  absl::Status status = pipeline_.End();
  Release();
  return status;
}

void Stream::Release() {
  if (finished_) return;
  finished_ = true;
  handle_->log().Limit(OperationLog::kUnlimited, OperationLog::kDefaultBytes);
  handle_->set_pipeline(nullptr);
}

}  // namespace braid::client
