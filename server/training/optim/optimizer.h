// Updates a replica's flat parameters with the formulas of torch.optim.
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

// One update: the parameters and the values to update them with.
struct UpdatePlan {
  // Parameters of one buffer and one group that have the same number of updates.
  struct Batch {
    size_t buffer = 0;
    size_t group = 0;
    int64_t updates = 0;  // before this one
    GroupValues values;
    std::vector<Slice> ranges;  // of the buffer; adjacent ranges are merged
  };
  std::vector<Batch> batches;
  std::vector<size_t> parameters;
};

// Holds the optimizer's state, flat like the parameters. Owned by a stage. An update is
//   Plan() → Prepare() → Apply(), one call per part → Commit()
// Thread-compatible; several threads may call Plan() and Apply() at the same time.
class Optimizer {
 public:
  // `parameters` and `groups` describe the same parameters, in the same order.
  Optimizer(const OptimizerSpec& spec, const ParameterGroups& groups,
            const FlatParameters& parameters);

  // Plans an update of the parameters with a gradient (`reached`). The others, and frozen ones,
  // keep value and state, like PyTorch's where the gradient is None. `values`: one per group.
  UpdatePlan Plan(const std::vector<bool>& reached, const std::vector<GroupValues>& values) const;

  // Allocates the state that the plan needs and that does not exist yet, on the parameters' device.
  void Prepare(const UpdatePlan& plan);

  // Applies part `part` of `parts` of the update, cut by SliceOf(). Parts may run at the same time;
  // together they give the same bits as part 0 of 1.
  void Apply(const FlatParameters& parameters, const UpdatePlan& plan, size_t part,
             size_t parts) const;

  // Counts the update. Call it once all parts have been applied.
  void Commit(const UpdatePlan& plan);

  // Returns the number of updates of each parameter.
  const std::vector<int64_t>& updates() const { return updates_; }
  // One parameter's part of the state, for checkpoints: a view, shaped like the parameter, named
  // "<parameter>.<torch.optim's name>": "fc.weight.exp_avg".
  struct StateView {
    std::string name;
    at::Tensor value;
  };
  // Returns the state of all parameters that are not frozen. `parameters`: of the replica.
  std::vector<StateView> state(const std::vector<Parameter>& parameters) const;
  // Restores state() and updates(), copying from any device. State of parameters without updates
  // may be missing. FAILED_PRECONDITION if it belongs to another optimizer or model, DATA_LOSS if a
  // part is missing or duplicated. Changes nothing on error.
  absl::Status Load(const std::vector<Parameter>& parameters, const std::vector<StateView>& state,
                    const std::vector<int64_t>& updates);
  // Returns the status that Load() would return.
  absl::Status Check(const std::vector<Parameter>& parameters, const std::vector<StateView>& state,
                     const std::vector<int64_t>& updates) const;

 private:
  using Tensors = std::vector<at::Tensor>;

  // Tensors by the state's name, one per parameter; undefined: no state.
  using StateByName = std::map<std::string, Tensors>;
  absl::StatusOr<StateByName> Sort(const std::vector<Parameter>& parameters,
                                   const std::vector<StateView>& views) const;
  // Returns the initial value of a state.
  double Initial(const std::string& name) const;
  // Returns the state `name`, allocated if it does not exist.
  Tensors& Made(const std::string& name);
  // Returns parameter `p`'s part of `buffers`.
  at::Tensor ViewOf(const Tensors& buffers, size_t p, at::IntArrayRef shape) const;

  // Immutable.
  const OptimizerSpec spec_;
  const ParameterGroups groups_;
  const std::vector<FlatSlot> slots_;
  const Tensors values_;                  // flat parameters: templates of the state
  const std::set<std::string> required_;  // torch.optim's names of the state of every update

  std::vector<int64_t> updates_;  // of each parameter
  // One tensor per flat buffer.
  StateByName state_;
};

}  // namespace braid
