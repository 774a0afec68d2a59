#include "server/models/config/config_reader.h"

#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/text_format.h"
#include "google/protobuf/util/json_util.h"
#include "inference/model_config.pb.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/models/batch_dimension.h"
#include "server/models/config/config_batching.h"
#include "server/models/config/config_fields.h"
#include "server/models/config/config_io.h"
#include "server/models/config/config_parameters.h"
#include "server/models/config/config_serving.h"
#include "server/models/config/config_warmup.h"
#include "server/storage/names.h"

namespace braid {
namespace {

constexpr uintmax_t kMaxBytes = 1 << 20;
// Deeper than any setting, and shallow enough for any stack.
constexpr int kMaxNesting = 32;

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

absl::Status CheckPlatform(const inference::ModelConfig& config) {
  const std::string& platform = config.platform();
  if (!platform.empty() && platform != "pytorch_libtorch" && platform != "torch_aoti") {
    return InvalidField("platform", absl::StrCat("'", Excerpt(platform),
                                                 "'; expected 'pytorch_libtorch' or 'torch_aoti'"));
  }
  if (!config.backend().empty() && config.backend() != "pytorch") {
    return InvalidField("backend",
                        absl::StrCat("'", Excerpt(config.backend()), "'; expected 'pytorch'"));
  }
  if (!config.default_model_filename().empty() && !IsFolderName(config.default_model_filename())) {
    return InvalidField("default_model_filename",
                        absl::StrCat("'", Excerpt(config.default_model_filename()),
                                     "'; expected the name of a file in the version's folder"));
  }
  return absl::OkStatus();
}

// What of optimization changes no result and is so here anyway.
absl::Status CheckOptimization(const inference::ModelConfig& config) {
  const inference::ModelOptimizationPolicy& optimization = config.optimization();
  BRAID_RETURN_IF_ERROR(RefuseUnknown(optimization, {"input_pinned_memory", "output_pinned_memory"},
                                      "optimization."));
  if ((optimization.has_input_pinned_memory() && !optimization.input_pinned_memory().enable()) ||
      (optimization.has_output_pinned_memory() && !optimization.output_pinned_memory().enable())) {
    return NotImplemented("optimization: pinned memory that is not enabled");
  }
  return absl::OkStatus();
}

absl::StatusOr<ModelConfig> Convert(const inference::ModelConfig& text, const std::string& name,
                                    const std::string& folder) {
  BRAID_RETURN_IF_ERROR(
      RefuseUnknown(text,
                    {"name", "platform", "backend", "default_model_filename", "max_batch_size",
                     "input", "output", "instance_group", "version_policy", "dynamic_batching",
                     "model_warmup", "optimization", "parameters"},
                    ""));
  BRAID_RETURN_IF_ERROR(CheckPlatform(text));
  BRAID_RETURN_IF_ERROR(CheckOptimization(text));
  if (!text.name().empty() && text.name() != name) {
    return InvalidField(
        "name", absl::StrCat("'", Excerpt(text.name()), "'; expected the folder's name, '", name,
                             "', or nothing"));
  }
  if (text.max_batch_size() < 0) {
    return InvalidField("max_batch_size",
                        absl::StrCat(text.max_batch_size(), "; expected 0 (not batched) or more"));
  }
  ModelConfig config;
  config.name = name;
  config.max_batch_size = text.max_batch_size();
  config.batches_declared = config.batched();
  config.model_filename = text.default_model_filename();
  if (config.model_filename.empty() && text.platform() == "torch_aoti") {
    config.model_filename = "model.pt2";
  }
  BRAID_ASSIGN_OR_RETURN(config.inputs, ReadInputSpecs(text));
  BRAID_ASSIGN_OR_RETURN(config.outputs, ReadOutputSpecs(text, folder));
  BRAID_RETURN_IF_ERROR(ReadDynamicBatching(text.dynamic_batching(), &config));
  BRAID_RETURN_IF_ERROR(ReadVersionPolicy(text, &config));
  BRAID_RETURN_IF_ERROR(ReadInstanceGroups(text, &config));
  BRAID_RETURN_IF_ERROR(ReadParameters(text, &config));
  BRAID_RETURN_IF_ERROR(ReadWarmups(text, &config));
  if (config.row_independence == RowIndependence::kDependent && !config.batched()) {
    // False where a tensor has no batch dimension. Such a model stays one without batching.
    SeparateBatchDim(config.row_independence_reason, &config);
  }
  return config;
}

// What `message` says, with `source` before an error.
absl::StatusOr<ModelConfig> Check(const inference::ModelConfig& message, const std::string& name,
                                  const std::string& folder, absl::string_view source) {
  // Names go out again, in messages that hold UTF-8 alone.
  if (inference::ModelConfig again; !again.ParseFromString(message.SerializeAsString())) {
    return absl::InvalidArgumentError(absl::StrCat(source, ": holds text that is not UTF-8"));
  }
  absl::StatusOr<ModelConfig> config = Convert(message, name, folder);
  if (!config.ok()) {
    return absl::Status(config.status().code(),
                        absl::StrCat(source, ": ", config.status().message()));
  }
  return config;
}

absl::Status CheckSize(uintmax_t bytes, absl::string_view source) {
  if (bytes > kMaxBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(source, ": has ", bytes, " bytes; expected at most ", kMaxBytes));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelConfig> ParseConfig(const std::string& text, const std::string& name,
                                        const std::string& folder) {
  constexpr absl::string_view kSource = "config.pbtxt";
  BRAID_RETURN_IF_ERROR(CheckSize(text.size(), kSource));
  inference::ModelConfig message;
  FirstError errors;
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&errors);
  parser.SetRecursionLimit(kMaxNesting);
  // A byte-order mark, which some editors put before the text.
  const std::string marked(absl::StripPrefix(text, "\xEF\xBB\xBF"));
  if (!parser.ParseFromString(marked, &message)) {
    return absl::InvalidArgumentError(absl::StrCat(kSource, ": ", Excerpt(errors.first(), 512)));
  }
  return Check(message, name, folder, kSource);
}

absl::StatusOr<ModelConfig> ParseConfigJson(const std::string& json, const std::string& folder,
                                            const std::string& name) {
  constexpr absl::string_view kSource = "parameters[\"config\"]";
  BRAID_RETURN_IF_ERROR(CheckSize(json.size(), kSource));
  inference::ModelConfig message;
  const auto parsed = google::protobuf::util::JsonStringToMessage(json, &message);
  if (!parsed.ok()) {
    const std::string why(parsed.message());
    return InvalidField(
        kSource, absl::StrCat(Excerpt(why, 512), "; expected a model configuration in JSON"));
  }
  return Check(message, name, folder, kSource);
}

absl::StatusOr<ModelConfig> ReadConfigFile(const std::string& path, const std::string& name) {
  std::error_code error;
  const uintmax_t bytes = std::filesystem::file_size(path, error);  // fails for what is no file
  if (error) {  // To open a pipe would wait for who writes to it.
    return absl::NotFoundError(absl::StrCat("cannot read ", path, ": ", error.message()));
  }
  BRAID_RETURN_IF_ERROR(CheckSize(bytes, "config.pbtxt"));
  std::ifstream file(path);
  if (!file) {
    return absl::NotFoundError(absl::StrCat("cannot read ", path));
  }
  std::stringstream text;
  text << file.rdbuf();
  return ParseConfig(text.str(), name, std::filesystem::path(path).parent_path());
}

}  // namespace braid
