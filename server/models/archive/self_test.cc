#include "server/models/archive/self_test.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "ATen/ScalarOps.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "nlohmann/json.hpp"
#include "server/base/json_fields.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/devices/random.h"
#include "server/devices/run_on.h"

namespace braid {
namespace {

constexpr char kFormat[] = "braid-self-test";
constexpr int64_t kSchemaVersion = 1;

absl::Status CheckVersion(const JsonField& root) {
  BRAID_ASSIGN_OR_RETURN(const JsonField format, root.Get("format"));
  BRAID_ASSIGN_OR_RETURN(const std::string name, format.String());
  if (name != kFormat) {
    return format.Error(absl::StrCat("'", Excerpt(name), "' (expected ", kFormat, ")"));
  }
  BRAID_ASSIGN_OR_RETURN(const JsonField schema, root.Get("schema_version"));
  BRAID_ASSIGN_OR_RETURN(const int64_t version, schema.Integer());
  if (version != kSchemaVersion) {
    return schema.Error(
        absl::StrCat("unsupported version ", version, " (expected ", kSchemaVersion, ")"));
  }
  return absl::OkStatus();
}

absl::Status CheckText(const JsonField& object, const char* name, const std::string& expected) {
  BRAID_ASSIGN_OR_RETURN(const JsonField field, object.Get(name));
  BRAID_ASSIGN_OR_RETURN(const std::string text, field.String());
  return text == expected
             ? absl::OkStatus()
             : field.Error(absl::StrCat("'", Excerpt(text), "' (expected ", expected, ")"));
}

// Checks that dims with the same symbol have the same size.
absl::Status CheckSymbols(const PackageInput& input, const std::vector<int64_t>& shape,
                          const JsonField& field, std::map<std::string, int64_t>* sizes) {
  for (size_t d = 0; d < shape.size(); ++d) {
    const std::string& symbol = input.dims[d].symbol;
    if (symbol.empty() || input.dims[d].fixed()) {
      continue;
    }
    const int64_t size = sizes->try_emplace(symbol, shape[d]).first->second;
    if (size != shape[d]) {
      return field.Error(absl::StrCat("dim ", d, " is ", shape[d], " (expected ", size,
                                      ", as in another tensor)"));
    }
  }
  return absl::OkStatus();
}

std::optional<at::Tensor> AsTensor(const c10::IValue& value) {
  if (value.isTensor()) {
    return value.toTensor();
  }
  return value.isScalar() ? std::optional(at::scalar_to_tensor(value.toScalar())) : std::nullopt;
}

// Returns "output 'y'" for "output/y".
std::string Described(const std::string& tensor) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(tensor, absl::MaxSplits('/', 1));
  return absl::StrCat(parts.first, " '", Excerpt(parts.second), "'");
}

absl::Status InGraph(const TestedGraph& graph, const absl::Status& status) {
  return {status.code(),
          absl::StrCat("graph '", Excerpt(graph.name), "'",
                       status.code() == absl::StatusCode::kFailedPrecondition ? ", " : ": ",
                       status.message())};
}

}  // namespace

absl::StatusOr<SelfTest> SelfTest::Parse(absl::string_view text, const TestedModel& model) {
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const JsonField root(json, "");
  if (!json.is_object()) {
    return root.Error("not a JSON object");
  }
  BRAID_RETURN_IF_ERROR(CheckVersion(root));
  SelfTest test;
  BRAID_ASSIGN_OR_RETURN(const JsonField torch, root.Get("torch_version"));
  BRAID_ASSIGN_OR_RETURN(test.torch_version_, torch.String());
  BRAID_ASSIGN_OR_RETURN(const JsonField seed, root.Get("seed"));
  BRAID_ASSIGN_OR_RETURN(const int64_t number, seed.Integer());
  test.seed_ = static_cast<uint64_t>(number);
  BRAID_RETURN_IF_ERROR(test.ReadGiven(root, model));
  BRAID_RETURN_IF_ERROR(test.ReadSteps(root, model));
  return test;
}

