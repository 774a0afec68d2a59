#include "server/models/pair/pair_manifest.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"
#include "server/base/host_tensor.h"
#include "server/base/json_fields.h"
#include "server/base/status.h"
#include "server/base/text.h"

namespace braid {
namespace {

constexpr char kFormat[] = "braid-pair";
// 2: with sizes that vary. 3: with a batch that is not dim 0 for clients.
constexpr int64_t kMaxSchemaVersion = 3;
// Products of two such numbers fit.
constexpr int64_t kMaxSize = int64_t{1} << 31;

constexpr std::array<std::optional<c10::ScalarType>, 3> kPrecisions = {std::nullopt, c10::kBFloat16,
                                                                       c10::kHalf};

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

// Indices by name.
using PairNames = std::map<std::string, size_t>;

// Returns the index of `name`. FAILED_PRECONDITION if it is unknown.
absl::StatusOr<size_t> FindPairName(const PairNames& names, const std::string& name,
                                    const JsonField& field) {
  const auto found = names.find(name);
  if (found == names.end()) {
    return field.Error(absl::StrCat("'", Excerpt(name), "' is unknown"));
  }
  return found->second;
}

// Adds `name` with the next index. FAILED_PRECONDITION if it exists.
absl::Status AddPairName(const std::string& name, const JsonField& field, PairNames* names) {
  if (!names->emplace(name, names->size()).second) {
    return field.Error(absl::StrCat("'", Excerpt(name), "' is a duplicate"));
  }
  return absl::OkStatus();
}

// Reads the graphs of one program. Errors are FAILED_PRECONDITION and name the field.
class PairGraphReader {
 public:
  // part: its inputs and outputs are set.
  PairGraphReader(const std::vector<PairEntry>& state, const PairStage& part);

