// The parameters of an inference request, of its inputs and of its outputs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/map.h"
#include "inference/grpc_service.pb.h"

namespace braid {

using Parameters = google::protobuf::Map<std::string, inference::InferParameter>;

// The parameter `name`; nullptr: it is not there.
const inference::InferParameter* FindParameter(const Parameters& parameters,
                                               absl::string_view name);

// What a parameter holds; INVALID_ARGUMENT naming `field` if it is of another kind. An integer is
// an int64, or a uint64 that fits one.
absl::StatusOr<int64_t> ReadInteger(const inference::InferParameter& parameter,
                                    absl::string_view field);
absl::StatusOr<bool> ReadBool(const inference::InferParameter& parameter, absl::string_view field);
absl::StatusOr<std::string> ReadString(const inference::InferParameter& parameter,
                                       absl::string_view field);
// A double, or an integer that a double holds.
absl::StatusOr<double> ReadNumber(const inference::InferParameter& parameter,
                                  absl::string_view field);

// The same for a parameter that may be missing, which is `otherwise` then; errors name
// `field`.parameters.`name`.
absl::StatusOr<int64_t> ReadIntegerOr(const Parameters& parameters, absl::string_view field,
                                      absl::string_view name, int64_t otherwise);
absl::StatusOr<bool> ReadBoolOr(const Parameters& parameters, absl::string_view field,
                                absl::string_view name, bool otherwise);

// "inputs[0].parameters.shared_memory_offset"; of the request itself, whose `field` is "":
// "parameters.timeout".
std::string ParameterField(absl::string_view field, absl::string_view name);

}  // namespace braid