absl::Status SelfTest::ReadGiven(const JsonField& root, const TestedModel& model) {
  BRAID_ASSIGN_OR_RETURN(const JsonField given, root.Get("given"));
  std::map<std::string, int64_t> sizes;
  for (const std::string& name : given.Keys()) {
    BRAID_ASSIGN_OR_RETURN(const JsonField field, given.Get(name.c_str()));
    const auto input =
        std::find_if(model.inputs.begin(), model.inputs.end(),
                     [&](const PackageInput& candidate) { return candidate.name == name; });
    if (input == model.inputs.end()) {
      return field.Error("no graph has this input");
    }
    BRAID_ASSIGN_OR_RETURN(GivenTensor tensor, GivenTensor::Read(field, *input));
    BRAID_RETURN_IF_ERROR(CheckSymbols(*input, tensor.shape(), field, &sizes));
    given_.push_back({name, input->on_cpu, std::move(tensor)});
  }
  return absl::OkStatus();
}

absl::Status SelfTest::ReadSteps(const JsonField& root, const TestedModel& model) {
  BRAID_ASSIGN_OR_RETURN(const JsonField graphs, root.Get("graphs"));
  BRAID_ASSIGN_OR_RETURN(const std::vector<JsonField> items, graphs.Items());
  if (items.size() != model.graphs.size()) {
    return graphs.Error(
        absl::StrCat("has ", items.size(), " graphs (expected ", model.graphs.size(), ")"));
  }
  for (size_t i = 0; i < items.size(); ++i) {
    BRAID_ASSIGN_OR_RETURN(Step step, ReadStep(items[i], model.graphs[i]));
    steps_.push_back(std::move(step));
  }
  return absl::OkStatus();
}

absl::StatusOr<SelfTest::Step> SelfTest::ReadStep(const JsonField& field,
                                                  const TestedGraph& graph) {
  BRAID_RETURN_IF_ERROR(CheckText(field, "graph", graph.name));
  BRAID_RETURN_IF_ERROR(CheckText(field, "role", graph.role));
  BRAID_ASSIGN_OR_RETURN(const JsonField expected, field.Get("expected"));
  Step step{graph, {}};
  for (const std::string& name : expected.Keys()) {
    BRAID_ASSIGN_OR_RETURN(const JsonField sample, expected.Get(name.c_str()));
    if (std::find(graph.outputs.begin(), graph.outputs.end(), name) == graph.outputs.end()) {
      return sample.Error("the graph has no such output");
    }
    BRAID_ASSIGN_OR_RETURN(ExpectedSample read, ExpectedSample::Read(sample));
    step.expected.emplace(name, std::move(read));
  }
  if (step.expected.empty()) {
    return expected.Error("empty (expected at least one output)");
  }
  return step;
}

absl::Status SelfTest::Run(c10::Device device) const {
  Tensors tensors;
  BRAID_RETURN_IF_ERROR(CatchTorch([&] {
    tensors = MakeGiven(device);
    return absl::OkStatus();
  }));
  for (const Step& step : steps_) {
    const absl::Status status = CatchTorch([&] { return RunStep(step, device, &tensors); });
    if (!status.ok()) {
      return InGraph(step.graph, status);
    }
  }
  return absl::OkStatus();
}

SelfTest::Tensors SelfTest::MakeGiven(c10::Device device) const {
  Tensors tensors;
  for (const Given& given : given_) {
    tensors[given.name] = given.tensor.Make().to(given.on_cpu ? c10::kCPU : device);
  }
  return tensors;
}

absl::Status SelfTest::RunStep(const Step& step, c10::Device device, Tensors* tensors) const {
  std::vector<c10::IValue> arguments;
  for (const std::string& name : step.graph.inputs) {
    const auto found = tensors->find(name);
    if (found == tensors->end()) {
      return absl::InternalError(absl::StrCat("the self-test has no ", Described(name)));
    }
    arguments.emplace_back(found->second);
  }
  const RandomSeedGuard seeded(device, seed_);
  const std::vector<c10::IValue> results =
      step.graph.graph->MakeExecutor(device)->Run(std::move(arguments));
  Tensors made;
  for (size_t r = 0; r < results.size() && r < step.graph.outputs.size(); ++r) {
    if (const std::optional<at::Tensor> tensor = AsTensor(results[r])) {
      at::Tensor& place = made[step.graph.outputs[r]];
      place = place.defined() ? place.add(*tensor) : *tensor;
    }
  }
  for (const auto& [name, sample] : step.expected) {
    const auto found = made.find(name);
    const std::optional<std::string> difference =
        found == made.end() ? "is missing" : sample.Difference(found->second);
    if (difference) {
      return absl::FailedPreconditionError(absl::StrCat(Described(name), " ", *difference));
    }
  }
  made.merge(*tensors);
  *tensors = std::move(made);
  return absl::OkStatus();
}

}  // namespace braid
