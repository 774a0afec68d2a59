// Updates a replica's flat parameters, by the rules of torch.optim.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/parallel/flat_parameters.h"
#include "server/parallel/flat_slice.h"
#include "server/parallel/replica.h"
#include "server/training/optim/parameter_groups.h"
#include "server/training/optim/schedule.h"
#include "server/training/trainer_spec.h"

namespace braid {

// One update: what is updated, and with which values.
struct UpdatePlan {
  // Parameters of one buffer and one group that have been updated equally often.
  struct Batch {
    size_t buffer = 0;
    size_t group = 0;
    int64_t updates = 0;  // before this one
    GroupValues values;
    std::vector<Slice> ranges;  // of the buffer; neighbours are one
  };
  std::vector<Batch> batches;
  std::vector<size_t> parameters;
};

// Holds the optimizer's state, flat like the parameters. An update is
//   Plan() → Prepare() → Apply(), one call a part → Commit()
// Plan() and Apply() may run at the same time; the others want no one beside them.
class Optimizer {
 public:
  // `parameters` and `groups` are of the same parameters, in one order.
  Optimizer(const OptimizerSpec& spec, const ParameterGroups& groups,
            const FlatParameters& parameters);

  // Of the parameters that were `reached`: the others, and those that are frozen, keep value and
  // state, as PyTorch's do where the gradient is None. `values`: one a group, by the schedule.
  UpdatePlan Plan(const std::vector<bool>& reached, const std::vector<GroupValues>& values) const;

  // Makes the state that the plan's values need and that does not exist yet, on the parameters'
  // device.
  void Prepare(const UpdatePlan& plan);

  // Part `part` of `parts` of the update, cut as by SliceOf(). Parts may run at the same time; all
  // together give, bit for bit, what part 0 of 1 gives.
  void Apply(const FlatParameters& parameters, const UpdatePlan& plan, size_t part,
             size_t parts) const;

  // Counts the update, once all its parts have been applied.
  void Commit(const UpdatePlan& plan);

  // How often each parameter has been updated.
  const std::vector<int64_t>& updates() const { return updates_; }
  // For checkpoints. One parameter's share of the state: a view, shaped like the parameter, named
  // "<parameter>.<torch.optim's name>": "fc.weight.exp_avg".
  struct StateView {
    std::string name;
    at::Tensor value;
  };
  // All that there is, but for frozen parameters. `parameters`: the replica's.
  std::vector<StateView> state(const std::vector<Parameter>& parameters) const;
  // Goes to where state() and updates() stood; copies, from any device. Of a parameter without
  // updates it may be left out. FAILED_PRECONDITION if it is another optimizer's or another
  // model's, DATA_LOSS if some is missing or there twice; nothing has changed then.
  absl::Status Load(const std::vector<Parameter>& parameters, const std::vector<StateView>& state,
                    const std::vector<int64_t>& updates);
  // What Load() would return.
  absl::Status Check(const std::vector<Parameter>& parameters, const std::vector<StateView>& state,
                     const std::vector<int64_t>& updates) const;

 private:
  using Tensors = std::vector<at::Tensor>;

  // `views` by the state's name, one tensor a parameter, undefined where there is none.
  using StateByName = std::map<std::string, Tensors>;
  absl::StatusOr<StateByName> Sort(const std::vector<Parameter>& parameters,
                                   const std::vector<StateView>& views) const;
  // What a piece of state begins with.
  double Initial(const std::string& name) const;
  // Makes it unless it exists.
  Tensors& Made(const std::string& name);
  // Parameter `p`'s share.
  at::Tensor ViewOf(const Tensors& buffers, size_t p, at::IntArrayRef shape) const;

  // Immutable.
  const OptimizerSpec spec_;
  const ParameterGroups groups_;
  const std::vector<FlatSlot> slots_;
  const Tensors values_;                  // the flat parameters: the state is made like them
  const std::set<std::string> required_;  // torch.optim's names of what every update needs

  std::vector<int64_t> updates_;  // of each parameter
  // One tensor a flat buffer.
  StateByName state_;
};

}  // namespace braid
