// Access to the parameters of inference requests, their inputs and outputs.
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

// Returns the parameter, or nullptr.
const inference::InferParameter* FindParameter(const Parameters& parameters,
                                               absl::string_view name);

// Return the value of a parameter. INVALID_ARGUMENT, naming `field`, if it has another type.
// ReadInteger accepts int64, and uint64 up to 2^63 - 1.
absl::StatusOr<int64_t> ReadInteger(const inference::InferParameter& parameter,
                                    absl::string_view field);
absl::StatusOr<bool> ReadBool(const inference::InferParameter& parameter, absl::string_view field);
absl::StatusOr<std::string> ReadString(const inference::InferParameter& parameter,
                                       absl::string_view field);
// Accepts a double, or an integer that a double represents exactly.
absl::StatusOr<double> ReadNumber(const inference::InferParameter& parameter,
                                  absl::string_view field);

// Return the value of an optional parameter, or `otherwise`. Errors name `field`.parameters.`name`.
absl::StatusOr<int64_t> ReadIntegerOr(const Parameters& parameters, absl::string_view field,
                                      absl::string_view name, int64_t otherwise);
absl::StatusOr<bool> ReadBoolOr(const Parameters& parameters, absl::string_view field,
                                absl::string_view name, bool otherwise);

// Returns the path of a parameter for errors, for example
// "inputs[0].parameters.shared_memory_offset". field: "" for the request itself
// ("parameters.timeout").
std::string ParameterField(absl::string_view field, absl::string_view name);

}  // namespace braid
