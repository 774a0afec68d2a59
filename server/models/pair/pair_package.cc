#include "server/models/pair/pair_package.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "ATen/ops/empty.h"
#include "absl/strings/str_cat.h"
#include "c10/core/GradMode.h"
#include "nlohmann/json.hpp"
#include "server/base/json_fields.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/models/archive/graph_check.h"
#include "server/models/archive/graph_tensors.h"
#include "server/models/archive/model_archive.h"
#include "server/models/archive/package_version.h"
#include "server/parallel/host_copy.h"
#include "server/storage/model_files.h"
#include "server/storage/safetensors.h"

namespace braid {
namespace {

// Datatype and shape of a tensor.
struct TypeAndShape {
  std::optional<DataType> type;  // nullopt: unknown
  std::vector<int64_t> shape;    // -1: unknown
};

// Returns what train.json declares for the tensor in `slot`; nullopt for saved tensors.
std::optional<TypeAndShape> DeclaredTensor(const PairSlot& slot, const PairManifest& manifest,
                                           const PairStage& part, bool autocast) {
  switch (slot.role) {
    case PairRole::kParameter:
    case PairRole::kBuffer:
    case PairRole::kNewBuffer:
    case PairRole::kParameterGradient: {
      const PairEntry& entry = manifest.state[slot.index];
      return TypeAndShape{entry.type, entry.shape};
    }
    case PairRole::kInput:
    case PairRole::kInputGradient: {
      const PairTensor& input = part.inputs[slot.index];
      // Under autocast, the datatype of a stage's input is that of the previous stage's output.
      const bool computed = autocast && !part.path.empty();
      return TypeAndShape{computed ? std::nullopt : std::optional(input.type), input.shape};
    }
    case PairRole::kOutput:
    case PairRole::kOutputGradient: {
      const PairTensor& output = part.outputs[slot.index];
      // Autocast may change the datatype.
      return TypeAndShape{autocast ? std::nullopt : std::optional(output.type), output.shape};
    }
    case PairRole::kSaved:
      break;
  }
  return std::nullopt;
}

bool Agree(const TypeAndShape& declared, const GraphTensor& actual) {
  if ((declared.type && declared.type != actual.type) ||
      declared.shape.size() != actual.shape.size()) {
    return false;
  }
  for (size_t d = 0; d < actual.shape.size(); ++d) {
    if (declared.shape[d] >= 0 && actual.shape[d] >= 0 && declared.shape[d] != actual.shape[d]) {
      return false;
    }
  }
  return true;
}

std::string Describe(const TypeAndShape& tensor) {
  return absl::StrCat(tensor.type ? DataTypeName(*tensor.type) : "of any type",
                      ShapeString(tensor.shape));
}

using Graphs = std::map<std::string, std::shared_ptr<const ExportedGraph>>;

// Compares the graphs of a program with train.json and loads them.
class GraphCheck {
 public:
  // path: file of `archive`. graphs: receives the loaded graphs.
  GraphCheck(std::string path, ModelArchive* archive, const PairManifest& manifest,
             const PairStage& part, bool autocast, Graphs* graphs)
      : path_(std::move(path)),
        archive_(archive),
        manifest_(manifest),
        part_(part),
        autocast_(autocast),
        graphs_(graphs) {}

  absl::Status Run(const PairGraph& graph) {
    const std::string record = absl::StrCat("models/", graph.name, ".json");
    if (!archive_->Has(record)) {
      return Wrong(graph, absl::FailedPreconditionError("not in the package"));
    }
    BRAID_ASSIGN_OR_RETURN(const std::string text, archive_->Read(record));
    const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    const JsonField program(json, "");
    if (const absl::Status status = Compare(graph, program); !status.ok()) {
      return Wrong(graph, status);
    }
    BRAID_ASSIGN_OR_RETURN((*graphs_)[graph.name], ExportedGraph::Load(path_, graph.name, program));
    return absl::OkStatus();
  }

 private:
  static absl::Status Wrong(const PairGraph& graph, const absl::Status& status) {
    return absl::FailedPreconditionError(
        absl::StrCat("graph '", Excerpt(graph.name), "': ", status.message()));
  }

  absl::Status Compare(const PairGraph& graph, const JsonField& program) {
    BRAID_RETURN_IF_ERROR(CheckProgramSchema(program));
    BRAID_ASSIGN_OR_RETURN(const JsonField module, program.Get("graph_module"));
    BRAID_ASSIGN_OR_RETURN(const JsonField body, module.Get("graph"));
    BRAID_ASSIGN_OR_RETURN(const JsonField values, body.Get("tensor_values"));
    BRAID_ASSIGN_OR_RETURN(const JsonField signature, module.Get("signature"));
    BRAID_RETURN_IF_ERROR(CheckGraph(body, signature));
    BRAID_ASSIGN_OR_RETURN(const std::vector<JsonField> inputs,
                           SignatureArguments(signature, "input_specs", "user_input"));
    BRAID_RETURN_IF_ERROR(CompareSide(inputs, values, graph.inputs, "inputs"));
    BRAID_ASSIGN_OR_RETURN(const std::vector<JsonField> outputs,
                           SignatureArguments(signature, "output_specs", "user_output"));
    return CompareSide(outputs, values, graph.outputs, "outputs");
  }

