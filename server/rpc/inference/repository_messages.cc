#include "server/rpc/inference/repository_messages.h"

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/base/status.h"
#include "server/base/text.h"

namespace braid {
namespace {

constexpr char kConfig[] = "config";
constexpr char kFile[] = "file:";
constexpr char kUnloadDependents[] = "unload_dependents";

std::string Field(absl::string_view key) {
  return absl::StrCat("parameters[\"", Excerpt(key), "\"]");
}

}  // namespace

absl::Status CheckRepositoryName(const std::string& name) {
  if (name.empty()) {
    return absl::OkStatus();
  }
  return InvalidField("repository_name",
                      absl::StrCat("'", Excerpt(name),
                                   "'; this server has one repository without a name: expected "
                                   "nothing"));
}

absl::StatusOr<std::optional<std::string>> ReadLoadRequest(
    const inference::RepositoryModelLoadRequest& request) {
  BRAID_RETURN_IF_ERROR(CheckRepositoryName(request.repository_name()));
  std::optional<std::string> config;
  for (const auto& [key, parameter] : request.parameters()) {
    if (absl::StartsWith(key, kFile)) {
      return absl::UnimplementedError(
          absl::StrCat(Field(key),
                       ": this server takes no model's files over the wire, for models "
                       "are code: put them into its model repository"));
    }
    if (key != kConfig) {
      return InvalidField(Field(key), absl::StrCat("is unknown; expected '", kConfig, "'"));
    }
    if (!parameter.has_string_param()) {
      return InvalidField(Field(key), "is no string; expected a model configuration in JSON");
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
                          absl::StrCat("is unknown; expected '", kUnloadDependents, "'"));
    }
    if (!parameter.has_bool_param()) {
      return InvalidField(Field(key), "is no bool; expected true or false");
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
