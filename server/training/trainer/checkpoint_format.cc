#include "server/training/trainer/checkpoint_format.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <type_traits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "nlohmann/json.hpp"
#include "server/base/status.h"
#include "server/storage/model_files.h"
#include "server/storage/safetensors.h"

namespace braid {
namespace {

using nlohmann::json;

constexpr char kWeights[] = "weights.safetensors";
constexpr char kOptimizer[] = "optimizer.safetensors";
constexpr char kReply[] = "reply.safetensors";
constexpr char kBase[] = "base";
constexpr char kStatePrefix[] = "state/";
constexpr char kGradientPrefix[] = "gradient/";
constexpr char kBuffers[] = "buffers";
constexpr char kLastOperator[] = "last_operator";
constexpr char kHistory[] = "history";
constexpr char kKeepsGraph[] = "keeps_graph";

std::string Hex(double value) { return absl::StrFormat("%a", value); }

json HexList(const std::vector<double>& values) {
  json list = json::array();
  for (const double value : values) {
    list.push_back(Hex(value));
  }
  return list;
}

json WriteReply(const OperationResult& reply) {
  json out = {{"step", reply.step},
              {"skipped", reply.skipped},
              {"model", reply.model},
              {"version", reply.version}};
  if (reply.loss) {
    out["loss"] = Hex(*reply.loss);
  }
  if (reply.gradient_norm) {
    out["gradient_norm"] = Hex(*reply.gradient_norm);
  }
  if (reply.lr) {
    out["lr"] = Hex(*reply.lr);
  }
  for (const GroupLearningRate& rate : reply.lrs) {
    out["lrs"].push_back({{"group", rate.group}, {"lr", Hex(rate.lr)}});
  }
  for (const TrainingChunk& chunk : reply.chunks) {
    out["chunks"].push_back({{"device", chunk.device},
                             {"rows", chunk.rows},
                             {"stage", chunk.stage},
                             {"inputs", chunk.input_shapes},
                             {"outputs", chunk.output_shapes}});
  }
  return out;
}

// Reads fields of a JSON object. Remembers the first field that is missing or of another type.
class Fields {
 public:
  explicit Fields(const json& object) : object_(object) {}

  template <typename Value>
  Value Get(const char* name) {
    const json* field = Find(name);
    if (field == nullptr || !Fits<Value>(*field)) {
      status_.Update(
          absl::DataLossError(absl::StrCat("the state's '", name, "' is missing or invalid")));
      return Value();
    }
    return field->get<Value>();
  }
  double GetHex(const char* name) { return FromHex(name, Get<std::string>(name)); }
  std::optional<double> GetOptionalHex(const char* name) {
    return Find(name) == nullptr ? std::nullopt : std::optional<double>(GetHex(name));
  }
  std::vector<double> GetHexList(const char* name) {
    std::vector<double> values;
    for (const std::string& text : Get<std::vector<std::string>>(name)) {
      values.push_back(FromHex(name, text));
    }
    return values;
  }
  const json* Find(const char* name) const {
    const auto found = object_.find(name);
    return found == object_.end() ? nullptr : &*found;
  }
  const absl::Status& status() const { return status_; }
  void Fail(const absl::Status& status) { status_.Update(status); }

 private:
  template <typename Value>
  static bool Fits(const json& field) {
    if constexpr (std::is_same_v<Value, std::string>) {
      return field.is_string();
    } else if constexpr (std::is_same_v<Value, bool>) {
      return field.is_boolean();
    } else if constexpr (std::is_integral_v<Value>) {
      return field.is_number_integer();
    } else {
      using Element = typename Value::value_type;
      return field.is_array() && std::all_of(field.begin(), field.end(), Fits<Element>);
    }
  }
  double FromHex(const char* name, const std::string& text) {
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    if (text.empty() || *end != '\0') {
      status_.Update(absl::DataLossError(absl::StrCat("the state's '", name, "' is no number")));
    }
    return value;
  }

