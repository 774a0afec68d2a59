// Reads the graphs of a part of an exported pair: train.json says what each tensor is.
#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/base/json_fields.h"
#include "server/models/pair/pair_manifest.h"

namespace braid {

// Returns the role's name in train.json: "parameter_gradient".
absl::string_view PairRoleName(PairRole role);

// What is known, by name.
using PairNames = std::map<std::string, size_t>;

// FAILED_PRECONDITION, saying that `field` names something unknown.
absl::StatusOr<size_t> FindPairName(const PairNames& names, const std::string& name,
                                    const JsonField& field);
// With the number of names before it. FAILED_PRECONDITION if it is there already.
absl::Status AddPairName(const std::string& name, const JsonField& field, PairNames* names);

// Of one program, which the errors, FAILED_PRECONDITION all, say the place in.
class PairGraphReader {
 public:
  // `part`: with its inputs and outputs.
  PairGraphReader(const std::vector<PairEntry>& state, const PairPart& part);

  absl::StatusOr<PairGraph> Eval(const JsonField& program);
  absl::StatusOr<PairGraph> Forward(const JsonField& program);
  // After Forward().
  absl::StatusOr<PairGraph> Backward(const JsonField& program);
  // How many tensors the forward graph saves.
  size_t saved() const { return saved_.size(); }

 private:
  absl::StatusOr<PairGraph> Read(const JsonField& program, const char* name,
                                 const std::set<PairRole>& in, const std::set<PairRole>& out);
  absl::StatusOr<std::vector<PairSlot>> Slots(const JsonField& graph, const char* name,
                                              const std::set<PairRole>& allowed);
  absl::StatusOr<PairSlot> Slot(const JsonField& item, const std::set<PairRole>& allowed,
                                absl::string_view side);
  const PairNames& NamesOf(PairRole role) const;

  const std::vector<PairEntry>& state_;
  PairNames parameters_;
  PairNames buffers_;
  PairNames inputs_;
  PairNames outputs_;
  PairNames saved_;
  std::set<size_t> new_buffers_;
};

}  // namespace braid
