// What the command line says of losses, optimizers and the like, as the protocol's messages.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "braid/v1/training.pb.h"
#include "google/protobuf/message.h"

namespace braid::cli {

// Fields are set by their names in training.proto, in any case: "lr", "class_weights". A value is a
// number, a word (of an enumeration without its prefix: "bfloat16"), true or false; what follows a
// ',' without a '=' is another value of a field that takes several; bytes are read from a file.
// INVALID_ARGUMENT, listing what is known, for a name or a word that is not known, and for a value
// that does not fit.

// Sets "key=value,key=value,…". `what` begins the messages. A key may be a path:
// "clipping.max_norm".
absl::Status SetFields(absl::string_view what, absl::string_view fields,
                       google::protobuf::Message* message);

// "cross_entropy" or "cross_entropy:label_smoothing=0.1,class_weights=1,2,1"; "output=loss" alone,
// for a model that returns its loss.
absl::StatusOr<v1::Loss> ParseLoss(const std::string& spec);
// "SGD:lr=0.1,momentum=0.9", by PyTorch's name in any case.
absl::StatusOr<v1::Optimizer> ParseOptimizer(const std::string& spec);
// "StepLR:step_size=10", by PyTorch's name or the protocol's ("step") in any case. Into the oneof
// of `schedule`, whose other fields stay.
absl::Status ParseSchedule(const std::string& spec, v1::Schedule* schedule);
// "features=cpu:0,cpu:1"; "=cpu:0" for the whole model.
absl::StatusOr<v1::Stage> ParseStage(const std::string& spec);
// "^features:lr=0.01,frozen=true": the pattern ends at the last ':'.
absl::StatusOr<v1::ParameterGroup> ParseGroup(const std::string& spec);

}  // namespace braid::cli
