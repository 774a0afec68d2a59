#include "server/models/pair/pair_graph_reader.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/base/status.h"
#include "server/base/text.h"

namespace braid {
namespace {

struct RoleName {
  const char* name;
  PairRole role;
};
constexpr std::array kRoles = {
    RoleName{"parameter", PairRole::kParameter},
    RoleName{"buffer", PairRole::kBuffer},
    RoleName{"input", PairRole::kInput},
    RoleName{"new_buffer", PairRole::kNewBuffer},
    RoleName{"output", PairRole::kOutput},
    RoleName{"saved", PairRole::kSaved},
    RoleName{"output_gradient", PairRole::kOutputGradient},
    RoleName{"parameter_gradient", PairRole::kParameterGradient},
    RoleName{"input_gradient", PairRole::kInputGradient},
};

}  // namespace

absl::string_view PairRoleName(PairRole role) {
  return std::find_if(kRoles.begin(), kRoles.end(),
                      [role](const RoleName& known) { return known.role == role; })
      ->name;
}

absl::StatusOr<size_t> FindPairName(const PairNames& names, const std::string& name,
                                    const JsonField& field) {
  const auto found = names.find(name);
  if (found == names.end()) {
    return field.Error(absl::StrCat("'", Excerpt(name), "' is not known"));
  }
  return found->second;
}

absl::Status AddPairName(const std::string& name, const JsonField& field, PairNames* names) {
  if (!names->emplace(name, names->size()).second) {
    return field.Error(absl::StrCat("'", Excerpt(name), "' is there twice"));
  }
  return absl::OkStatus();
}

PairGraphReader::PairGraphReader(const std::vector<PairEntry>& state, const PairPart& part)
    : state_(state) {
  for (size_t i = 0; i < state.size(); ++i) {
    (state[i].is_parameter ? parameters_ : buffers_)[state[i].name] = state[i].tensor;
  }
  for (size_t i = 0; i < part.inputs.size(); ++i) {
    inputs_[part.inputs[i].name] = i;
  }
  for (size_t o = 0; o < part.outputs.size(); ++o) {
    outputs_[part.outputs[o].name] = o;
  }
}

absl::StatusOr<PairGraph> PairGraphReader::Eval(const JsonField& program) {
  return Read(program, "eval", {PairRole::kParameter, PairRole::kBuffer, PairRole::kInput},
              {PairRole::kOutput});
}
absl::StatusOr<PairGraph> PairGraphReader::Forward(const JsonField& program) {
  saved_.clear();
  return Read(program, "forward", {PairRole::kParameter, PairRole::kBuffer, PairRole::kInput},
              {PairRole::kNewBuffer, PairRole::kOutput, PairRole::kSaved});
}
absl::StatusOr<PairGraph> PairGraphReader::Backward(const JsonField& program) {
  return Read(program, "backward",
              {PairRole::kParameter, PairRole::kBuffer, PairRole::kInput, PairRole::kNewBuffer,
               PairRole::kOutput, PairRole::kSaved, PairRole::kOutputGradient},
              {PairRole::kParameterGradient, PairRole::kInputGradient});
}

absl::StatusOr<PairGraph> PairGraphReader::Read(const JsonField& program, const char* name,
                                                const std::set<PairRole>& in,
                                                const std::set<PairRole>& out) {
  PairGraph graph;
  BRAID_ASSIGN_OR_RETURN(const JsonField object, program.Get(name));
  BRAID_ASSIGN_OR_RETURN(const JsonField graph_name, object.Get("graph"));
  BRAID_ASSIGN_OR_RETURN(graph.name, graph_name.String());
  BRAID_ASSIGN_OR_RETURN(graph.inputs, Slots(object, "inputs", in));
  BRAID_ASSIGN_OR_RETURN(graph.outputs, Slots(object, "outputs", out));
  // What a graph returns it returns once, and all outputs.
  std::set<std::pair<PairRole, size_t>> returned;
  size_t outputs = 0;
  for (const PairSlot& slot : graph.outputs) {
    const bool tied = slot.role == PairRole::kParameterGradient;
    if (!returned.emplace(slot.role, slot.index).second && !tied) {
      return object.Error("a tensor is there twice among its outputs");
    }
    outputs += slot.role == PairRole::kOutput ? 1 : 0;
  }
  if (out.contains(PairRole::kOutput) && outputs != outputs_.size()) {
    return object.Error(absl::StrCat("has ", outputs, " of the ", outputs_.size(), " outputs"));
  }
  for (const PairSlot& slot : graph.inputs) {
    const bool of_forward = slot.role == PairRole::kNewBuffer;
    if (of_forward && !new_buffers_.contains(slot.index)) {
      return object.Error(
          absl::StrCat("takes a buffer '", state_[slot.index].name, "' that forward leaves"));
    }
  }
  return graph;
}

absl::StatusOr<std::vector<PairSlot>> PairGraphReader::Slots(const JsonField& graph,
                                                             const char* name,
                                                             const std::set<PairRole>& allowed) {
  BRAID_ASSIGN_OR_RETURN(const JsonField list, graph.Get(name));
  BRAID_ASSIGN_OR_RETURN(const std::vector<JsonField> items, list.Items());
  std::vector<PairSlot> slots;
  for (const JsonField& item : items) {
    BRAID_ASSIGN_OR_RETURN(PairSlot slot, Slot(item, allowed, absl::string_view(name)));
    slots.push_back(std::move(slot));
  }
  return slots;
}

absl::StatusOr<PairSlot> PairGraphReader::Slot(const JsonField& item,
                                               const std::set<PairRole>& allowed,
                                               absl::string_view side) {
  BRAID_ASSIGN_OR_RETURN(const JsonField role_field, item.Get("role"));
  BRAID_ASSIGN_OR_RETURN(const std::string role_name, role_field.String());
  const auto role = std::find_if(kRoles.begin(), kRoles.end(),
                                 [&](const RoleName& known) { return known.name == role_name; });
  if (role == kRoles.end() || !allowed.contains(role->role)) {
    return role_field.Error(
        absl::StrCat("'", Excerpt(role_name), "' is no role that one of its ", side, " can have"));
  }
  BRAID_ASSIGN_OR_RETURN(const JsonField name_field, item.Get("name"));
  BRAID_ASSIGN_OR_RETURN(const std::string name, name_field.String());
  PairSlot slot;
  slot.role = role->role;
  const bool made_here = side == "outputs";
  if (made_here && slot.role == PairRole::kSaved) {
    BRAID_RETURN_IF_ERROR(AddPairName(name, name_field, &saved_));
  }
  BRAID_ASSIGN_OR_RETURN(slot.index, FindPairName(NamesOf(slot.role), name, name_field));
  if (made_here && slot.role == PairRole::kNewBuffer) {
    new_buffers_.insert(slot.index);
  }
  if (slot.role == PairRole::kParameterGradient && !state_[slot.index].trainable) {
    return name_field.Error(absl::StrCat("'", Excerpt(name), "' is not trainable"));
  }
  if (slot.role == PairRole::kParameterGradient || slot.role == PairRole::kInputGradient) {
    BRAID_ASSIGN_OR_RETURN(const JsonField depends, item.Get("depends_on"));
    BRAID_ASSIGN_OR_RETURN(const std::vector<std::string> outputs, depends.Strings());
    if (outputs.empty()) {
      return depends.Error("is empty; expected the outputs that the gradient comes from");
    }
    for (const std::string& output : outputs) {
      BRAID_ASSIGN_OR_RETURN(slot.depends_on.emplace_back(),
                             FindPairName(outputs_, output, depends));
    }
    if (item.Has("additive")) {
      BRAID_ASSIGN_OR_RETURN(const JsonField additive, item.Get("additive"));
      BRAID_ASSIGN_OR_RETURN(slot.additive, additive.Boolean());
    }
  }
  return slot;
}

const PairNames& PairGraphReader::NamesOf(PairRole role) const {
  switch (role) {
    case PairRole::kParameter:
    case PairRole::kParameterGradient:
      return parameters_;
    case PairRole::kBuffer:
    case PairRole::kNewBuffer:
      return buffers_;
    case PairRole::kInput:
    case PairRole::kInputGradient:
      return inputs_;
    case PairRole::kOutput:
    case PairRole::kOutputGradient:
      return outputs_;
    case PairRole::kSaved:
      break;
  }
  return saved_;
}

}  // namespace braid
