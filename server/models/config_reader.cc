#include "server/models/config_reader.h"

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/text_format.h"
#include "inference/model_config.pb.h"
#include "server/base/status.h"

namespace braid {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

class FirstError final : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int line, int column, const std::string& message) override {
    if (first_.empty()) {
      first_ = absl::StrCat("line ", line + 1, ", column ", column + 1, ": ", message);
    }
  }
  const std::string& first() const { return first_; }

 private:
  std::string first_;
};

// Refuses every field that is set and not among `known`: a setting is obeyed or refused, never
// ignored.
absl::Status RefuseUnknown(const Message& message, const std::set<absl::string_view>& known,
                           absl::string_view where) {
  std::vector<const FieldDescriptor*> set;
  message.GetReflection()->ListFields(message, &set);
  for (const FieldDescriptor* field : set) {
    if (known.find(field->name()) == known.end()) {
      return absl::UnimplementedError(
          absl::StrCat(where, field->name(), " is not implemented: remove it from config.pbtxt"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<DataType> ToDataType(inference::DataType type, absl::string_view where) {
  constexpr absl::string_view kPrefix = "TYPE_";
  const std::string name = inference::DataType_Name(type);
  const auto found = DataTypeFromName(absl::string_view(name).substr(kPrefix.size()));
  if (!found) {
    return InvalidField(where,
                        absl::StrCat(name, " is no tensor type here; expected TYPE_ and one of ",
                                     AllDataTypeNames()));
  }
  return *found;
}

template <typename Tensor>
absl::StatusOr<TensorSpec> ToSpec(const Tensor& tensor, const std::string& where) {
  BRAID_RETURN_IF_ERROR(RefuseUnknown(tensor, {"name", "data_type", "dims"}, where + "."));
  if (tensor.name().empty()) {
    return InvalidField(where + ".name", "is empty");
  }
  TensorSpec spec;
  spec.name = tensor.name();
  BRAID_ASSIGN_OR_RETURN(spec.type, ToDataType(tensor.data_type(), where + ".data_type"));
  for (const int64_t dim : tensor.dims()) {
    if (dim < 1 && dim != -1) {
      return InvalidField(where + ".dims",
                          absl::StrCat(dim, " is no size; expected at least 1, or -1 for any"));
    }
    spec.dims.push_back(dim);
  }
  return spec;
}

template <typename Tensors>
absl::StatusOr<std::vector<TensorSpec>> ToSpecs(const Tensors& tensors, absl::string_view field) {
  std::vector<TensorSpec> specs;
  std::set<std::string> names;
  for (int i = 0; i < tensors.size(); ++i) {
    const std::string where = absl::StrCat(field, "[", i, "]");
    BRAID_ASSIGN_OR_RETURN(TensorSpec spec, ToSpec(tensors[i], where));
    if (!names.insert(spec.name).second) {
      return InvalidField(where + ".name", absl::StrCat("'", spec.name, "' is there twice"));
    }
    specs.push_back(std::move(spec));
  }
  if (specs.empty()) {
    return InvalidField(field, "is empty: name every one, or leave config.pbtxt away");
  }
  return specs;
}

// The one parameter: names of inputs, separated by commas, that every replica gets whole.
absl::Status ReadParameters(const inference::ModelConfig& text, ModelConfig* config) {
  for (const auto& [key, value] : text.parameters()) {
    if (key != "broadcast") {
      return absl::UnimplementedError(absl::StrCat(
          "parameters[\"", key, "\"] is not implemented: remove it from config.pbtxt"));
    }
    for (const absl::string_view name : absl::StrSplit(value.string_value(), ',')) {
      const auto input = std::find_if(config->inputs.begin(), config->inputs.end(),
                                      [name](const TensorSpec& spec) { return spec.name == name; });
      if (input == config->inputs.end()) {
        return InvalidField("parameters[\"broadcast\"]",
                            absl::StrCat("'", name, "' is no input; expected names of inputs"));
      }
      input->broadcast = true;
    }
  }
  const auto whole = [](const TensorSpec& spec) { return spec.broadcast; };
  if (std::all_of(config->inputs.begin(), config->inputs.end(), whole)) {
    return InvalidField("parameters[\"broadcast\"]",
                        "names every input; expected at least one to be cut along dim 0");
  }
  return absl::OkStatus();
}

absl::Status CheckPlatform(const inference::ModelConfig& config) {
  if (!config.platform().empty() && config.platform() != "pytorch_libtorch") {
    return InvalidField("platform",
                        absl::StrCat("'", config.platform(), "'; expected 'pytorch_libtorch'"));
  }
  if (!config.backend().empty() && config.backend() != "pytorch") {
    return InvalidField("backend", absl::StrCat("'", config.backend(), "'; expected 'pytorch'"));
  }
  if (!config.default_model_filename().empty() && config.default_model_filename() != "model.pt") {
    return InvalidField("default_model_filename", absl::StrCat("'", config.default_model_filename(),
                                                               "'; expected 'model.pt'"));
  }
  return absl::OkStatus();
}

absl::StatusOr<ModelConfig> Convert(const inference::ModelConfig& text, const std::string& name) {
  BRAID_RETURN_IF_ERROR(
      RefuseUnknown(text,
                    {"name", "platform", "backend", "default_model_filename", "max_batch_size",
                     "input", "output", "dynamic_batching", "parameters"},
                    ""));
  BRAID_RETURN_IF_ERROR(RefuseUnknown(text.dynamic_batching(), {"max_queue_delay_microseconds"},
                                      "dynamic_batching."));
  BRAID_RETURN_IF_ERROR(CheckPlatform(text));
  if (!text.name().empty() && text.name() != name) {
    return InvalidField("name", absl::StrCat("'", text.name(), "'; expected the folder's name, '",
                                             name, "', or nothing"));
  }
  if (text.max_batch_size() < 0) {
    return InvalidField("max_batch_size",
                        absl::StrCat(text.max_batch_size(), "; expected 0 (not batched) or more"));
  }
  constexpr uint64_t kMostMicroseconds = 60'000'000;
  const uint64_t delay = text.dynamic_batching().max_queue_delay_microseconds();
  if (delay > kMostMicroseconds) {
    return InvalidField("dynamic_batching.max_queue_delay_microseconds",
                        absl::StrCat(delay, "; expected at most ", kMostMicroseconds));
  }
  ModelConfig config;
  config.name = name;
  config.max_batch_size = text.max_batch_size();
  config.max_queue_delay = absl::Microseconds(static_cast<int64_t>(delay));
  BRAID_ASSIGN_OR_RETURN(config.inputs, ToSpecs(text.input(), "input"));
  BRAID_ASSIGN_OR_RETURN(config.outputs, ToSpecs(text.output(), "output"));
  BRAID_RETURN_IF_ERROR(ReadParameters(text, &config));
  return config;
}

}  // namespace

absl::StatusOr<ModelConfig> ParseConfig(const std::string& text, const std::string& name) {
  inference::ModelConfig message;
  FirstError errors;
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&errors);
  if (!parser.ParseFromString(text, &message)) {
    return absl::InvalidArgumentError(absl::StrCat("config.pbtxt: ", errors.first()));
  }
  absl::StatusOr<ModelConfig> config = Convert(message, name);
  if (!config.ok()) {
    return absl::Status(config.status().code(),
                        absl::StrCat("config.pbtxt: ", config.status().message()));
  }
  return config;
}

absl::StatusOr<ModelConfig> ReadConfigFile(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  if (!file) {
    return absl::NotFoundError(absl::StrCat("cannot read ", path));
  }
  return ParseConfig(text.str(), name);
}

}  // namespace braid
