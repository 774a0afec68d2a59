#include "server/models/pair_manifest.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "server/base/host_tensor.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/models/graph_tensors.h"
#include "server/models/json_fields.h"

namespace braid {
namespace {

using Names = std::map<std::string, size_t>;

constexpr char kFormat[] = "braid-pair";
constexpr int64_t kSchemaVersion = 1;

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

constexpr std::array<std::optional<c10::ScalarType>, 3> kPrecisions = {std::nullopt, c10::kBFloat16,
                                                                       c10::kHalf};

absl::StatusOr<DataType> ReadType(const JsonField& object) {
  BRAID_ASSIGN_OR_RETURN(const JsonField field, object.Get("dtype"));
  BRAID_ASSIGN_OR_RETURN(const std::string name, field.String());
  if (const std::optional<DataType> type = DataTypeFromName(name)) {
    return *type;
  }
  return field.Error(
      absl::StrCat("'", Excerpt(name), "' is no datatype; expected one of ", AllDataTypeNames()));
}

// -1 for an expression in the batch's size, where `expressions` allows one.
absl::StatusOr<std::vector<int64_t>> ReadShape(const JsonField& object, bool expressions) {
  BRAID_ASSIGN_OR_RETURN(const JsonField field, object.Get("shape"));
  BRAID_ASSIGN_OR_RETURN(const std::vector<JsonField> items, field.Items());
  std::vector<int64_t> shape;
  for (const JsonField& item : items) {
    if (expressions && item.is_string()) {
      shape.push_back(-1);
      continue;
    }
    BRAID_ASSIGN_OR_RETURN(const int64_t size, item.Integer());
    if (size < 0) {
      return item.Error(absl::StrCat(size, " is no size"));
    }
    shape.push_back(size);
  }
  return shape;
}

absl::StatusOr<size_t> Find(const Names& names, const std::string& name, const JsonField& field) {
  const auto found = names.find(name);
  if (found == names.end()) {
    return field.Error(absl::StrCat("'", Excerpt(name), "' is not known"));
  }
  return found->second;
}

absl::Status AddName(const std::string& name, const JsonField& field, Names* names) {
  if (!names->emplace(name, names->size()).second) {
    return field.Error(absl::StrCat("'", Excerpt(name), "' is there twice"));
  }
  return absl::OkStatus();
}

absl::StatusOr<PairEntry> ReadEntry(const JsonField& field, const std::vector<PairEntry>& before,
                                    const Names& names) {
  PairEntry entry;
  BRAID_ASSIGN_OR_RETURN(const JsonField name, field.Get("name"));
  BRAID_ASSIGN_OR_RETURN(entry.name, name.String());
  BRAID_ASSIGN_OR_RETURN(const JsonField kind, field.Get("kind"));
  BRAID_ASSIGN_OR_RETURN(const std::string kind_name, kind.String());
  if (kind_name != "parameter" && kind_name != "buffer") {
    return kind.Error(
        absl::StrCat("'", Excerpt(kind_name), "'; expected \"parameter\" or \"buffer\""));
  }
  entry.is_parameter = kind_name == "parameter";
  if (entry.is_parameter) {
    BRAID_ASSIGN_OR_RETURN(const JsonField trainable, field.Get("trainable"));
    BRAID_ASSIGN_OR_RETURN(entry.trainable, trainable.Boolean());
  }
  BRAID_ASSIGN_OR_RETURN(entry.type, ReadType(field));
  BRAID_ASSIGN_OR_RETURN(entry.shape, ReadShape(field, /*expressions=*/false));
  if (!BytesOf(entry.type, entry.shape)) {
    return field.Error("'shape' is larger than any memory");
  }
  if (entry.trainable && !IsFloatingPoint(entry.type)) {
    return field.Error("is trainable, but holds no floating-point numbers");
  }
  entry.tensor = before.size();
  if (field.Has("tied_to")) {
    BRAID_ASSIGN_OR_RETURN(const JsonField tied, field.Get("tied_to"));
    BRAID_ASSIGN_OR_RETURN(const std::string other, tied.String());
    BRAID_ASSIGN_OR_RETURN(const size_t found, Find(names, other, tied));
    const PairEntry& first = before[found];
    if (first.shape != entry.shape || first.type != entry.type ||
        first.is_parameter != entry.is_parameter) {
      return tied.Error(absl::StrCat("'", Excerpt(other), "' has another kind, datatype or shape"));
    }
    entry.tensor = first.tensor;
  }
  return entry;
}

absl::StatusOr<std::vector<PairTensor>> ReadTensors(const JsonField& part, const char* name) {
  BRAID_ASSIGN_OR_RETURN(const JsonField list, part.Get(name));
  BRAID_ASSIGN_OR_RETURN(const std::vector<JsonField> items, list.Items());
  std::vector<PairTensor> tensors;
  Names names;
  for (const JsonField& item : items) {
    PairTensor& tensor = tensors.emplace_back();
    BRAID_ASSIGN_OR_RETURN(const JsonField field, item.Get("name"));
    BRAID_ASSIGN_OR_RETURN(tensor.name, field.String());
    BRAID_RETURN_IF_ERROR(AddName(tensor.name, field, &names));
    BRAID_ASSIGN_OR_RETURN(tensor.type, ReadType(item));
    BRAID_ASSIGN_OR_RETURN(tensor.shape, ReadShape(item, /*expressions=*/true));
    if (item.Has("range")) {
      BRAID_ASSIGN_OR_RETURN(const JsonField range, item.Get("range"));
      BRAID_ASSIGN_OR_RETURN(const std::vector<JsonField> ends, range.Items());
      if (ends.size() != 2) {
        return range.Error("expected the least and the largest value");
      }
      tensor.range.emplace();
      BRAID_ASSIGN_OR_RETURN(tensor.range->min, ends[0].Integer());
      BRAID_ASSIGN_OR_RETURN(tensor.range->max, ends[1].Integer());
    }
  }
  if (tensors.empty()) {
    return list.Error("is empty");
  }
  return tensors;
}

// Reads the graphs of one part.
class GraphReader {
 public:
  GraphReader(const std::vector<PairEntry>& state, const PairPart& part) : state_(state) {
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

  absl::StatusOr<PairGraph> Eval(const JsonField& program) {
    return Read(program, "eval", {PairRole::kParameter, PairRole::kBuffer, PairRole::kInput},
                {PairRole::kOutput});
  }
  absl::StatusOr<PairGraph> Forward(const JsonField& program) {
    saved_.clear();
    return Read(program, "forward", {PairRole::kParameter, PairRole::kBuffer, PairRole::kInput},
                {PairRole::kNewBuffer, PairRole::kOutput, PairRole::kSaved});
  }
  // After Forward().
  absl::StatusOr<PairGraph> Backward(const JsonField& program) {
    return Read(program, "backward",
                {PairRole::kParameter, PairRole::kBuffer, PairRole::kInput, PairRole::kNewBuffer,
                 PairRole::kOutput, PairRole::kSaved, PairRole::kOutputGradient},
                {PairRole::kParameterGradient, PairRole::kInputGradient});
  }
  size_t saved() const { return saved_.size(); }

 private:
  absl::StatusOr<PairGraph> Read(const JsonField& program, const char* name,
                                 const std::set<PairRole>& in, const std::set<PairRole>& out) {
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

  absl::StatusOr<std::vector<PairSlot>> Slots(const JsonField& graph, const char* name,
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

  absl::StatusOr<PairSlot> Slot(const JsonField& item, const std::set<PairRole>& allowed,
                                absl::string_view side) {
    BRAID_ASSIGN_OR_RETURN(const JsonField role_field, item.Get("role"));
    BRAID_ASSIGN_OR_RETURN(const std::string role_name, role_field.String());
    const auto role = std::find_if(kRoles.begin(), kRoles.end(),
                                   [&](const RoleName& known) { return known.name == role_name; });
    if (role == kRoles.end() || !allowed.contains(role->role)) {
      return role_field.Error(absl::StrCat("'", Excerpt(role_name), "' is no role that one of its ",
                                           side, " can have"));
    }
    BRAID_ASSIGN_OR_RETURN(const JsonField name_field, item.Get("name"));
    BRAID_ASSIGN_OR_RETURN(const std::string name, name_field.String());
    PairSlot slot;
    slot.role = role->role;
    const bool made_here = side == "outputs";
    if (made_here && slot.role == PairRole::kSaved) {
      BRAID_RETURN_IF_ERROR(AddName(name, name_field, &saved_));
    }
    BRAID_ASSIGN_OR_RETURN(slot.index, Find(NamesOf(slot.role), name, name_field));
    if (made_here && slot.role == PairRole::kNewBuffer) {
      new_buffers_.insert(slot.index);
    }
    if (slot.role == PairRole::kParameterGradient && !state_[slot.index].trainable) {
      return name_field.Error(absl::StrCat("'", Excerpt(name), "' is not trainable"));
    }
    if (slot.role == PairRole::kParameterGradient || slot.role == PairRole::kInputGradient) {
      BRAID_ASSIGN_OR_RETURN(const JsonField depends, item.Get("depends_on"));
      BRAID_ASSIGN_OR_RETURN(const std::vector<std::string> outputs, depends.Strings());
      for (const std::string& output : outputs) {
        BRAID_ASSIGN_OR_RETURN(slot.depends_on.emplace_back(), Find(outputs_, output, depends));
      }
    }
    return slot;
  }

  const Names& NamesOf(PairRole role) const {
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

  const std::vector<PairEntry>& state_;
  Names parameters_;
  Names buffers_;
  Names inputs_;
  Names outputs_;
  Names saved_;
  std::set<size_t> new_buffers_;
};

absl::StatusOr<PairProgram> ReadProgram(const JsonField& field, GraphReader reader) {
  PairProgram program;
  BRAID_ASSIGN_OR_RETURN(const JsonField precision, field.Get("precision"));
  BRAID_ASSIGN_OR_RETURN(const std::string name, precision.String());
  const auto* const known =
      std::find_if(kPrecisions.begin(), kPrecisions.end(),
                   [&](const auto& candidate) { return PrecisionName(candidate) == name; });
  if (known == kPrecisions.end()) {
    return precision.Error(absl::StrCat("'", Excerpt(name), "' is no precision"));
  }
  program.autocast = *known;
  BRAID_ASSIGN_OR_RETURN(program.eval, reader.Eval(field));
  if (field.Has("forward")) {
    BRAID_ASSIGN_OR_RETURN(program.forward, reader.Forward(field));
    program.saved = reader.saved();
  }
  if (field.Has("backward")) {
    if (!program.forward) {
      return field.Error("has a \"backward\" without a \"forward\"");
    }
    BRAID_ASSIGN_OR_RETURN(program.backward, reader.Backward(field));
  }
  return program;
}

absl::StatusOr<int64_t> ReadRows(const JsonField& part, const char* name) {
  BRAID_ASSIGN_OR_RETURN(const JsonField field, part.Get(name));
  BRAID_ASSIGN_OR_RETURN(const int64_t rows, field.Integer());
  if (rows < 1) {
    return field.Error(absl::StrCat(rows, "; expected 1 or more"));
  }
  return rows;
}

absl::StatusOr<PairPart> ReadPart(const JsonField& field, const std::vector<PairEntry>& state) {
  PairPart part;
  BRAID_ASSIGN_OR_RETURN(const JsonField path, field.Get("path"));
  BRAID_ASSIGN_OR_RETURN(part.path, path.String());
  BRAID_ASSIGN_OR_RETURN(part.inputs, ReadTensors(field, "inputs"));
  for (const PairTensor& input : part.inputs) {
    if (input.shape.empty() || input.shape.front() >= 0) {
      return field.Error(absl::StrCat("input '", Excerpt(input.name), "' has no batch dimension"));
    }
  }
  BRAID_ASSIGN_OR_RETURN(part.outputs, ReadTensors(field, "outputs"));
  BRAID_ASSIGN_OR_RETURN(part.min_training_rows, ReadRows(field, "min_training_rows"));
  BRAID_ASSIGN_OR_RETURN(part.min_evaluation_rows, ReadRows(field, "min_evaluation_rows"));
  BRAID_ASSIGN_OR_RETURN(const JsonField programs, field.Get("programs"));
  BRAID_ASSIGN_OR_RETURN(const std::vector<JsonField> items, programs.Items());
  for (const JsonField& item : items) {
    BRAID_ASSIGN_OR_RETURN(PairProgram program, ReadProgram(item, GraphReader(state, part)));
    part.programs.push_back(std::move(program));
  }
  if (part.programs.empty() || part.programs.front().autocast) {
    return programs.Error("the first one is not of precision \"model\"");
  }
  return part;
}

absl::Status CheckVersions(const JsonField& root) {
  BRAID_ASSIGN_OR_RETURN(const JsonField format, root.Get("format"));
  BRAID_ASSIGN_OR_RETURN(const std::string format_name, format.String());
  if (format_name != kFormat) {
    return format.Error(absl::StrCat("'", Excerpt(format_name), "'; expected '", kFormat, "'"));
  }
  BRAID_ASSIGN_OR_RETURN(const JsonField schema, root.Get("schema_version"));
  BRAID_ASSIGN_OR_RETURN(const int64_t version, schema.Integer());
  if (version != kSchemaVersion) {
    return schema.Error(absl::StrCat(version, "; this server reads ", kSchemaVersion,
                                     ": export the model with this server's braid.export"));
  }
  BRAID_ASSIGN_OR_RETURN(const JsonField torch, root.Get("torch_version"));
  BRAID_ASSIGN_OR_RETURN(const std::string torch_version, torch.String());
  return CheckTorchVersion(torch, torch_version);
}

}  // namespace

absl::string_view PrecisionName(std::optional<c10::ScalarType> autocast) {
  if (!autocast) {
    return "model";
  }
  return *autocast == c10::kHalf ? "float16" : "bfloat16";
}

absl::StatusOr<PairManifest> ParsePairManifest(absl::string_view text) {
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const JsonField root(json, "");
  if (!json.is_object()) {
    return root.Error("is no JSON object");
  }
  BRAID_RETURN_IF_ERROR(CheckVersions(root));
  PairManifest manifest;
  BRAID_ASSIGN_OR_RETURN(const JsonField device, root.Get("device"));
  BRAID_ASSIGN_OR_RETURN(manifest.device, device.String());
  if (manifest.device != "cpu" && manifest.device != "cuda") {
    return device.Error(
        absl::StrCat("'", Excerpt(manifest.device), "'; expected \"cpu\" or \"cuda\""));
  }
  BRAID_ASSIGN_OR_RETURN(const JsonField state, root.Get("state"));
  BRAID_ASSIGN_OR_RETURN(const std::vector<JsonField> entries, state.Items());
  Names names;
  for (const JsonField& field : entries) {
    BRAID_ASSIGN_OR_RETURN(PairEntry entry, ReadEntry(field, manifest.state, names));
    BRAID_RETURN_IF_ERROR(AddName(entry.name, field, &names));
    manifest.state.push_back(std::move(entry));
  }
  BRAID_ASSIGN_OR_RETURN(const JsonField parts, root.Get("parts"));
  BRAID_ASSIGN_OR_RETURN(const std::vector<JsonField> items, parts.Items());
  for (const JsonField& item : items) {
    BRAID_ASSIGN_OR_RETURN(PairPart part, ReadPart(item, manifest.state));
    manifest.parts.push_back(std::move(part));
  }
  if (manifest.parts.empty() || !manifest.parts.front().path.empty()) {
    return parts.Error("the first one is not the whole model");
  }
  if (root.Has("chains")) {
    BRAID_ASSIGN_OR_RETURN(const JsonField chains, root.Get("chains"));
    BRAID_ASSIGN_OR_RETURN(const std::vector<JsonField> lists, chains.Items());
    for (const JsonField& list : lists) {
      BRAID_ASSIGN_OR_RETURN(manifest.chains.emplace_back(), list.Strings());
      for (const std::string& path : manifest.chains.back()) {
        if (std::none_of(manifest.parts.begin(), manifest.parts.end(),
                         [&](const PairPart& part) { return part.path == path; })) {
          return list.Error(absl::StrCat("'", Excerpt(path), "' is no part"));
        }
      }
    }
  }
  return manifest;
}

}  // namespace braid
