// Learning-rate schedule: the values that each update uses.
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

// Values of one update for the parameters of one group.
struct GroupValues {
  double lr = 0;
  double weight_decay = 0;
  double momentum = 0;  // Adam and AdamW: beta1
};

// Counts the updates of a trainer, which owns it. Thread-compatible.
class Schedule {
 public:
  // `optimizer` has passed CheckOptimizer(). INVALID_ARGUMENT naming the wrong field
  // ("schedule.cosine.t_max", "parameter_groups[0].momentum").
  static absl::StatusOr<Schedule> Create(const ScheduleSpec& spec, const OptimizerSpec& optimizer,
                                         const ParameterGroups& groups);

  // Returns the values of the next update by ParameterGroups::group_of(), with `changes` instead of
  // the optimizer's own. INVALID_ARGUMENT naming a field ("hyper_parameters.lr") that is out of
  // range or does not apply to this trainer; FAILED_PRECONDITION if a one-cycle schedule has ended.
  absl::StatusOr<std::vector<GroupValues>> Next(const HyperParameters& changes) const;

  // Advances after an update. `loss`: the mean loss since the last update, if known. `metric`: sent
  // by the client.
  void Advance(std::optional<double> loss, std::optional<double> metric);
  // Records the client's metric of a skipped update, which only a plateau schedule uses.
  void RecordMetric(double metric);

  // Returns the state for a checkpoint. May contain infinities.
  std::vector<double> state() const;
  // Restores the state() of a schedule with the same spec. On DATA_LOSS nothing changes.
  absl::Status Load(const std::vector<double>& state);

 private:
  Schedule(const ScheduleSpec& spec, const OptimizerSpec& optimizer, const ParameterGroups& groups);

  absl::Status Check(const HyperParameters& changes) const;
  absl::Status CheckMomentum(double momentum) const;
  void AdvancePlateau(std::optional<double> loss, std::optional<double> metric);

  // Constant after Create().
  ScheduleSpec spec_;
  OptimizerSpec optimizer_;
  std::vector<ParameterGroupSpec> groups_;
  std::vector<GroupValues> base_;  // one per group

  int64_t updates_ = 0;
  std::vector<double> lrs_;  // of the next update, one per group
  std::optional<Plateau> plateau_;
};

}  // namespace braid