  absl::Status CompareSide(const std::vector<JsonField>& arguments, const JsonField& values,
                           const std::vector<PairSlot>& slots, absl::string_view side) {
    if (arguments.size() != slots.size()) {
      return absl::FailedPreconditionError(
          absl::StrCat(arguments.size(), " ", side, " (train.json declares ", slots.size(), ")"));
    }
    for (size_t s = 0; s < slots.size(); ++s) {
      BRAID_ASSIGN_OR_RETURN(const GraphTensor actual, ReadGraphTensor(arguments[s], values));
      const auto declared = DeclaredTensor(slots[s], manifest_, part_, autocast_);
      if (declared && !Agree(*declared, actual)) {
        return arguments[s].Error(absl::StrCat(Describe({actual.type, actual.shape}),
                                               " (train.json declares ", Describe(*declared), ")"));
      }
      if (slots[s].role == PairRole::kSaved) {
        // The forward graph comes first. Datatypes are not compared: traces sometimes record wrong
        // ones.
        const auto& shape = saved_.try_emplace(slots[s].index, actual.shape).first->second;
        if (shape != actual.shape) {
          return arguments[s].Error(
              absl::StrCat("saved tensor of shape ", ShapeString(actual.shape),
                           " (the forward graph returns ", ShapeString(shape), ")"));
        }
      }
    }
    return absl::OkStatus();
  }

  const std::string path_;
  ModelArchive* const archive_;
  const PairManifest& manifest_;
  const PairStage& part_;
  const bool autocast_;
  Graphs* const graphs_;
  std::map<size_t, std::vector<int64_t>> saved_;  // shapes of saved tensors, by index
};

absl::StatusOr<Graphs> LoadGraphs(const std::string& path, ModelArchive* archive,
                                  const PairManifest& manifest) {
  Graphs graphs;
  for (const PairStage& part : manifest.stages) {
    for (const PairProgram& program : part.programs) {
      GraphCheck check(path, archive, manifest, part, program.autocast.has_value(), &graphs);
      BRAID_RETURN_IF_ERROR(check.Run(program.eval));
      for (const auto* graph : {&program.forward, &program.backward}) {
        if (*graph) {
          BRAID_RETURN_IF_ERROR(check.Run(**graph));
        }
      }
    }
  }
  return graphs;
}

// Describes a pair for its self-test: the graphs of the whole model, in its own precision.
class PairUnderTest {
 public:
  PairUnderTest(const PairManifest& manifest, const Graphs& graphs)
      : manifest_(manifest), graphs_(graphs), part_(manifest.stages.front()) {}

  TestedModel Describe() const {
    TestedModel model;
    for (size_t i = 0; i < manifest_.state.size(); ++i) {
      if (manifest_.state[i].tensor == i) {
        const auto role =
            manifest_.state[i].is_parameter ? PairRole::kParameter : PairRole::kBuffer;
        model.inputs.push_back(Input({role, i}));
      }
    }
    for (size_t i = 0; i < part_.inputs.size(); ++i) {
      model.inputs.push_back(Input({PairRole::kInput, i}));
      model.inputs.back().range = part_.inputs[i].range;
    }
    for (size_t o = 0; o < part_.outputs.size(); ++o) {
      model.inputs.push_back(Input({PairRole::kOutputGradient, o}));
    }
    const PairProgram& program = part_.programs.front();
    model.graphs.push_back(Graph(program.eval, "eval"));
    if (program.forward) {
      model.graphs.push_back(Graph(*program.forward, "forward"));
    }
    if (program.backward) {
      model.graphs.push_back(Graph(*program.backward, "backward"));
    }
    return model;
  }

 private:
  std::string NameOf(const PairSlot& slot) const {
    return absl::StrCat(PairRoleName(slot.role), "/", Name(slot));
  }

  std::string Name(const PairSlot& slot) const {
    switch (slot.role) {
      case PairRole::kInput:
      case PairRole::kInputGradient:
        return part_.inputs[slot.index].name;
      case PairRole::kOutput:
      case PairRole::kOutputGradient:
        return part_.outputs[slot.index].name;
      case PairRole::kSaved:
        return absl::StrCat(slot.index);
      default:
        return manifest_.state[slot.index].name;
    }
  }

