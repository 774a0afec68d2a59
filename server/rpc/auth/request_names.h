// The names in a request of any type, and the permission that it needs.
#pragma once

#include "absl/strings/string_view.h"
#include "braid/v1/job.pb.h"
#include "braid/v1/training.pb.h"
#include "server/rpc/auth/method_rules.h"

namespace braid {

struct Names {
  // If there is a trainer: a model other than the trainer's that the request is about.
  absl::string_view model;
  absl::string_view trainer;
};

template <typename Request>
Names NamesIn(const Request& request, Subject subject) {
  Names names;
  if constexpr (requires { request.trainer(); }) {
    names.trainer = request.trainer();
  } else if constexpr (requires { request.model_name(); }) {
    names.model = request.model_name();
  } else if constexpr (requires { request.model(); }) {
    names.model = request.model();
  }
  if constexpr (requires { request.target_model(); }) {
    names.model = request.target_model();
  }
  if constexpr (requires { request.name(); }) {
    if (subject == Subject::kTrainer) {
      names.trainer = request.name();
    } else if (subject == Subject::kModel) {
      names.model = request.name();
    }
  }
  return names;
}

// A trainer without a name gets its model's name.
inline Names NamesIn(const braid::v1::CreateTrainerRequest& request, Subject /*subject*/) {
  return {request.model(), request.name().empty() ? request.model() : request.name()};
}

inline Names NamesIn(const braid::v1::SubmitJobRequest& request, Subject /*subject*/) {
  const braid::v1::JobSpec& spec = request.spec();
  return {spec.has_train() ? spec.train().model() : spec.infer().model(), {}};
}

inline Need NeedOf(const braid::v1::SubmitJobRequest& request, Need need) {
  return request.spec().has_train() ? Need::kTrain : need;
}

// Requests that change settings need an admin.
template <typename Request>
Need NeedOf(const Request& request, Need need) {
  if constexpr (requires { request.settings(); }) {
    return request.settings().empty() ? need : Need::kAdmin;
  }
  return need;
}

}  // namespace braid
