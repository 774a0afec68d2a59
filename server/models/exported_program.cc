#include "server/models/exported_program.h"

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "re2/re2.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/models/archive_check.h"
#include "server/models/exported_graph.h"
#include "server/models/graph_form.h"
#include "server/models/graph_ranges.h"
#include "server/models/graph_tensors.h"
#include "server/models/json_fields.h"
#include "server/models/plain_trees.h"
#include "server/models/training_mode.h"
#include "server/models/written_tensors.h"

namespace braid {
namespace {

constexpr char kProgram[] = "model";

class ProgramRunner final : public PackageRunner {
 public:
  explicit ProgramRunner(std::unique_ptr<ExportedGraph> graph) : graph_(std::move(graph)) {}

  std::vector<at::Tensor> Run(const std::vector<at::Tensor>& inputs) override {
    return graph_->Run(inputs);
  }

 private:
  const std::unique_ptr<ExportedGraph> graph_;
};

// The symbol of "Symbol('s14', positive=True, integer=True)"; empty for another expression.
std::string SymbolOf(const std::string& expression) {
  static const re2::RE2 kSymbol(R"(Symbol\('(\w+)'(?:, \w+=\w+)*\))");
  std::string name;
  RE2::FullMatch(expression, kSymbol, &name);
  return name;
}

// The bounds of the sizes that are free, by symbol.
absl::StatusOr<std::map<std::string, PackageDim>> ReadRanges(const nlohmann::json& program) {
  std::map<std::string, PackageDim> ranges;
  const auto constraints = program.find("range_constraints");
  if (constraints == program.end() || !constraints->is_object()) {
    return ranges;
  }
  for (const auto& [symbol, range] : constraints->items()) {
    PackageDim& dim = ranges[symbol];
    const JsonField field(range, absl::StrCat("range_constraints.", Excerpt(symbol)));
    for (const auto& [name, bound] : {std::pair("min_val", &dim.min), {"max_val", &dim.max}}) {
      if (range.is_object() && range.contains(name) && !range[name].is_null()) {
        BRAID_ASSIGN_OR_RETURN(const JsonField value, field.Get(name));
        BRAID_ASSIGN_OR_RETURN(*bound, value.Integer());
      }
    }
  }
  return ranges;
}

absl::StatusOr<PackageInput> ReadInput(const JsonField& argument, const JsonField& values,
                                       const std::map<std::string, PackageDim>& ranges) {
  BRAID_ASSIGN_OR_RETURN(const GraphTensor tensor, ReadGraphTensor(argument, values));
  if (!tensor.type || !tensor.dense) {
    return argument.Error("is a tensor of a type that cannot be sent");
  }
  PackageInput input{tensor.name, *tensor.type, {}, tensor.on_cpu};
  for (size_t d = 0; d < tensor.shape.size(); ++d) {
    if (tensor.shape[d] >= 0) {
      input.dims.push_back({tensor.shape[d], tensor.shape[d]});
      continue;
    }
    const std::string symbol = SymbolOf(tensor.expressions[d]);
    const auto range = ranges.find(symbol);
    input.dims.push_back(range == ranges.end() ? PackageDim() : range->second);
    input.dims.back().symbol = symbol.empty() ? tensor.expressions[d] : symbol;
  }
  return input;
}

// Of "[1, {…}]".
nlohmann::json TreeOf(const std::string& text) {
  const auto tree = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  return tree.is_array() && tree.size() == 2 ? tree[1] : nlohmann::json();
}

// Whether the number that `argument` names can be below 0, by what the graph says of it.
bool CanBeNegative(const JsonField& argument, const JsonField& numbers) {
  const absl::StatusOr<JsonField> symbol = argument.Get("as_sym_int");
  const absl::StatusOr<JsonField> as_name = symbol.ok() ? symbol->Get("as_name") : symbol;
  if (!as_name.ok()) {
    return false;
  }
  const std::string name = as_name->String().value_or("");
  const absl::StatusOr<JsonField> number = numbers.Get(name.c_str());
  const absl::StatusOr<JsonField> value = number.ok() ? number->Get("as_expr") : number;
  const absl::StatusOr<JsonField> text = value.ok() ? value->Get("expr_str") : value;
  return text.ok() && absl::StrContains(text->String().value_or(""), "Mul(Integer(-");
}

// LibTorch's interpreter rounds towards zero where Python rounds down.
absl::Status CheckDivision(const JsonField& node, const std::string& target,
                           const JsonField& numbers) {
  if (target != "_operator.floordiv" && target != "_operator.mod") {
    return absl::OkStatus();
  }
  BRAID_ASSIGN_OR_RETURN(const JsonField inputs, node.Get("inputs"));
  BRAID_ASSIGN_OR_RETURN(const std::vector<JsonField> items, inputs.Items());
  for (const JsonField& item : items) {
    BRAID_ASSIGN_OR_RETURN(const JsonField argument, item.Get("arg"));
    if (CanBeNegative(argument, numbers)) {
      return node.Error(absl::StrCat(
          "the program divides a size that may be negative (", target,
          "), which is rounded in another way here: write (n + k - 1) // k for -(-n // k), and "
          "(k - n % k) % k for -n % k, or export it with braid.export"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckNodes(const JsonField& graph) {
  BRAID_ASSIGN_OR_RETURN(const JsonField numbers, graph.Get("sym_int_values"));
  BRAID_ASSIGN_OR_RETURN(const JsonField list, graph.Get("nodes"));
  BRAID_ASSIGN_OR_RETURN(const std::vector<JsonField> nodes, list.Items());
  for (const JsonField& node : nodes) {
    BRAID_ASSIGN_OR_RETURN(const JsonField field, node.Get("target"));
    BRAID_ASSIGN_OR_RETURN(const std::string target, field.String());
    if (target == "torch.ops.higher_order.wrap_with_autocast") {
      return node.Error(
          "the program has a region of torch.autocast, which is not run here: save "
          "`program.run_decompositions({})`, where its casts are operators like others");
    }
    BRAID_RETURN_IF_ERROR(CheckDivision(node, target, numbers));
  }
  return absl::OkStatus();
}

// Marks those of `inputs`, the interface's, that the graph writes to.
absl::Status FindWritten(const JsonField& graph, const std::vector<JsonField>& arguments,
                         std::vector<PackageInput>* inputs) {
  std::vector<std::string> names;
  for (const JsonField& argument : arguments) {
    BRAID_ASSIGN_OR_RETURN(const JsonField tensor, argument.Get("as_tensor"));
    BRAID_ASSIGN_OR_RETURN(const JsonField name, tensor.Get("name"));
    BRAID_ASSIGN_OR_RETURN(names.emplace_back(), name.String());
  }
  BRAID_ASSIGN_OR_RETURN(const std::set<std::string> written,
                         WrittenInputs(graph, {names.begin(), names.end()}));
  for (size_t i = 0; i < names.size(); ++i) {
    (*inputs)[i].written = written.contains(names[i]);
  }
  return absl::OkStatus();
}

// As the graph has them.
std::vector<std::string> NamesOf(const std::vector<PackageInput>& inputs) {
  std::vector<std::string> names;
  names.reserve(inputs.size());
  for (const PackageInput& input : inputs) {
    names.push_back(input.name);
  }
  return names;
}

absl::Status CheckOutputs(const JsonField& signature, const JsonField& values) {
  BRAID_ASSIGN_OR_RETURN(const std::vector<JsonField> outputs,
                         SignatureArguments(signature, "output_specs", "user_output"));
  for (const JsonField& output : outputs) {
    if (!output.Has("as_tensor")) {
      continue;
    }
    BRAID_ASSIGN_OR_RETURN(const GraphTensor tensor, ReadGraphTensor(output, values));
    if (!tensor.dense) {
      return output.Error(absl::StrCat("the program returns '", Excerpt(tensor.name),
                                       "', a sparse tensor (expected a dense tensor: call "
                                       "to_dense() in forward())"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> NamesOfInputs(const JsonField& module,
                                                       std::vector<std::string>* output_paths) {
  BRAID_ASSIGN_OR_RETURN(const JsonField calls, module.Get("module_call_graph"));
  BRAID_ASSIGN_OR_RETURN(const std::vector<JsonField> modules, calls.Items());
  if (modules.empty()) {
    return calls.Error("is empty");
  }
  BRAID_ASSIGN_OR_RETURN(const JsonField signature, modules.front().Get("signature"));
  BRAID_ASSIGN_OR_RETURN(const JsonField in_spec, signature.Get("in_spec"));
  BRAID_ASSIGN_OR_RETURN(const std::string in_text, in_spec.String());
  BRAID_ASSIGN_OR_RETURN(const JsonField out_spec, signature.Get("out_spec"));
  BRAID_ASSIGN_OR_RETURN(const std::string out_text, out_spec.String());
  std::vector<std::string> positional;
  if (signature.Has("forward_arg_names")) {
    BRAID_ASSIGN_OR_RETURN(const JsonField names, signature.Get("forward_arg_names"));
    BRAID_ASSIGN_OR_RETURN(positional, names.Strings());
  }
  *output_paths = OutputPaths(TreeOf(out_text));
  return InputNames(TreeOf(in_text), positional);
}

}  // namespace

absl::StatusOr<ProgramDescription> DescribeProgram(absl::string_view text) {
  auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const JsonField root(json, "");
  BRAID_ASSIGN_OR_RETURN(const JsonField torch, root.Get("torch_version"));
  BRAID_ASSIGN_OR_RETURN(const std::string version, torch.String());
  BRAID_RETURN_IF_ERROR(CheckTorchVersion(torch, version));
  BRAID_ASSIGN_OR_RETURN(const JsonField module, root.Get("graph_module"));
  BRAID_ASSIGN_OR_RETURN(const JsonField graph, module.Get("graph"));
  BRAID_ASSIGN_OR_RETURN(const JsonField values, graph.Get("tensor_values"));
  BRAID_ASSIGN_OR_RETURN(const JsonField signature, module.Get("signature"));
  BRAID_ASSIGN_OR_RETURN(const auto ranges, ReadRanges(json));
  BRAID_RETURN_IF_ERROR(CheckGraphForm(graph, signature));
  BRAID_RETURN_IF_ERROR(CheckNodes(graph));
  ProgramDescription description;
  PackageInterface& interface = description.interface;
  BRAID_ASSIGN_OR_RETURN(const std::vector<JsonField> inputs,
                         SignatureArguments(signature, "input_specs", "user_input"));
  for (const JsonField& argument : inputs) {
    BRAID_ASSIGN_OR_RETURN(PackageInput input, ReadInput(argument, values, ranges));
    description.on_cpu = description.on_cpu && input.on_cpu;
    interface.inputs.push_back(std::move(input));
  }
  BRAID_RETURN_IF_ERROR(FindWritten(graph, inputs, &interface.inputs));
  BRAID_RETURN_IF_ERROR(FindGraphRanges(graph, NamesOf(interface.inputs), &interface.inputs));
  BRAID_ASSIGN_OR_RETURN(description.training_operators, TrainingOperators(graph));
  if (interface.inputs.empty()) {
    return signature.Error("takes no tensors");
  }
  // An output that is none of the user's is a buffer that the program changes, and would keep.
  BRAID_ASSIGN_OR_RETURN(const JsonField outputs, signature.Get("output_specs"));
  BRAID_ASSIGN_OR_RETURN(const std::vector<JsonField> specs, outputs.Items());
  for (const JsonField& spec : specs) {
    if (!spec.Has("user_output")) {
      return spec.Error("the program changes its buffers or inputs: export it in evaluation mode");
    }
  }
  BRAID_RETURN_IF_ERROR(CheckOutputs(signature, values));
  BRAID_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                         NamesOfInputs(module, &interface.output_paths));
  for (size_t i = 0; names.size() == interface.inputs.size() && i < names.size(); ++i) {
    interface.inputs[i].name = names[i];
  }
  description.plain = WithPlainTrees(std::move(json));  // no field of it is read any more
  return description;
}

absl::StatusOr<std::shared_ptr<const InferencePackage>> ExportedProgram::Open(
    const std::string& path) {
  const std::string name = std::filesystem::path(path).filename();
  BRAID_ASSIGN_OR_RETURN(MemoryFile file, MemoryFile::Copy(path));
  BRAID_ASSIGN_OR_RETURN(const std::unique_ptr<ModelArchive> archive,
                         ModelArchive::Open(file.path(), name));
  BRAID_RETURN_IF_ERROR(archive->CheckContents());
  const std::string record = absl::StrCat("models/", kProgram, ".json");
  BRAID_ASSIGN_OR_RETURN(const std::string text, archive->Read(record));
  absl::StatusOr<ProgramDescription> description = DescribeProgram(text);
  if (!description.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(name, ": ", description.status().message()));
  }
  if (const auto plain = std::exchange(description->plain, std::nullopt)) {
    BRAID_ASSIGN_OR_RETURN(const std::string copy, archive->CopyWith(record, *plain));
    BRAID_ASSIGN_OR_RETURN(file, MemoryFile::Create(name, copy));
  }
  WarnOfTrainingOperators(path, description->training_operators);
  return std::shared_ptr<const InferencePackage>(
      new ExportedProgram(std::move(file), *std::move(description)));
}

absl::StatusOr<std::unique_ptr<PackageRunner>> ExportedProgram::MakeRunner(
    c10::Device device) const {
  if (device.is_cpu() != description_.on_cpu) {
    return absl::FailedPreconditionError(
        absl::StrCat("model.pt2 was exported on ", description_.on_cpu ? "the CPU" : "a GPU",
                     " and cannot run on ", c10::str(device), ": export it on such a device"));
  }
  BRAID_ASSIGN_OR_RETURN(std::unique_ptr<ExportedGraph> graph,
                         ExportedGraph::Load(file_.path(), kProgram));
  return std::make_unique<ProgramRunner>(std::move(graph));
}

}  // namespace braid
