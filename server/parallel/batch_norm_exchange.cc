#include "server/parallel/batch_norm_exchange.h"

#include "server/base/status.h"

namespace braid {

BatchNormExchange::BatchNormExchange(size_t members)
    : slots_{std::vector<Slot>(members), std::vector<Slot>(members)}, rounds_(members) {}

absl::StatusOr<std::vector<BatchNormExchange::Part>> BatchNormExchange::AllGather(
    const BatchNormSeat& seat, const Part& part) {
  uint64_t round = 0;
  {
    const absl::MutexLock lock(&mu_);
    round = ++rounds_[seat.member];
    slots_[round % 2][seat.member] = {round, part};
  }
  BRAID_RETURN_IF_ERROR(seat.worker_group.Barrier(seat.group, seat.rank));
  std::vector<Part> parts;
  {
    const absl::MutexLock lock(&mu_);
    for (const Slot& slot : slots_[round % 2]) {
      if (slot.round != round || slot.part.values.sizes() != part.values.sizes()) {
        return absl::FailedPreconditionError("the replicas came to different batch norms");
      }
      parts.push_back(slot.part);
    }
  }
  for (Part& each : parts) {
    each.values = each.values.to(part.values.device());
  }
  return parts;
}

}  // namespace braid