  absl::StatusOr<PairGraph> Eval(const JsonField& program);
  absl::StatusOr<PairGraph> Forward(const JsonField& program);
  // Call it after Forward().
  absl::StatusOr<PairGraph> Backward(const JsonField& program);
  // Number of tensors that the forward graph saves.
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

PairGraphReader::PairGraphReader(const std::vector<PairEntry>& state, const PairStage& part)
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
  // Every tensor is returned once, except for gradients of tied parameters, and no output is
  // missing.
  std::set<std::pair<PairRole, size_t>> returned;
  size_t outputs = 0;
  for (const PairSlot& slot : graph.outputs) {
    const bool tied = slot.role == PairRole::kParameterGradient;
    if (!returned.emplace(slot.role, slot.index).second && !tied) {
      return object.Error("duplicate tensor in its outputs");
    }
    outputs += slot.role == PairRole::kOutput ? 1 : 0;
  }
  if (out.contains(PairRole::kOutput) && outputs != outputs_.size()) {
    return object.Error(absl::StrCat(outputs, " outputs (expected ", outputs_.size(), ")"));
  }
  for (const PairSlot& slot : graph.inputs) {
    const bool of_forward = slot.role == PairRole::kNewBuffer;
    if (of_forward && !new_buffers_.contains(slot.index)) {
      return object.Error(absl::StrCat("takes the new buffer '", state_[slot.index].name,
                                       "', which the forward graph does not return"));
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
        absl::StrCat("'", Excerpt(role_name), "' is not a valid role for one of its ", side));
  }
  BRAID_ASSIGN_OR_RETURN(const JsonField name_field, item.Get("name"));
  BRAID_ASSIGN_OR_RETURN(const std::string name, name_field.String());
  PairSlot slot;
  slot.role = role->role;
  const bool returned = side == "outputs";
  if (returned && slot.role == PairRole::kSaved) {
    BRAID_RETURN_IF_ERROR(AddPairName(name, name_field, &saved_));
  }
  BRAID_ASSIGN_OR_RETURN(slot.index, FindPairName(NamesOf(slot.role), name, name_field));
  if (returned && slot.role == PairRole::kNewBuffer) {
    new_buffers_.insert(slot.index);
  }
  if (slot.role == PairRole::kParameterGradient && !state_[slot.index].trainable) {
    return name_field.Error(absl::StrCat("'", Excerpt(name), "' is not trainable"));
  }
  if (slot.role == PairRole::kParameterGradient || slot.role == PairRole::kInputGradient) {
    BRAID_ASSIGN_OR_RETURN(const JsonField depends, item.Get("depends_on"));
    BRAID_ASSIGN_OR_RETURN(const std::vector<std::string> outputs, depends.Strings());
    if (outputs.empty()) {
      return depends.Error("empty (expected the outputs that the gradient depends on)");
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

absl::StatusOr<DataType> ReadType(const JsonField& object) {
  BRAID_ASSIGN_OR_RETURN(const JsonField field, object.Get("dtype"));
  BRAID_ASSIGN_OR_RETURN(const std::string name, field.String());
  if (const std::optional<DataType> type = DataTypeFromName(name)) {
    return *type;
  }
  return field.Error(absl::StrCat("'", Excerpt(name), "' is not a datatype (expected one of ",
                                  AllDataTypeNames(), ")"));
}

absl::StatusOr<int64_t> ReadSize(const JsonField& item) {
  BRAID_ASSIGN_OR_RETURN(const int64_t size, item.Integer());
  return size >= 0 ? absl::StatusOr<int64_t>(size)
                   : item.Error(absl::StrCat(size, " (expected a size of at least 0)"));
}

// Reads the shape of an entry of the state.
absl::StatusOr<std::vector<int64_t>> ReadShape(const JsonField& object) {
  BRAID_ASSIGN_OR_RETURN(const JsonField field, object.Get("shape"));
  BRAID_ASSIGN_OR_RETURN(const std::vector<JsonField> items, field.Items());
  std::vector<int64_t> shape;
  for (const JsonField& item : items) {
    BRAID_ASSIGN_OR_RETURN(shape.emplace_back(), ReadSize(item));
  }
  return shape;
}

// Sizes that vary, by name. VariableDim::dim is not used.
using PairSymbols = std::map<std::string, VariableDim>;

absl::StatusOr<PairSymbols> ReadSymbols(const JsonField& root) {
  PairSymbols symbols;
  if (!root.Has("symbols")) {
    return symbols;
  }
  BRAID_ASSIGN_OR_RETURN(const JsonField list, root.Get("symbols"));
  BRAID_ASSIGN_OR_RETURN(const std::vector<JsonField> items, list.Items());
  for (const JsonField& item : items) {
    VariableDim symbol;
    BRAID_ASSIGN_OR_RETURN(const JsonField name, item.Get("name"));
    BRAID_ASSIGN_OR_RETURN(symbol.symbol, name.String());
    BRAID_ASSIGN_OR_RETURN(const JsonField min, item.Get("min"));
    BRAID_ASSIGN_OR_RETURN(symbol.min, min.Integer());
    if (item.Has("max")) {
      BRAID_ASSIGN_OR_RETURN(const JsonField max, item.Get("max"));
      BRAID_ASSIGN_OR_RETURN(symbol.max, max.Integer());
    }
    if (symbol.min < 1 || symbol.min > kMaxSize || symbol.max < symbol.min) {
      return item.Error(
          absl::StrCat("sizes ", symbol.min, " to ", symbol.max,
                       " (expected a minimum of at least 1, and no smaller maximum)"));
    }
    if (!symbols.emplace(symbol.symbol, symbol).second) {
      return name.Error(absl::StrCat("'", Excerpt(symbol.symbol), "' is a duplicate"));
    }
  }
  return symbols;
}

// Parses the size "seq" or "8*seq" of an input. nullopt if it has no symbol of `symbols`.
std::optional<VariableDim> FindVariableDim(const std::string& size, const PairSymbols& symbols) {
  const size_t star = size.find('*');
  const auto found = symbols.find(star == std::string::npos ? size : size.substr(star + 1));
  if (found == symbols.end()) {
    return std::nullopt;
  }
  VariableDim dim = found->second;
  if (star != std::string::npos && (!absl::SimpleAtoi(size.substr(0, star), &dim.factor) ||
                                    dim.factor < 1 || dim.factor > kMaxSize)) {
    return std::nullopt;
  }
  return dim;
}

// Reads the shape of a part's input or output. The first dimension is the batch.
// symbols: sizes that dims of the whole model's inputs must have; nullptr: other tensors, whose
// dims may be any expression.
absl::Status ReadBatchedShape(const JsonField& object, bool has_symbols, const PairSymbols* symbols,
                              PairTensor* tensor) {
  BRAID_ASSIGN_OR_RETURN(const JsonField field, object.Get("shape"));
  BRAID_ASSIGN_OR_RETURN(const std::vector<JsonField> items, field.Items());
  for (size_t d = 0; d < items.size(); ++d) {
    if (d > 0 && (!has_symbols || !items[d].is_string())) {
      BRAID_ASSIGN_OR_RETURN(tensor->shape.emplace_back(), ReadSize(items[d]));
      continue;
    }
    BRAID_ASSIGN_OR_RETURN(const std::string size, items[d].String());
    if (d == 0 && size != "batch") {
      return items[d].Error(absl::StrCat("'", Excerpt(size), "' (expected \"batch\")"));
    }
    tensor->shape.push_back(-1);
    if (d > 0 && symbols != nullptr) {
      std::optional<VariableDim> dim = FindVariableDim(size, *symbols);
      if (!dim) {
        return items[d].Error(
            absl::StrCat("'", Excerpt(size), "' (expected a symbol, or a multiple of one)"));
      }
      dim->dim = d - 1;
      tensor->variable_dims.push_back(*std::move(dim));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<PairEntry> ReadEntry(const JsonField& field, const std::vector<PairEntry>& before,
                                    const PairNames& names) {
  PairEntry entry;
  BRAID_ASSIGN_OR_RETURN(const JsonField name, field.Get("name"));
  BRAID_ASSIGN_OR_RETURN(entry.name, name.String());
  BRAID_ASSIGN_OR_RETURN(const JsonField kind, field.Get("kind"));
  BRAID_ASSIGN_OR_RETURN(const std::string kind_name, kind.String());
  if (kind_name != "parameter" && kind_name != "buffer") {
    return kind.Error(
        absl::StrCat("'", Excerpt(kind_name), "' (expected \"parameter\" or \"buffer\")"));
  }
  entry.is_parameter = kind_name == "parameter";
  if (entry.is_parameter) {
    BRAID_ASSIGN_OR_RETURN(const JsonField trainable, field.Get("trainable"));
    BRAID_ASSIGN_OR_RETURN(entry.trainable, trainable.Boolean());
  }
  BRAID_ASSIGN_OR_RETURN(entry.type, ReadType(field));
  BRAID_ASSIGN_OR_RETURN(entry.shape, ReadShape(field));
  if (!BytesOf(entry.type, entry.shape)) {
    return field.Error("shape: too many elements");
  }
  if (entry.trainable && !IsFloatingPoint(entry.type)) {
    return field.Error("trainable, but not of a floating-point datatype");
  }
  entry.tensor = before.size();
  if (field.Has("tied_to")) {
    BRAID_ASSIGN_OR_RETURN(const JsonField tied, field.Get("tied_to"));
    BRAID_ASSIGN_OR_RETURN(const std::string other, tied.String());
    BRAID_ASSIGN_OR_RETURN(const size_t found, FindPairName(names, other, tied));
    const PairEntry& first = before[found];
    if (first.shape != entry.shape || first.type != entry.type ||
        first.is_parameter != entry.is_parameter) {
      return tied.Error(absl::StrCat("'", Excerpt(other), "' has another kind, datatype or shape"));
    }
    entry.tensor = first.tensor;
  }
  return entry;
}

absl::StatusOr<ValueRange> ReadRange(const JsonField& tensor, DataType type) {
  BRAID_ASSIGN_OR_RETURN(const JsonField field, tensor.Get("range"));
  BRAID_ASSIGN_OR_RETURN(const std::vector<JsonField> ends, field.Items());
  if (ends.size() != 2) {
    return field.Error(absl::StrCat(ends.size(), " elements (expected minimum and maximum)"));
  }
  ValueRange range;
  BRAID_ASSIGN_OR_RETURN(range.min, ends[0].Integer());
  BRAID_ASSIGN_OR_RETURN(range.max, ends[1].Integer());
  if (range.min > range.max) {
    return field.Error(absl::StrCat("minimum ", range.min, " exceeds maximum ", range.max));
  }
  if (IsFloatingPoint(type)) {
    return field.Error(
        absl::StrCat("range of ", DataTypeName(type), " (expected an integer type)"));
  }
  return range;
}

// See ReadBatchedShape().
absl::StatusOr<std::vector<PairTensor>> ReadTensors(const JsonField& part, const char* name,
                                                    bool has_symbols, const PairSymbols* symbols) {
  BRAID_ASSIGN_OR_RETURN(const JsonField list, part.Get(name));
  BRAID_ASSIGN_OR_RETURN(const std::vector<JsonField> items, list.Items());
  std::vector<PairTensor> tensors;
  PairNames names;
  for (const JsonField& item : items) {
    PairTensor& tensor = tensors.emplace_back();
    BRAID_ASSIGN_OR_RETURN(const JsonField field, item.Get("name"));
    BRAID_ASSIGN_OR_RETURN(tensor.name, field.String());
    BRAID_RETURN_IF_ERROR(AddPairName(tensor.name, field, &names));
    BRAID_ASSIGN_OR_RETURN(tensor.type, ReadType(item));
    BRAID_RETURN_IF_ERROR(ReadBatchedShape(item, has_symbols, symbols, &tensor));
    if (item.Has("range")) {
      BRAID_ASSIGN_OR_RETURN(tensor.range, ReadRange(item, tensor.type));
    }
    if (item.Has("batch_dim")) {
      BRAID_ASSIGN_OR_RETURN(const JsonField dim, item.Get("batch_dim"));
      BRAID_ASSIGN_OR_RETURN(const int64_t batch_dim, dim.Integer());
      const auto rank = static_cast<int64_t>(tensor.shape.size());
      if (batch_dim < 0 || batch_dim >= rank) {
        return dim.Error(
            absl::StrCat(batch_dim, " (expected at least 0 and less than ", rank, ", the rank)"));
      }
      tensor.batch_dim = static_cast<uint32_t>(batch_dim);
    }
  }
  if (tensors.empty()) {
    return list.Error("empty (expected at least one tensor)");
  }
  return tensors;
}

absl::StatusOr<PairProgram> ReadProgram(const JsonField& field, PairGraphReader reader) {
  PairProgram program;
  BRAID_ASSIGN_OR_RETURN(const JsonField precision, field.Get("precision"));
  BRAID_ASSIGN_OR_RETURN(const std::string name, precision.String());
  const auto* const known =
      std::find_if(kPrecisions.begin(), kPrecisions.end(),
                   [&](const auto& candidate) { return PrecisionName(candidate) == name; });
  if (known == kPrecisions.end()) {
    return precision.Error(
        absl::StrCat("'", Excerpt(name),
                     "' is not a precision (expected \"model\", \"bfloat16\" or \"float16\")"));
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
    return field.Error(absl::StrCat(rows, " (expected at least 1)"));
  }
  return rows;
}

absl::StatusOr<PairStage> ReadPart(const JsonField& field, const std::vector<PairEntry>& state,
                                   const PairSymbols& symbols) {
  PairStage part;
  BRAID_ASSIGN_OR_RETURN(const JsonField path, field.Get("path"));
  BRAID_ASSIGN_OR_RETURN(part.path, path.String());
  if (field.Has("eval_modules")) {
    BRAID_ASSIGN_OR_RETURN(const JsonField eval_modules, field.Get("eval_modules"));
    BRAID_ASSIGN_OR_RETURN(part.eval_modules, eval_modules.Boolean());
  }
  const bool has_symbols = !symbols.empty();
  BRAID_ASSIGN_OR_RETURN(part.inputs, ReadTensors(field, "inputs", has_symbols,
                                                  part.path.empty() ? &symbols : nullptr));
  for (const PairTensor& input : part.inputs) {
    if (input.shape.empty()) {
      return field.Error(absl::StrCat("input '", Excerpt(input.name), "' has no batch dimension"));
    }
  }
  BRAID_ASSIGN_OR_RETURN(part.outputs, ReadTensors(field, "outputs", has_symbols, nullptr));
  BRAID_ASSIGN_OR_RETURN(part.min_training_rows, ReadRows(field, "min_training_rows"));
  BRAID_ASSIGN_OR_RETURN(part.min_evaluation_rows, ReadRows(field, "min_evaluation_rows"));
  BRAID_ASSIGN_OR_RETURN(const JsonField programs, field.Get("programs"));
  BRAID_ASSIGN_OR_RETURN(const std::vector<JsonField> items, programs.Items());
  for (const JsonField& item : items) {
    BRAID_ASSIGN_OR_RETURN(PairProgram program, ReadProgram(item, PairGraphReader(state, part)));
    for (const PairProgram& other : part.programs) {
      if (other.autocast == program.autocast) {
        return item.Error(
            absl::StrCat("duplicate precision \"", PrecisionName(program.autocast), "\""));
      }
    }
    part.programs.push_back(std::move(program));
  }
  if (part.programs.empty() || part.programs.front().autocast) {
    return programs.Error("the first element is not of precision \"model\"");
  }
  return part;
}

absl::StatusOr<std::vector<std::vector<std::string>>> ReadChains(const JsonField& root,
                                                                 const PairNames& paths) {
  BRAID_ASSIGN_OR_RETURN(const JsonField field, root.Get("chains"));
  BRAID_ASSIGN_OR_RETURN(const std::vector<JsonField> lists, field.Items());
  std::vector<std::vector<std::string>> chains;
  for (const JsonField& list : lists) {
    BRAID_ASSIGN_OR_RETURN(const std::vector<std::string> chain, list.Strings());
    if (chain.empty()) {
      return list.Error("empty (expected paths of parts)");
    }
    for (const std::string& path : chain) {
      if (!paths.contains(path)) {
        return list.Error(absl::StrCat("'", Excerpt(path), "' is not a part"));
      }
    }
    chains.push_back(chain);
  }
  return chains;
}

// Reads a list of module paths. Packages of earlier exporters do not have it.
absl::StatusOr<std::vector<std::string>> ReadModules(const JsonField& root, const char* name) {
  if (!root.Has(name)) {
    return std::vector<std::string>();
  }
  BRAID_ASSIGN_OR_RETURN(const JsonField field, root.Get(name));
  return field.Strings();
}

// Returns the paths of the modules that have parameters or buffers.
std::vector<std::string> OwnersOf(const std::vector<PairEntry>& state) {
  std::vector<std::string> owners;
  for (const PairEntry& entry : state) {
    const size_t dot = entry.name.rfind('.');
    const std::string owner = dot == std::string::npos ? "" : entry.name.substr(0, dot);
    if (!owner.empty() && (owners.empty() || owners.back() != owner)) {
      owners.push_back(owner);
    }
  }
  return owners;
}

absl::Status CheckSchema(const JsonField& root) {
  BRAID_ASSIGN_OR_RETURN(const JsonField format, root.Get("format"));
  BRAID_ASSIGN_OR_RETURN(const std::string format_name, format.String());
  if (format_name != kFormat) {
    return format.Error(absl::StrCat("'", Excerpt(format_name), "' (expected '", kFormat, "')"));
  }
  BRAID_ASSIGN_OR_RETURN(const JsonField schema, root.Get("schema_version"));
  BRAID_ASSIGN_OR_RETURN(const int64_t version, schema.Integer());
  if (version < 1 || version > kMaxSchemaVersion) {
    return schema.Error(absl::StrCat(version, " (expected 1 to ", kMaxSchemaVersion,
                                     ": export the model with this server's braid.export)"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::string_view PairRoleName(PairRole role) {
  return std::find_if(kRoles.begin(), kRoles.end(),
                      [role](const RoleName& known) { return known.role == role; })
      ->name;
}

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
    return root.Error("not a JSON object");
  }
  BRAID_RETURN_IF_ERROR(CheckSchema(root));
  PairManifest manifest;
  BRAID_ASSIGN_OR_RETURN(const JsonField torch, root.Get("torch_version"));
  BRAID_ASSIGN_OR_RETURN(manifest.torch_version, torch.String());
  BRAID_ASSIGN_OR_RETURN(const JsonField device, root.Get("device"));
  BRAID_ASSIGN_OR_RETURN(manifest.device, device.String());
  if (manifest.device != "cpu" && manifest.device != "cuda") {
    return device.Error(
        absl::StrCat("'", Excerpt(manifest.device), "' (expected \"cpu\" or \"cuda\")"));
  }
  BRAID_ASSIGN_OR_RETURN(const JsonField state, root.Get("state"));
  BRAID_ASSIGN_OR_RETURN(const std::vector<JsonField> entries, state.Items());
  PairNames names;
  for (const JsonField& field : entries) {
    BRAID_ASSIGN_OR_RETURN(PairEntry entry, ReadEntry(field, manifest.state, names));
    BRAID_RETURN_IF_ERROR(AddPairName(entry.name, field, &names));
    manifest.state.push_back(std::move(entry));
  }
  BRAID_ASSIGN_OR_RETURN(manifest.modules, ReadModules(root, "modules"));
  if (manifest.modules.empty()) {
    manifest.modules = OwnersOf(manifest.state);
  }
  BRAID_ASSIGN_OR_RETURN(manifest.eval_modules, ReadModules(root, "eval_modules"));
  BRAID_ASSIGN_OR_RETURN(const PairSymbols symbols, ReadSymbols(root));
  BRAID_ASSIGN_OR_RETURN(const JsonField parts, root.Get("parts"));
  BRAID_ASSIGN_OR_RETURN(const std::vector<JsonField> items, parts.Items());
  PairNames paths;
  PairNames eval_paths;
  for (const JsonField& item : items) {
    BRAID_ASSIGN_OR_RETURN(PairStage part, ReadPart(item, manifest.state, symbols));
    BRAID_RETURN_IF_ERROR(AddPairName(part.path, item, part.eval_modules ? &eval_paths : &paths));
    manifest.stages.push_back(std::move(part));
  }
  if (manifest.stages.empty() || !manifest.stages.front().path.empty() ||
      manifest.stages.front().eval_modules) {
    return parts.Error("the first element is not the whole model");
  }
  if (!manifest.eval_modules.empty() && eval_paths.size() != paths.size()) {
    return parts.Error("parts with \"eval_modules\" are missing");
  }
  if (root.Has("chains")) {
    BRAID_ASSIGN_OR_RETURN(manifest.chains, ReadChains(root, paths));
  }
  return manifest;
}

}  // namespace braid
