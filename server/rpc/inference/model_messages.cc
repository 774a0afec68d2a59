#include "server/rpc/inference/model_messages.h"

#include <algorithm>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/batching/model_statistics.h"
#include "server/models/batch_dimension.h"
#include "server/models/scalar_inputs.h"
#include "server/storage/names.h"

namespace braid {
namespace {

constexpr char kPlatform[] = "pytorch_libtorch";
constexpr char kBackend[] = "pytorch";

template <typename Tensors>
void AddMetadata(const ModelConfig& config, const std::vector<TensorSpec>& specs,
                 Tensors* messages) {
  for (const TensorSpec& spec : specs) {
    if (spec.scalar) {
      continue;  // a request or response parameter
    }
    auto* message = messages->Add();
    message->set_name(spec.name);
    if (spec.decode) {
      // One image or text per row. FillConfig() reports the tensor, which clients may send, too.
      message->set_datatype("BYTES");
      message->add_shape(-1);
      message->add_shape(1);
      continue;
    }
    message->set_datatype(std::string(DataTypeName(spec.type)));
    std::vector<int64_t> shape = spec.dims;
    if (config.has_batch_dim(spec)) {
      shape.insert(shape.begin() + static_cast<std::ptrdiff_t>(spec.batch_dim), -1);
    }
    message->mutable_shape()->Add(shape.begin(), shape.end());
  }
}

template <typename Message>
void FillTensor(const TensorSpec& spec, Message* message) {
  message->set_name(spec.name);
  inference::DataType type = inference::TYPE_INVALID;
  inference::DataType_Parse(absl::StrCat("TYPE_", DataTypeName(spec.type)), &type);
  message->set_data_type(type);
  message->mutable_dims()->Add(spec.dims.begin(), spec.dims.end());
  if (spec.reshape) {
    message->mutable_reshape()->mutable_shape()->Add(spec.reshape->begin(), spec.reshape->end());
  }
}

void FillTensors(const ModelConfig& config, inference::ModelConfig* message) {
  for (const TensorSpec& spec : config.inputs) {
    if (spec.scalar) {
      continue;  // a request parameter
    }
    inference::ModelInput* const input = message->add_input();
    FillTensor(spec, input);
    inference::ModelInput::Format format = inference::ModelInput::FORMAT_NONE;
    inference::ModelInput::Format_Parse(spec.format, &format);
    input->set_format(format);
  }
  for (const TensorSpec& spec : config.outputs) {
    if (spec.scalar) {
      continue;  // a response parameter
    }
    inference::ModelOutput* const output = message->add_output();
    FillTensor(spec, output);
    output->set_label_filename(spec.label_filename);
  }
}

void FillPolicy(const QueuePolicy& policy, inference::ModelQueuePolicy* message) {
  message->set_timeout_action(policy.timeout_action == QueuePolicy::TimeoutAction::kDelay
                                  ? inference::ModelQueuePolicy::DELAY
                                  : inference::ModelQueuePolicy::REJECT);
  message->set_default_timeout_microseconds(
      static_cast<uint64_t>(absl::ToInt64Microseconds(policy.default_timeout)));
  message->set_allow_timeout_override(policy.allow_timeout_override);
  message->set_max_queue_size(static_cast<uint32_t>(policy.max_queue_size));
}

inference::ModelDynamicBatching BatchingOf(const ModelConfig& config) {
  inference::ModelDynamicBatching message;
  for (const int64_t size : config.preferred_batch_sizes) {
    message.add_preferred_batch_size(static_cast<int32_t>(size));
  }
  message.set_max_queue_delay_microseconds(
      static_cast<uint64_t>(absl::ToInt64Microseconds(config.max_queue_delay)));
  message.set_preserve_ordering(config.preserve_ordering);
  message.set_priority_levels(static_cast<uint64_t>(config.priority_levels));
  message.set_default_priority_level(static_cast<uint64_t>(config.default_priority_level));
  FillPolicy(config.default_queue_policy, message.mutable_default_queue_policy());
  for (const auto& [level, policy] : config.priority_queue_policies) {
    FillPolicy(policy, &(*message.mutable_priority_queue_policy())[static_cast<uint64_t>(level)]);
  }
  return message;
}

void FillServing(const ModelConfig& config, inference::ModelConfig* message) {
  inference::ModelVersionPolicy* const policy = message->mutable_version_policy();
  if (const auto* latest = std::get_if<LatestVersions>(&config.version_policy)) {
    policy->mutable_latest()->set_num_versions(static_cast<uint32_t>(latest->count));
  } else if (const auto* specific = std::get_if<SpecificVersions>(&config.version_policy)) {
    policy->mutable_specific()->mutable_versions()->Add(specific->versions.begin(),
                                                        specific->versions.end());
  } else {
    policy->mutable_all();
  }
  for (const InstanceGroup& group : config.instance_groups) {
    inference::ModelInstanceGroup* const to = message->add_instance_group();
    to->set_kind(group.kind == InstanceGroup::Kind::kGpu ? inference::ModelInstanceGroup::KIND_GPU
                 : group.kind == InstanceGroup::Kind::kCpu
                     ? inference::ModelInstanceGroup::KIND_CPU
                     : inference::ModelInstanceGroup::KIND_AUTO);
    to->set_count(static_cast<int32_t>(group.count));
    to->mutable_gpus()->Add(group.gpus.begin(), group.gpus.end());
  }
}

void FillWarmups(const ModelConfig& config, inference::ModelConfig* message) {
  for (const Warmup& warmup : config.warmups) {
    inference::ModelWarmup* const to = message->add_model_warmup();
    to->set_name(warmup.name);
    to->set_batch_size(static_cast<uint32_t>(warmup.batch_size));
    to->set_count(static_cast<uint32_t>(warmup.count));
    for (const auto& [name, input] : warmup.inputs) {
      inference::ModelWarmup::Input& filled = (*to->mutable_inputs())[name];
      inference::DataType type = inference::TYPE_INVALID;
      inference::DataType_Parse(absl::StrCat("TYPE_", DataTypeName(input.type)), &type);
      filled.set_data_type(type);
      filled.mutable_dims()->Add(input.dims.begin(), input.dims.end());
      if (input.fill == Warmup::Fill::kFile) {
        filled.set_input_data_file(input.file);
      } else if (input.fill == Warmup::Fill::kRandom) {
        filled.set_random_data(true);
      } else {
        filled.set_zero_data(true);
      }
    }
  }
}

absl::string_view NameOf(RowIndependence independence) {
  switch (independence) {
    case RowIndependence::kProven:
      return "proven";
    case RowIndependence::kAssumed:
      return "assumed";
    case RowIndependence::kDependent:
      return "dependent";
    case RowIndependence::kUnproven:
      return "unproven";
  }
  return "";
}

// Writes Braid's own parameters, and the origin of a published version.
void FillParameters(const ModelConfig& config, inference::ModelConfig* message) {
  auto& parameters = *message->mutable_parameters();
  std::vector<std::string> broadcast;
  for (const TensorSpec& input : config.inputs) {
    if (input.scalar) {
      parameters[absl::StrCat("scalar.", input.name)].set_string_value(DescribeScalar(input));
    } else if (input.broadcast) {
      broadcast.push_back(input.name);
    }
    if (input.range) {
      parameters[absl::StrCat("range.", input.name)].set_string_value(
          absl::StrCat(input.range->min, ",", input.range->max));
    }
    if (input.decode) {
      parameters[absl::StrCat("decode.", input.name)].set_string_value(input.decode_json);
    }
    if (input.pad) {
      parameters[absl::StrCat("pad.", input.name)].set_string_value(input.pad_json);
    }
  }
  for (const std::vector<TensorSpec>* const specs : {&config.inputs, &config.outputs}) {
    for (const TensorSpec& spec : *specs) {
      if (spec.batch_dim > 0) {
        parameters[absl::StrCat("batch_dim.", spec.name)].set_string_value(
            absl::StrCat(spec.batch_dim));
      }
    }
  }
  if (!broadcast.empty()) {
    parameters["broadcast"].set_string_value(absl::StrJoin(broadcast, ","));
  }
  if (config.weight != 1) {
    parameters["weight"].set_string_value(absl::StrCat(config.weight));
  }
  if (config.preferred_chunk_rows > 0) {
    parameters["preferred_chunk_rows"].set_string_value(absl::StrCat(config.preferred_chunk_rows));
  }
  for (const auto& [key, value] : config.origin) {
    parameters[absl::StrCat("origin.", key)].set_string_value(value);
  }
  if (config.durability != nullptr) {
    parameters["origin.durability"].set_string_value(std::string(NameOf(*config.durability)));
  }
  if (config.batched() || config.row_independence == RowIndependence::kDependent) {
    parameters["row_independence"].set_string_value(
        std::string(config.rows_untested ? "untested" : NameOf(config.row_independence)));
  }
  if (!config.row_independence_reason.empty()) {
    parameters["row_independence.reason"].set_string_value(config.row_independence_reason);
  }
}

void Set(const DurationCount& from, inference::StatisticDuration* to) {
  to->set_count(static_cast<uint64_t>(from.count));
  to->set_ns(static_cast<uint64_t>(std::max<int64_t>(absl::ToInt64Nanoseconds(from.total), 0)));
}

constexpr char kConfig[] = "config";
constexpr char kFile[] = "file:";
constexpr char kUnloadDependents[] = "unload_dependents";

std::string Field(absl::string_view key) {
  return absl::StrCat("parameters[\"", Excerpt(key), "\"]");
}

}  // namespace

absl::StatusOr<std::shared_ptr<RequestQueue>> FindVersion(const ServedModels& models,
                                                          const std::string& model,
                                                          const std::string& version,
                                                          absl::string_view field) {
  if (version.empty()) {
    return models.Find(model, 0);
  }
  if (IsVersionLabel(version)) {
    return models.FindLabel(model, version);
  }
  int64_t number = 0;
  if (!absl::SimpleAtoi(version, &number) || number < 1) {
    return InvalidField(
        field, absl::StrCat("'", Excerpt(version),
                            "' is not a version (expected a number from 1, a label, or empty)"));
  }
  return models.Find(model, number);
}

void FillMetadata(const ModelConfig& config, const std::vector<int64_t>& versions,
                  inference::ModelMetadataResponse* response) {
  response->set_name(config.name);
  for (const int64_t version : versions) {
    response->add_versions(absl::StrCat(version));
  }
  response->set_platform(kPlatform);
  AddMetadata(config, config.inputs, response->mutable_inputs());
  AddMetadata(config, config.outputs, response->mutable_outputs());
}

void FillConfig(const ModelConfig& config, inference::ModelConfig* message) {
  const ModelConfig joined = JoinBatchDim(config);
  message->set_name(joined.name);
  message->set_platform(kPlatform);
  message->set_backend(kBackend);
  message->set_default_model_filename(joined.model_filename);
  message->set_max_batch_size(static_cast<int32_t>(joined.max_batch_size));
  FillTensors(joined, message);
  FillServing(joined, message);
  // Models without a batch dimension may configure their queue, too.
  inference::ModelDynamicBatching batching = BatchingOf(joined);
  if (joined.batched() || batching.SerializeAsString() != BatchingOf({}).SerializeAsString()) {
    *message->mutable_dynamic_batching() = std::move(batching);
  }
  FillWarmups(joined, message);
  FillParameters(joined, message);
}

void FillStatistics(const RequestQueue& queue, inference::ModelStatistics* message) {
  const braid::ModelStatistics::Counts counts = queue.statistics().counts();
  message->set_name(queue.config().name);
  message->set_version(absl::StrCat(queue.version()));
  if (counts.last_inference != absl::InfinitePast()) {
    message->set_last_inference(static_cast<uint64_t>(absl::ToUnixMillis(counts.last_inference)));
  }
  message->set_inference_count(static_cast<uint64_t>(counts.rows));
  message->set_execution_count(static_cast<uint64_t>(counts.batches));
  auto* requests = message->mutable_inference_stats();
  Set(counts.success, requests->mutable_success());
  Set(counts.failure, requests->mutable_fail());
  Set(counts.queue, requests->mutable_queue());
  Set(counts.request.copy_in, requests->mutable_compute_input());
  Set(counts.request.forward, requests->mutable_compute_infer());
  Set(counts.request.copy_out, requests->mutable_compute_output());
  requests->mutable_cache_hit();
  requests->mutable_cache_miss();
  for (const auto& [rows, batches] : counts.by_rows) {
    auto* same_rows = message->add_batch_stats();
    same_rows->set_batch_size(static_cast<uint64_t>(rows));
    Set(batches.copy_in, same_rows->mutable_compute_input());
    Set(batches.forward, same_rows->mutable_compute_infer());
    Set(batches.copy_out, same_rows->mutable_compute_output());
  }
}

absl::Status CheckRepositoryName(const std::string& name) {
  if (name.empty()) {
    return absl::OkStatus();
  }
  return InvalidField("repository_name",
                      absl::StrCat("'", Excerpt(name),
                                   "' is unknown (expected empty: this server has one "
                                   "repository, without a name)"));
}

absl::StatusOr<std::optional<std::string>> ReadLoadRequest(
    const inference::RepositoryModelLoadRequest& request) {
  BRAID_RETURN_IF_ERROR(CheckRepositoryName(request.repository_name()));
  std::optional<std::string> config;
  for (const auto& [key, parameter] : request.parameters()) {
    if (absl::StartsWith(key, kFile)) {
      return absl::UnimplementedError(
          absl::StrCat(Field(key),
                       ": model files are not accepted over the network (put them into the model "
                       "repository)"));
    }
    if (key != kConfig) {
      return InvalidField(Field(key), absl::StrCat("is unknown (expected '", kConfig, "')"));
    }
    if (!parameter.has_string_param()) {
      return InvalidField(Field(key), "not a string (expected a model configuration in JSON)");
    }
    config = parameter.string_param();
  }
  return config;
}

absl::Status LoadFailure(const std::string& name, const absl::Status& status) {
  if (status.ok()) {
    return status;
  }
  absl::Status failure(status.code(),
                       absl::StrCat("failed to load '", Excerpt(name), "': ", status.message()));
  status.ForEachPayload([&failure](absl::string_view type, const absl::Cord& payload) {
    failure.SetPayload(type, payload);
  });
  return failure;
}

absl::Status CheckUnloadRequest(const inference::RepositoryModelUnloadRequest& request) {
  BRAID_RETURN_IF_ERROR(CheckRepositoryName(request.repository_name()));
  for (const auto& [key, parameter] : request.parameters()) {
    if (key != kUnloadDependents) {
      return InvalidField(Field(key),
                          absl::StrCat("is unknown (expected '", kUnloadDependents, "')"));
    }
    if (!parameter.has_bool_param()) {
      return InvalidField(Field(key), "not a bool (expected true or false)");
    }
  }
  return absl::OkStatus();
}

std::string StateName(const ModelState& state) {
  if (state.ready) {
    return "READY";
  }
  return state.reason.empty() ? "" : "UNAVAILABLE";
}

}  // namespace braid
