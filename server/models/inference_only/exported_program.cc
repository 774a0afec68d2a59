#include "server/models/inference_only/exported_program.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ScalarOps.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "re2/re2.h"
#include "server/base/json_fields.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/models/archive/graph_check.h"
#include "server/models/archive/graph_tensors.h"
#include "server/models/archive/model_archive.h"
#include "server/models/archive/package_interface.h"
#include "server/models/archive/package_version.h"
#include "server/models/inference_only/mutated_inputs.h"
#include "server/models/training_mode.h"
#include "server/storage/mapping/memory_file.h"

namespace braid {
namespace {

constexpr char kProgram[] = "model";

class ProgramRunner final : public PackageRunner {
 public:
  explicit ProgramRunner(std::unique_ptr<Executor> executor) : executor_(std::move(executor)) {}

  // Omits None. Numbers become 0-dim tensors; the response sends them as parameters.
  std::vector<at::Tensor> Run(const std::vector<at::Tensor>& inputs) override {
    std::vector<at::Tensor> outputs;
    for (const c10::IValue& output :
         executor_->Run(std::vector<c10::IValue>(inputs.begin(), inputs.end()))) {
      if (output.isTensor()) {
        outputs.push_back(output.toTensor());
      } else if (output.isScalar()) {
        outputs.push_back(at::scalar_to_tensor(output.toScalar()));
      }
    }
    return outputs;
  }