  PackageInput Input(const PairSlot& slot) const {
    const TypeAndShape declared = *DeclaredTensor(slot, manifest_, part_, /*autocast=*/false);
    PackageInput input{NameOf(slot), *declared.type, {}, /*on_cpu=*/false};
    for (size_t d = 0; d < declared.shape.size(); ++d) {
      const int64_t size = declared.shape[d];
      input.dims.push_back(size >= 0 ? PackageDim{.min = size, .max = size}
                           : d == 0  ? PackageDim{.min = 1, .symbol = "batch"}
                                     : PackageDim());
    }
    return input;
  }

  TestedGraph Graph(const PairGraph& graph, const char* role) const {
    TestedGraph tested{graph.name, role, graphs_.at(graph.name), {}, {}};
    for (const PairSlot& slot : graph.inputs) {
      tested.inputs.push_back(NameOf(slot));
    }
    for (const PairSlot& slot : graph.outputs) {
      tested.outputs.push_back(NameOf(slot));
    }
    return tested;
  }

  const PairManifest& manifest_;
  const Graphs& graphs_;
  const PairStage& part_;
};

absl::Status Wrong(absl::string_view file, absl::string_view what) {
  return absl::FailedPreconditionError(absl::StrCat(file, ": ", what));
}

}  // namespace

absl::StatusOr<std::shared_ptr<const PairPackage>> PairPackage::Open(const std::string& path,
                                                                     c10::Device device) {
  const std::string name = std::filesystem::path(path).filename();
  BRAID_ASSIGN_OR_RETURN(MemoryFile file, MemoryFile::Copy(path));
  BRAID_ASSIGN_OR_RETURN(const std::unique_ptr<ModelArchive> archive,
                         ModelArchive::Open(file.path(), name));
  BRAID_RETURN_IF_ERROR(archive->CheckContents());
  BRAID_ASSIGN_OR_RETURN(const std::string text, archive->Read(kPairManifestRecord));
  absl::StatusOr<PairManifest> manifest = ParsePairManifest(text);
  if (!manifest.ok()) {
    return Wrong(name, absl::StrCat("train.json: ", manifest.status().message()));
  }
  absl::StatusOr<Graphs> graphs = LoadGraphs(file.path(), archive.get(), *manifest);
  if (!graphs.ok()) {
    return Wrong(name, graphs.status().message());
  }
  if (device.is_cpu() == (manifest->device == "cpu")) {
    const absl::Status status = CheckPackageVersion(
        path, manifest->torch_version, [&] { return PairUnderTest(*manifest, *graphs).Describe(); },
        device, archive.get());
    if (!status.ok()) {
      return absl::Status(status.code(), absl::StrCat(name, ": ", status.message()));
    }
  }
  return std::shared_ptr<const PairPackage>(new PairPackage(
      WeightsBeside(path), std::move(file), *std::move(manifest), *std::move(graphs)));
}

absl::StatusOr<PairPackage::Tensors> PairPackage::ReadWeights() const {
  const c10::AutoGradMode no_grad(false);
  BRAID_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::Open(weights_path_));
  std::map<std::string, const SafetensorsEntry*> found;
  for (const SafetensorsEntry& entry : file.entries()) {
    found[entry.name] = &entry;
  }
  Tensors weights;
  for (size_t i = 0; i < manifest_.state.size(); ++i) {
    const PairEntry& entry = manifest_.state[i];
    const auto stored = found.find(entry.name);
    if (entry.tensor != i) {
      weights.push_back(weights[entry.tensor]);
    } else if (stored == found.end()) {
      return absl::FailedPreconditionError(
          absl::StrCat("no tensor '", Excerpt(entry.name), "' (the model has one)"));
    } else if (stored->second->type != entry.type || stored->second->shape != entry.shape) {
      return absl::FailedPreconditionError(
          absl::StrCat("'", Excerpt(entry.name), "' is ",
                       Describe({stored->second->type, stored->second->shape}), " (the model's is ",
                       Describe({entry.type, entry.shape}), ")"));
    } else {
      weights.push_back(at::empty(entry.shape, ToScalarType(entry.type)));
      BRAID_RETURN_IF_ERROR(file.Read(*stored->second, weights.back().mutable_data_ptr()));
    }
    found.erase(entry.name);
  }
  if (!found.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "unknown tensor '", Excerpt(found.begin()->first), "' (the model has no such tensor)"));
  }
  return weights;
}

absl::StatusOr<std::shared_ptr<const PairPackage::Tensors>> PairPackage::Weights() const {
  const absl::MutexLock lock(&mu_);
  std::shared_ptr<const Tensors> weights = weights_.lock();
  if (weights == nullptr) {
    absl::StatusOr<Tensors> read = ReadWeights();
    if (!read.ok()) {
      const std::string name = std::filesystem::path(weights_path_).filename();
      return Wrong(name, read.status().message());
    }
    weights = std::make_shared<const Tensors>(*std::move(read));
    weights_ = weights;
  }
  return weights;
}

}  // namespace braid
