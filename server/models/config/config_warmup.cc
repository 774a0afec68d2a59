#include "server/models/config/config_warmup.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "server/base/host_tensor.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/models/config/config_fields.h"
#include "server/storage/names.h"

namespace braid {
namespace {

// Of one input, for a whole batch.
constexpr size_t kMaxBytes = size_t{1} << 30;
constexpr uint32_t kMaxRuns = 10000;

absl::StatusOr<Warmup::Input> ToInput(const inference::ModelWarmup::Input& text,
                                      const TensorSpec& spec, int64_t rows,
                                      const std::string& where) {
  const std::string type = absl::StrCat("TYPE_", DataTypeName(spec.type));
  if (inference::DataType_Name(text.data_type()) != type) {
    return InvalidField(
        where + ".data_type",
        absl::StrCat(inference::DataType_Name(text.data_type()), "; the input is ", type));
  }
  Warmup::Input input;
  input.type = spec.type;
  for (const int64_t dim : text.dims()) {
    if (dim < 1) {
      return InvalidField(where + ".dims", absl::StrCat(dim, "; expected sizes, at least 1"));
    }
    input.dims.push_back(dim);
  }
  std::vector<int64_t> shape = input.dims;
  shape.push_back(std::max<int64_t>(rows, 1));
  const std::optional<size_t> bytes = BytesOf(input.type, shape);
  if (!bytes || *bytes > kMaxBytes) {
    return InvalidField(where + ".dims",
                        absl::StrCat(ShapeString(input.dims), " for ", rows,
                                     " rows; expected at most ", kMaxBytes, " bytes"));
  }
  switch (text.input_data_type_case()) {
    case inference::ModelWarmup::Input::kZeroData:
      input.fill = Warmup::Fill::kZero;
      break;
    case inference::ModelWarmup::Input::kRandomData:
      input.fill = Warmup::Fill::kRandom;
      break;
    case inference::ModelWarmup::Input::kInputDataFile:
      input.fill = Warmup::Fill::kFile;
      input.file = text.input_data_file();
      if (!IsFolderName(input.file)) {
        return InvalidField(where + ".input_data_file",
                            absl::StrCat("'", Excerpt(input.file),
                                         "'; expected the name of a file in the model's folder "
                                         "warmup"));
      }
      break;
    default:
      return InvalidField(where, "has no data; expected zero_data, random_data or input_data_file");
  }
  return input;
}

absl::StatusOr<Warmup> ToWarmup(const inference::ModelWarmup& text, const ModelConfig& config,
                                const std::string& where) {
  Warmup warmup;
  warmup.name = text.name();
  warmup.batch_size = text.batch_size();
  if (warmup.batch_size > std::max<int64_t>(config.max_batch_size, 1)) {
    return InvalidField(
        where + ".batch_size",
        absl::StrCat(warmup.batch_size, "; expected ",
                     config.batched()
                         ? absl::StrCat("1 to max_batch_size, which is ", config.max_batch_size)
                         : "0 or 1, for the model is not batched"));
  }
  if (text.count() > kMaxRuns) {
    return InvalidField(where + ".count",
                        absl::StrCat(text.count(), "; expected at most ", kMaxRuns));
  }
  warmup.count = text.count() == 0 ? 1 : text.count();
  for (const auto& [name, input] : text.inputs()) {
    const auto spec = std::find_if(config.inputs.begin(), config.inputs.end(),
                                   [&name = name](const TensorSpec& s) { return s.name == name; });
    const std::string field = absl::StrCat(where, ".inputs[\"", Excerpt(name), "\"]");
    if (spec == config.inputs.end()) {
      return InvalidField(field, "is no input of the model");
    }
    const int64_t rows = spec->broadcast ? 1 : warmup.batch_size;
    BRAID_ASSIGN_OR_RETURN(warmup.inputs[name], ToInput(input, *spec, rows, field));
  }
  for (const TensorSpec& spec : config.inputs) {
    if (warmup.inputs.count(spec.name) == 0 && !spec.scalar) {
      return InvalidField(where + ".inputs", absl::StrCat("'", spec.name, "' is missing"));
    }
  }
  return warmup;
}

}  // namespace

absl::Status ReadWarmups(const inference::ModelConfig& text, ModelConfig* config) {
  for (int i = 0; i < text.model_warmup_size(); ++i) {
    BRAID_ASSIGN_OR_RETURN(Warmup warmup, ToWarmup(text.model_warmup(i), *config,
                                                   absl::StrCat("model_warmup[", i, "]")));
    if (config->batched() && warmup.batch_size == 0) {
      continue;  // as Triton does: a request of no rows
    }
    config->warmups.push_back(std::move(warmup));
  }
  return absl::OkStatus();
}

}  // namespace braid
