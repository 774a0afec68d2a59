#include "server/models/config/config_serving.h"

#include <set>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "server/base/status.h"
#include "server/models/config/config_fields.h"

namespace braid {
namespace {

absl::StatusOr<InstanceGroup> ToGroup(const inference::ModelInstanceGroup& text,
                                      const std::string& where) {
  // A name is for Triton's metrics alone.
  BRAID_RETURN_IF_ERROR(RefuseUnknown(text, {"name", "kind", "count", "gpus"}, where + "."));
  InstanceGroup group;
  switch (text.kind()) {
    case inference::ModelInstanceGroup::KIND_AUTO:
      group.kind = InstanceGroup::Kind::kAuto;
      break;
    case inference::ModelInstanceGroup::KIND_GPU:
      group.kind = InstanceGroup::Kind::kGpu;
      break;
    case inference::ModelInstanceGroup::KIND_CPU:
      group.kind = InstanceGroup::Kind::kCpu;
      break;
    default:
      return NotImplemented(
          absl::StrCat(where, ".kind: ", inference::ModelInstanceGroup::Kind_Name(text.kind())));
  }
  if (text.count() < 0) {
    return InvalidField(where + ".count", absl::StrCat(text.count(), "; expected at least 1"));
  }
  group.count = text.count() == 0 ? 1 : text.count();
  std::set<int64_t> gpus;
  for (const int64_t gpu : text.gpus()) {
    if (group.kind == InstanceGroup::Kind::kCpu) {
      return InvalidField(where + ".gpus", "are there for KIND_CPU; expected none");
    }
    if (gpu < 0 || !gpus.insert(gpu).second) {
      return InvalidField(where + ".gpus", absl::StrCat(gpu, gpu < 0 ? " is no GPU" : " is twice",
                                                        "; expected each GPU's number once"));
    }
    group.gpus.push_back(gpu);
  }
  return group;
}

}  // namespace

absl::Status ReadVersionPolicy(const inference::ModelConfig& text, ModelConfig* config) {
  const inference::ModelVersionPolicy& policy = text.version_policy();
  if (policy.has_latest()) {
    if (policy.latest().num_versions() < 1) {
      return InvalidField("version_policy.latest.num_versions",
                          absl::StrCat(policy.latest().num_versions(), "; expected at least 1"));
    }
    config->version_policy = LatestVersions{policy.latest().num_versions()};
  } else if (policy.has_all()) {
    config->version_policy = AllVersions{};
  } else if (policy.has_specific()) {
    SpecificVersions specific;
    for (const int64_t version : policy.specific().versions()) {
      if (version < 1) {
        return InvalidField("version_policy.specific.versions",
                            absl::StrCat(version, "; expected numbers from 1"));
      }
      specific.versions.push_back(version);
    }
    if (specific.versions.empty()) {
      return InvalidField("version_policy.specific.versions",
                          "is empty; expected at least one version");
    }
    config->version_policy = std::move(specific);
  }
  return absl::OkStatus();
}

absl::Status ReadInstanceGroups(const inference::ModelConfig& text, ModelConfig* config) {
  for (int i = 0; i < text.instance_group_size(); ++i) {
    BRAID_ASSIGN_OR_RETURN(InstanceGroup group, ToGroup(text.instance_group(i),
                                                        absl::StrCat("instance_group[", i, "]")));
    config->instance_groups.push_back(std::move(group));
  }
  return absl::OkStatus();
}

}  // namespace braid
