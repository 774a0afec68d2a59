// The learning rates, and what goes with them, of each update.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/training/optim/parameter_groups.h"
#include "server/training/optim/plateau.h"
#include "server/training/trainer_spec.h"

namespace braid {

// What an update uses for the parameters of one group.
struct GroupValues {
  double lr = 0;
  double weight_decay = 0;
  double momentum = 0;  // Adam and AdamW: beta1
};

// Thread-compatible. Counts the updates.
class Schedule {
 public:
  // `optimizer` has passed CheckOptimizer(). INVALID_ARGUMENT naming the field
  // ("schedule.cosine.t_max", "parameter_groups[0].momentum") that is wrong.
  static absl::StatusOr<Schedule> Create(const ScheduleSpec& spec, const OptimizerSpec& optimizer,
                                         const ParameterGroups& groups);

  // What the next update uses, one for each group, numbered as by group_of(), with `changes` in
  // place of the optimizer's own. INVALID_ARGUMENT naming the field ("hyper_parameters.lr") that is
  // out of range or not this trainer's; FAILED_PRECONDITION if a one-cycle schedule has ended.
  absl::StatusOr<std::vector<GroupValues>> Next(const HyperParameters& changes) const;

  // After an update. `loss`: the mean of the losses since the last one, if it is known; `metric`:
  // the client's.
  void Advance(std::optional<double> loss, std::optional<double> metric);
  // The client's metric, with an update that was skipped: only a plateau looks at it.
  void Look(double metric);

  // All that a checkpoint needs to go on from here, bit for bit. May hold infinities.
  std::vector<double> state() const;
  // Of a schedule of the same spec. DATA_LOSS, changing nothing, if it is none.
  absl::Status Load(const std::vector<double>& state);

 private:
  Schedule(const ScheduleSpec& spec, const OptimizerSpec& optimizer, const ParameterGroups& groups);

  absl::Status Check(const HyperParameters& changes) const;
  absl::Status CheckMomentum(double momentum) const;
  void AdvancePlateau(std::optional<double> loss, std::optional<double> metric);

  // Not changed after Create().
  ScheduleSpec spec_;
  OptimizerSpec optimizer_;
  std::vector<ParameterGroupSpec> groups_;
  std::vector<GroupValues> base_;  // one a group

  int64_t updates_ = 0;
  std::vector<double> lrs_;  // of the next update, one a group
  std::optional<Plateau> plateau_;
};

}  // namespace braid