 private:
  const std::unique_ptr<Executor> executor_;
};

// Returns "s14" for "Symbol('s14', positive=True, integer=True)"; empty for other expressions.
std::string SymbolOf(const std::string& expression) {
  static const re2::RE2 kSymbol(R"(Symbol\('(\w+)'(?:, \w+=\w+)*\))");
  std::string name;
  RE2::FullMatch(expression, kSymbol, &name);
  return name;
}

// Reads the ranges of dynamic sizes, by symbol.
absl::StatusOr<std::map<std::string, PackageDim>> ReadRanges(const JsonField& program) {
  std::map<std::string, PackageDim> ranges;
  const absl::StatusOr<JsonField> constraints = program.Get("range_constraints");
  if (!constraints.ok()) {
    return ranges;
  }
  for (const std::string& symbol : constraints->Keys()) {
    PackageDim& dim = ranges[symbol];
    BRAID_ASSIGN_OR_RETURN(const JsonField range, constraints->Get(symbol.c_str()));
    for (const auto& [name, bound] : {std::pair("min_val", &dim.min), {"max_val", &dim.max}}) {
      const absl::StatusOr<JsonField> value = range.Get(name);
      if (value.ok() && !value->is_null()) {
        BRAID_ASSIGN_OR_RETURN(*bound, value->Integer());
      }
    }
    if (dim.min > dim.max) {
      return range.Error(absl::StrCat("min_val ", dim.min, " exceeds max_val ", dim.max));
    }
  }
  return ranges;
}

absl::StatusOr<PackageInput> ReadInput(const JsonField& argument, const JsonField& values,
                                       const std::map<std::string, PackageDim>& ranges) {
  BRAID_ASSIGN_OR_RETURN(const GraphTensor tensor, ReadGraphTensor(argument, values));
  if (!tensor.type || !tensor.dense) {
    return argument.Error("the datatype or layout of the tensor is not supported");
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

// Reads an integer input. symbols: the graph's "sym_int_values".
absl::StatusOr<PackageInput> ReadNumber(const JsonField& argument, const JsonField& symbols,
                                        const std::map<std::string, PackageDim>& ranges) {
  BRAID_ASSIGN_OR_RETURN(const JsonField number, argument.Get("as_sym_int"));
  BRAID_ASSIGN_OR_RETURN(const JsonField name_field, number.Get("as_name"));
  BRAID_ASSIGN_OR_RETURN(const std::string name, name_field.String());
  PackageInput input{name, DataType::kInt64, {{.min = 1, .max = 1}}};
  input.number = true;
  BRAID_ASSIGN_OR_RETURN(const JsonField symbol, symbols.Get(name.c_str()));
  BRAID_ASSIGN_OR_RETURN(const JsonField expression, symbol.Get("as_expr"));
  BRAID_ASSIGN_OR_RETURN(const JsonField text, expression.Get("expr_str"));
  BRAID_ASSIGN_OR_RETURN(const std::string written, text.String());
  if (const auto range = ranges.find(SymbolOf(written)); range != ranges.end()) {
    input.range = ValueRange{range->second.min, range->second.max};
  }
  return input;
}

// Marks those of the interface's `inputs` that the graph modifies.
absl::Status FindMutated(const JsonField& graph, const std::vector<JsonField>& arguments,
                         std::vector<PackageInput>* inputs) {
  std::vector<std::string> names;
  for (const JsonField& argument : arguments) {
    std::string& name = names.emplace_back();
    if (argument.Has("as_tensor")) {
      BRAID_ASSIGN_OR_RETURN(const JsonField tensor, argument.Get("as_tensor"));
      BRAID_ASSIGN_OR_RETURN(const JsonField field, tensor.Get("name"));
      BRAID_ASSIGN_OR_RETURN(name, field.String());
    }
  }
  BRAID_ASSIGN_OR_RETURN(const std::set<std::string> mutated,
                         MutatedInputs(graph, {names.begin(), names.end()}));
  for (size_t i = 0; i < names.size(); ++i) {
    (*inputs)[i].mutated = mutated.contains(names[i]);
  }
  return absl::OkStatus();
}

// Returns the names of the inputs in the graph.
std::vector<std::string> NamesOf(const std::vector<PackageInput>& inputs) {
  std::vector<std::string> names;
  names.reserve(inputs.size());
  for (const PackageInput& input : inputs) {
    names.push_back(input.name);
  }
  return names;
}

// Checks that outputs are dense tensors, numbers or None, and that signature and graph agree.
absl::Status CheckOutputs(const JsonField& signature, const JsonField& graph,
                          const JsonField& values) {
  static const auto* const kKinds =
      new std::set<std::string>({"as_tensor", "as_none", "as_int", "as_float", "as_bool",
                                 "as_sym_int", "as_sym_float", "as_sym_bool"});
  BRAID_ASSIGN_OR_RETURN(const std::vector<JsonField> outputs,
                         SignatureArguments(signature, "output_specs", "user_output"));
  BRAID_ASSIGN_OR_RETURN(const JsonField returned, graph.Get("outputs"));
  BRAID_ASSIGN_OR_RETURN(const std::vector<JsonField> results, returned.Items());
  if (results.size() != outputs.size()) {
    return returned.Error(absl::StrCat("has ", results.size(), " outputs (expected ",
                                       outputs.size(), ", as the signature has)"));
  }
  for (size_t o = 0; o < outputs.size(); ++o) {
    const JsonField& output = outputs[o];
    const std::vector<std::string> kind = output.Keys();
    if (kind.size() != 1 || !kKinds->contains(kind.front())) {
      return output.Error("unsupported output (expected a tensor, a number or None)");
    }
    if (!results[o].Has(kind.front().c_str())) {
      return results[o].Error(
          absl::StrCat("wrong kind of output (expected ", kind.front(), ", as in the signature)"));
    }
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

// True if the result of the operator has exactly the values of its first argument.
bool KeepsValues(const std::string& name) {
  static const auto* const kNames = new std::set<std::string>(
      {"_to_copy", "_unsafe_view", "alias", "clone", "contiguous", "detach", "expand", "flatten",
       "permute", "ravel", "reshape", "squeeze", "t", "to", "transpose", "type_as", "unflatten",
       "unsqueeze", "view"});
  return kNames->contains(name);
}

bool IsInteger(std::optional<DataType> type) {
  return type && !IsFloatingPoint(*type) && *type != DataType::kBool;
}

// Returns "embedding" for "torch.ops.aten.embedding.default"; empty for operators outside of ATen.
std::string NameOf(const std::string& target) {
  static const re2::RE2 kTarget(R"(torch\.ops\.aten\.(\w+)\.\w+)");
  std::string name;
  RE2::FullMatch(target, kTarget, &name);
  return name;
}

// Sets the range of each of `inputs` that `graph`, which CheckGraph() accepts, uses as indices of
// an embedding. All of the input must be used, possibly in another shape or integer type. Sets no
// ranges if the graph modifies integers in place: that may move values into the range.
// names: names of the inputs' tensors in the graph.
absl::Status FindEmbeddingRanges(const JsonField& graph, const std::vector<std::string>& names,
                                 std::vector<PackageInput>* inputs) {
  BRAID_ASSIGN_OR_RETURN(const JsonField values, graph.Get("tensor_values"));
  BRAID_ASSIGN_OR_RETURN(const JsonField list, graph.Get("nodes"));
  BRAID_ASSIGN_OR_RETURN(const std::vector<JsonField> nodes, list.Items());
  std::map<std::string, size_t> source;  // index of the input with the same values, by tensor
  for (size_t i = 0; i < names.size(); ++i) {
    source[names[i]] = i;
  }
  std::map<size_t, int64_t> last;
  for (const JsonField& node : nodes) {
    BRAID_ASSIGN_OR_RETURN(const JsonField target, node.Get("target"));
    BRAID_ASSIGN_OR_RETURN(const std::string text, target.String());
    const std::string name = NameOf(text);
    BRAID_ASSIGN_OR_RETURN(const JsonField taken, node.Get("inputs"));
    BRAID_ASSIGN_OR_RETURN(const std::vector<JsonField> items, taken.Items());
    std::vector<GraphTensor> tensors;
    for (const JsonField& item : items) {
      BRAID_ASSIGN_OR_RETURN(const JsonField argument, item.Get("arg"));
      if (argument.Has("as_tensor")) {
        BRAID_ASSIGN_OR_RETURN(tensors.emplace_back(), ReadGraphTensor(argument, values));
      }
    }
    if (tensors.empty()) {
      continue;
    }
    if (absl::EndsWith(name, "_") && IsInteger(tensors[0].type)) {
      return absl::OkStatus();
    }
    const bool lookup = name == "embedding" || name == "embedding_bag" || name == "_embedding_bag";
    if (lookup && tensors.size() > 1 && !tensors[0].shape.empty() && tensors[0].shape[0] > 0) {
      if (const auto input = source.find(tensors[1].name); input != source.end()) {
        const int64_t rows = tensors[0].shape[0];
        const auto before = last.try_emplace(input->second, rows - 1).first;
        before->second = std::min(before->second, rows - 1);
      }
    }
    const auto input = source.find(tensors[0].name);
    if (!KeepsValues(name) || input == source.end()) {
      continue;
    }
    BRAID_ASSIGN_OR_RETURN(const JsonField given, node.Get("outputs"));
    BRAID_ASSIGN_OR_RETURN(const std::vector<JsonField> results, given.Items());
    if (results.size() == 1 && results[0].Has("as_tensor")) {
      BRAID_ASSIGN_OR_RETURN(const GraphTensor result, ReadGraphTensor(results[0], values));
      // Smaller integer types cannot represent all indices.
      if (result.type == DataType::kInt32 || result.type == DataType::kInt64) {
        source[result.name] = input->second;
      }
    }
  }
  for (const auto& [input, index] : last) {
    if (IsInteger((*inputs)[input].type)) {
      (*inputs)[input].range = ValueRange{0, index};
    }
  }
  return absl::OkStatus();
}

// Names the outputs for a self-test, which numbers those that are not None.
absl::StatusOr<std::vector<std::string>> TestedOutputs(const JsonField& signature) {
  BRAID_ASSIGN_OR_RETURN(const std::vector<JsonField> outputs,
                         SignatureArguments(signature, "output_specs", "user_output"));
  std::vector<std::string> names;
  size_t count = 0;
  for (const JsonField& output : outputs) {
    names.push_back(output.Has("as_none") ? "" : absl::StrCat("output/", count++));
  }
  return names;
}

TestedModel Tested(const ProgramDescription& description,
                   std::shared_ptr<const ExportedGraph> graph) {
  TestedModel model;
  TestedGraph& tested = model.graphs.emplace_back();
  tested = {kProgram, "eval", std::move(graph), {}, description.outputs};
  for (PackageInput input : description.interface.inputs) {
    input.name = absl::StrCat("input/", model.inputs.size());
    tested.inputs.push_back(input.name);
    model.inputs.push_back(std::move(input));
  }
  return model;
}

// Returns the names whose spec satisfies `wanted`. `names` and `specs` have the same order.
std::vector<std::string> Select(const std::vector<JsonField>& specs,
                                absl::FunctionRef<bool(const JsonField&)> wanted,
                                const std::vector<std::string>& names) {
  std::vector<std::string> picked;
  for (size_t i = 0; i < specs.size() && i < names.size(); ++i) {
    if (wanted(specs[i])) {
      picked.push_back(names[i]);
    }
  }
  return picked;
}

// Sets the names of inputs and outputs of `interface` from forward()'s arguments and results.
absl::Status NameLeaves(const JsonField& module, PackageInterface* interface) {
  BRAID_ASSIGN_OR_RETURN(const JsonField calls, module.Get("module_call_graph"));
  BRAID_ASSIGN_OR_RETURN(const std::vector<JsonField> modules, calls.Items());
  if (modules.empty()) {
    return calls.Error("is empty");
  }
  BRAID_ASSIGN_OR_RETURN(const JsonField call, modules.front().Get("signature"));
  BRAID_ASSIGN_OR_RETURN(const JsonField in_spec, call.Get("in_spec"));
  BRAID_ASSIGN_OR_RETURN(const std::string in_text, in_spec.String());
  BRAID_ASSIGN_OR_RETURN(const JsonField out_spec, call.Get("out_spec"));
  BRAID_ASSIGN_OR_RETURN(const std::string out_text, out_spec.String());
  std::vector<std::string> positional;
  if (call.Has("forward_arg_names")) {
    BRAID_ASSIGN_OR_RETURN(const JsonField names, call.Get("forward_arg_names"));
    BRAID_ASSIGN_OR_RETURN(positional, names.Strings());
  }
  BRAID_ASSIGN_OR_RETURN(const JsonField signature, module.Get("signature"));
  BRAID_ASSIGN_OR_RETURN(const JsonField in_specs, signature.Get("input_specs"));
  BRAID_ASSIGN_OR_RETURN(std::vector<JsonField> inputs, in_specs.Items());
  // Arguments of forward(), including constants, whose values are in the package.
  std::erase_if(inputs, [](const JsonField& spec) {
    return !spec.Has("user_input") && !spec.Has("constant_input");
  });
  const std::vector<std::string> names = Select(
      inputs, [](const JsonField& spec) { return spec.Has("user_input"); },
      InputNames(ParseTree(in_text), positional));
  for (size_t i = 0; names.size() == interface->inputs.size() && i < names.size(); ++i) {
    interface->inputs[i].name = names[i];
  }
  BRAID_ASSIGN_OR_RETURN(std::vector<JsonField> outputs,
                         SignatureArguments(signature, "output_specs", "user_output"));
  interface->output_paths = Select(
      outputs, [](const JsonField& output) { return !output.Has("as_none"); },
      OutputPaths(ParseTree(out_text)));
  std::erase_if(outputs, [](const JsonField& output) { return output.Has("as_none"); });
  for (size_t o = 0; o < outputs.size(); ++o) {
    if (!outputs[o].Has("as_tensor")) {
      interface->numbers.insert(o);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ProgramDescription> DescribeProgram(const JsonField& root) {
  BRAID_RETURN_IF_ERROR(CheckProgramSchema(root));
  BRAID_ASSIGN_OR_RETURN(const JsonField torch, root.Get("torch_version"));
  ProgramDescription description;
  BRAID_ASSIGN_OR_RETURN(description.torch_version, torch.String());
  BRAID_ASSIGN_OR_RETURN(const JsonField module, root.Get("graph_module"));
  BRAID_ASSIGN_OR_RETURN(const JsonField graph, module.Get("graph"));
  BRAID_ASSIGN_OR_RETURN(const JsonField values, graph.Get("tensor_values"));
  BRAID_ASSIGN_OR_RETURN(const JsonField signature, module.Get("signature"));
  BRAID_ASSIGN_OR_RETURN(const auto ranges, ReadRanges(root));
  BRAID_RETURN_IF_ERROR(CheckGraph(graph, signature));
  PackageInterface& interface = description.interface;
  BRAID_ASSIGN_OR_RETURN(const std::vector<JsonField> inputs,
                         SignatureArguments(signature, "input_specs", "user_input"));
  for (const JsonField& argument : inputs) {
    if (argument.Has("as_sym_int")) {
      BRAID_ASSIGN_OR_RETURN(const JsonField symbols, graph.Get("sym_int_values"));
      BRAID_ASSIGN_OR_RETURN(interface.inputs.emplace_back(),
                             ReadNumber(argument, symbols, ranges));
      continue;
    }
    if (!argument.Has("as_tensor")) {
      return argument.Error("unsupported kind of input (expected a tensor or an integer)");
    }
    BRAID_ASSIGN_OR_RETURN(PackageInput input, ReadInput(argument, values, ranges));
    description.on_cpu = description.on_cpu && input.on_cpu;
    interface.inputs.push_back(std::move(input));
  }
  BRAID_RETURN_IF_ERROR(FindMutated(graph, inputs, &interface.inputs));
  BRAID_RETURN_IF_ERROR(FindEmbeddingRanges(graph, NamesOf(interface.inputs), &interface.inputs));
  BRAID_ASSIGN_OR_RETURN(description.training_operators, TrainingOperators(graph));
  if (interface.inputs.empty()) {
    return signature.Error(
        "the program has no inputs (expected at least one: make it an argument of forward() and "
        "export again)");
  }
  // Any other output is a buffer or input that the program changes.
  BRAID_ASSIGN_OR_RETURN(const JsonField outputs, signature.Get("output_specs"));
  BRAID_ASSIGN_OR_RETURN(const std::vector<JsonField> specs, outputs.Items());
  for (const JsonField& spec : specs) {
    if (!spec.Has("user_output")) {
      return spec.Error("the program changes its buffers or inputs: export it in evaluation mode");
    }
  }
  BRAID_RETURN_IF_ERROR(CheckOutputs(signature, graph, values));
  BRAID_ASSIGN_OR_RETURN(description.outputs, TestedOutputs(signature));
  BRAID_RETURN_IF_ERROR(NameLeaves(module, &interface));
  return description;
}

absl::StatusOr<std::shared_ptr<const InferencePackage>> ExportedProgram::Open(
    const std::string& path, c10::Device device) {
  const std::string name = std::filesystem::path(path).filename();
  BRAID_ASSIGN_OR_RETURN(const MemoryFile file, MemoryFile::Copy(path));
  BRAID_ASSIGN_OR_RETURN(const std::unique_ptr<ModelArchive> archive,
                         ModelArchive::Open(file.path(), name));
  BRAID_RETURN_IF_ERROR(archive->CheckContents());
  const std::string record = absl::StrCat("models/", kProgram, ".json");
  BRAID_ASSIGN_OR_RETURN(const std::string text, archive->Read(record));
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) {
    return absl::FailedPreconditionError(absl::StrCat(name, ": ", record, ": not valid JSON"));
  }
  const JsonField program(json, "");
  absl::StatusOr<ProgramDescription> description = DescribeProgram(program);
  if (!description.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(name, ": ", description.status().message()));
  }
  auto graph = ExportedGraph::Load(file.path(), kProgram, program);
  if (!graph.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(name, ": ", graph.status().message()));
  }
  if (device.is_cpu() == description->on_cpu) {
    const absl::Status status = CheckPackageVersion(
        path, description->torch_version, [&] { return Tested(*description, *graph); }, device,
        archive.get());
    if (!status.ok()) {
      return absl::Status(status.code(), absl::StrCat(name, ": ", status.message()));
    }
  }
  WarnAboutTrainingOperators(path, description->training_operators);
  return std::shared_ptr<const InferencePackage>(
      new ExportedProgram(*std::move(graph), *std::move(description)));
}

absl::StatusOr<std::unique_ptr<PackageRunner>> ExportedProgram::MakeRunner(
    c10::Device device) const {
  if (device.is_cpu() != description_.on_cpu) {
    return absl::FailedPreconditionError(
        absl::StrCat("model.pt2 was exported on ", description_.on_cpu ? "the CPU" : "a GPU",
                     " and cannot run on ", c10::str(device), ": export it on such a device"));
  }
  return std::make_unique<ProgramRunner>(graph_->MakeExecutor(device));
}

}  // namespace braid