  const json& object_;
  absl::Status status_;
};

OperationResult ReadReply(Fields* state) {
  OperationResult reply;
  const json* object = state->Find("reply");
  if (object == nullptr || !object->is_object()) {
    state->Fail(absl::DataLossError("the state's 'reply' is missing"));
    return reply;
  }
  Fields fields(*object);
  reply.step = fields.Get<int64_t>("step");
  reply.skipped = fields.Get<bool>("skipped");
  reply.model = fields.Get<std::string>("model");
  reply.version = fields.Get<int64_t>("version");
  reply.loss = fields.GetOptionalHex("loss");
  reply.gradient_norm = fields.GetOptionalHex("gradient_norm");
  reply.lr = fields.GetOptionalHex("lr");
  if (const json* rates = fields.Find("lrs"); rates != nullptr && rates->is_array()) {
    for (const json& rate : *rates) {
      Fields of(rate);
      reply.lrs.push_back({of.Get<std::string>("group"), of.GetHex("lr")});
      fields.Fail(of.status());
    }
  }
  if (const json* chunks = fields.Find("chunks"); chunks != nullptr && chunks->is_array()) {
    for (const json& chunk : *chunks) {
      Fields of(chunk);
      reply.chunks.push_back({of.Get<std::string>("device"), of.Get<int64_t>("rows"),
                              of.Get<std::string>("stage"),
                              of.Get<std::vector<std::string>>("inputs"),
                              of.Get<std::vector<std::string>>("outputs")});
      fields.Fail(of.status());
    }
  }
  state->Fail(fields.status());
  return reply;
}

TrainerProgress ReadProgress(Fields* state) {
  TrainerProgress progress;
  progress.model = state->Get<std::string>("model");
  progress.optimizer = state->Get<std::string>("optimizer");
  progress.step = state->Get<int64_t>("step");
  progress.skipped = state->Get<int64_t>("skipped");
  progress.sequence = state->Get<int64_t>("sequence");
  progress.fingerprint.low = state->Get<uint64_t>("fingerprint_low");
  progress.fingerprint.high = state->Get<uint64_t>("fingerprint_high");
  progress.schedule = state->GetHexList("schedule");
  progress.loss_sum = state->GetHex("loss_sum");
  progress.losses = state->Get<int64_t>("losses");
  progress.reply = ReadReply(state);
  progress.reply.applied_sequence = progress.sequence;
  if (state->Find(kLastOperator) != nullptr) {
    progress.last_operator = state->Get<std::string>(kLastOperator);
  }
  progress.keeps_graph = state->Find(kKeepsGraph) != nullptr && state->Get<bool>(kKeepsGraph);
  if (state->Find(kHistory) != nullptr) {
    progress.history = state->Get<std::string>(kHistory);
  }
  return progress;
}

// "model.pt2" is "base.pt2".
std::string BaseName(const std::string& file) {
  return kBase + std::filesystem::path(file).extension().string();
}

absl::StatusOr<std::vector<HostTensor>> ReadFile(const std::map<std::string, std::string>& files,
                                                 const char* name) {
  const auto found = files.find(name);
  if (found == files.end()) {
    return absl::DataLossError(absl::StrCat(name, " is missing"));
  }
  return ReadSafetensors(found->second);
}

// The file may reorder the tensors, so their names contain the index: "2/y" is the third.
absl::Status ReadOutputs(std::vector<HostTensor> tensors, OperationResult* reply) {
  reply->outputs.resize(tensors.size());
  std::vector<bool> found(tensors.size(), false);
  for (HostTensor& tensor : tensors) {
    const size_t slash = tensor.name.find('/');
    size_t place = 0;
    if (slash == std::string::npos ||
        !absl::SimpleAtoi(absl::string_view(tensor.name).substr(0, slash), &place) ||
        place >= found.size() || found[place]) {
      return absl::DataLossError(absl::StrCat(kReply, " has a '", tensor.name, "'"));
    }
    found[place] = true;
    tensor.name.erase(0, slash + 1);
    reply->outputs[place] = std::move(tensor);
  }
  return absl::OkStatus();
}

absl::Status ReadTensors(const std::map<std::string, std::string>& files,
                         const std::vector<std::string>& buffers, TrainerCheckpoint* checkpoint) {
  BRAID_ASSIGN_OR_RETURN(const std::vector<HostTensor> weights, ReadWeights(files));
  for (const HostTensor& tensor : weights) {
    const bool buffer = std::find(buffers.begin(), buffers.end(), tensor.name) != buffers.end();
    checkpoint->tensors.model.push_back({tensor, !buffer});
  }
  BRAID_ASSIGN_OR_RETURN(const std::vector<HostTensor> optimizer, ReadFile(files, kOptimizer));
  for (HostTensor tensor : optimizer) {
    absl::string_view name = tensor.name;
    if (absl::ConsumePrefix(&name, kStatePrefix)) {
      tensor.name = std::string(name);
      checkpoint->tensors.optimizer.push_back(std::move(tensor));
    } else if (absl::ConsumePrefix(&name, kGradientPrefix)) {
      tensor.name = std::string(name);
      checkpoint->tensors.gradients.push_back(std::move(tensor));
    } else {
      return absl::DataLossError(absl::StrCat(kOptimizer, " has a '", tensor.name, "'"));
    }
  }
  BRAID_ASSIGN_OR_RETURN(std::vector<HostTensor> outputs, ReadFile(files, kReply));
  return ReadOutputs(std::move(outputs), &checkpoint->progress.reply);
}

}  // namespace

std::string WriteState(const TrainerCheckpoint& checkpoint) {
  const TrainerProgress& progress = checkpoint.progress;
  const TrainingSnapshot& tensors = checkpoint.tensors;
  json buffers = json::array();
  for (const StateTensor& entry : tensors.model) {
    if (!entry.is_parameter) {
      buffers.push_back(entry.tensor.name);
    }
  }
  json state = {{"model", progress.model},
                {"optimizer", progress.optimizer},
                {"step", progress.step},
                {"skipped", progress.skipped},
                {"sequence", progress.sequence},
                {"fingerprint_low", progress.fingerprint.low},
                {"fingerprint_high", progress.fingerprint.high},
                {"schedule", HexList(progress.schedule)},
                {"loss_sum", Hex(progress.loss_sum)},
                {"losses", progress.losses},
                {"reply", WriteReply(progress.reply)},
                {"parameters", tensors.parameters},
                {"updates", tensors.updates},
                {"accumulated", tensors.accumulated},
                {"overflow", tensors.overflow},
                {"grad_scaler", HexList(tensors.grad_scaler)},
                {kLastOperator, progress.last_operator},
                {kHistory, progress.history},
                {kBuffers, buffers}};
  if (progress.keeps_graph) {
    state[kKeepsGraph] = true;
  }
  if (tensors.skipped_batches > 0) {
    state["left_out"] = tensors.skipped_batches;
  }
  return state.dump();
}

std::vector<NewFile> CheckpointFiles(const TrainerCheckpoint& checkpoint) {
  const auto file = [](const char* name, std::vector<HostTensor> tensors) {
    return NewFile{name, [tensors = std::move(tensors)](ByteSink* sink) {
                     return WriteSafetensors(sink, tensors);
                   }};
  };
  std::vector<HostTensor> weights;
  for (const StateTensor& entry : checkpoint.tensors.model) {
    weights.push_back(entry.tensor);
  }
  std::vector<HostTensor> optimizer;
  const auto add = [&optimizer](const char* prefix, const std::vector<HostTensor>& tensors) {
    for (HostTensor tensor : tensors) {
      tensor.name = prefix + tensor.name;
      optimizer.push_back(std::move(tensor));
    }
  };
  add(kStatePrefix, checkpoint.tensors.optimizer);
  add(kGradientPrefix, checkpoint.tensors.gradients);
  std::vector<HostTensor> outputs = checkpoint.progress.reply.outputs;
  for (size_t o = 0; o < outputs.size(); ++o) {
    outputs[o].name = absl::StrCat(o, "/", outputs[o].name);
  }
  return {file(kWeights, std::move(weights)), file(kOptimizer, std::move(optimizer)),
          file(kReply, std::move(outputs))};
}

std::vector<NewFile> BaseFiles(std::vector<NewFile> model) {
  for (NewFile& file : model) {
    file.name = BaseName(file.name);
  }
  return model;
}

absl::StatusOr<std::string> BasePath(const std::map<std::string, std::string>& files) {
  for (const std::string& name : {BaseName(kPackageFile), BaseName(kTorchScriptFile),
                                  std::string(kPackageFile), std::string(kTorchScriptFile)}) {
    if (const auto found = files.find(name); found != files.end()) {
      return found->second;
    }
  }
  return absl::DataLossError("the checkpoint has no model file");
}

absl::StatusOr<std::vector<HostTensor>> ReadWeights(
    const std::map<std::string, std::string>& files) {
  return ReadFile(files, kWeights);
}

absl::StatusOr<TrainerCheckpoint> ReadTrainerCheckpoint(
    const std::string& state, const std::map<std::string, std::string>& files) {
  const json object = json::parse(state, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) {
    return absl::DataLossError("the state is not a JSON object");
  }
  Fields fields(object);
  TrainerCheckpoint checkpoint;
  checkpoint.progress = ReadProgress(&fields);
  checkpoint.tensors.parameters = fields.Get<std::vector<std::string>>("parameters");
  checkpoint.tensors.updates = fields.Get<std::vector<int64_t>>("updates");
  checkpoint.tensors.accumulated = fields.Get<int64_t>("accumulated");
  checkpoint.tensors.skipped_batches =
      fields.Find("left_out") == nullptr ? 0 : fields.Get<int64_t>("left_out");
  checkpoint.tensors.overflow = fields.Get<bool>("overflow");
  checkpoint.tensors.grad_scaler = fields.GetHexList("grad_scaler");
  const auto buffers = fields.Get<std::vector<std::string>>(kBuffers);
  BRAID_RETURN_IF_ERROR(fields.status());
  if (checkpoint.tensors.parameters.size() != checkpoint.tensors.updates.size()) {
    return absl::DataLossError("the state's 'updates' does not have one entry per parameter");
  }
  BRAID_RETURN_IF_ERROR(ReadTensors(files, buffers, &checkpoint));
  return checkpoint;
}

}  // namespace braid
