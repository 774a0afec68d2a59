#include "server/training/trainer/operation_records.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"
#include "server/base/status.h"

namespace braid {
namespace {

using nlohmann::json;

// Bytes of an error that are written.
constexpr size_t kMaxError = 1000;

// By OperationKind. Part of the file format.
constexpr std::array<absl::string_view, 6> kKindNames = {"Step",    "ForwardBackward", "OptimStep",
                                                         "Forward", "Backward",        "Publish"};

absl::Status Invalid(const JournalRecord& record, absl::string_view why) {
  return absl::DataLossError(
      absl::StrCat("operation ", record.sequence, " of the journal is invalid: ", why));
}

// Returns the line's number. JSON has no infinity and no NaN: nlohmann writes null.
std::optional<double> NumberIn(const json& in, const char* name) {
  if (!in.contains(name)) {
    return std::nullopt;
  }
  return in.at(name).is_null() ? std::numeric_limits<double>::quiet_NaN()
                               : in.at(name).get<double>();
}

}  // namespace

std::string OperationName(OperationKind kind) {
  return std::string(kKindNames.at(static_cast<size_t>(kind)));
}

std::string SummaryText(const Operation& operation, const std::string& history, absl::Time time) {
  json summary = {{"kind", OperationName(operation.kind)},
                  {"history", history},
                  {"time", absl::ToUnixMillis(time)}};
  if (!operation.batch_id.empty()) {
    summary["batch_id"] = operation.batch_id;
  }
  return summary.dump();
}

RecordedResult PartToRecord(const OperationResult& result) {
  return {result.step,    result.loss,  result.gradient_norm, result.lr,
          result.skipped, result.model, result.version};
}

std::string ResultText(const RecordedResult& result) {
  json out = {{"step", result.step}};
  const auto add = [&out](const char* name, const std::optional<double>& value) {
    if (value) {
      out[name] = *value;
    }
  };
  add("loss", result.loss);
  add("gradient_norm", result.gradient_norm);
  add("lr", result.lr);
  if (result.skipped) {
    out["skipped"] = true;
  }
  if (result.version > 0) {
    out["model"] = result.model;
    out["version"] = result.version;
  }
  return out.dump();
}

std::string FailureText(const absl::Status& failure) {
  return json{{"error", failure.ToString().substr(0, kMaxError)}}.dump(
      -1, ' ', /*ensure_ascii=*/false, json::error_handler_t::replace);
}

absl::StatusOr<OperationSummary> ReadSummary(const JournalRecord& record) {
  const size_t end = record.body.find('\n');
  if (end == std::string::npos) {
    return Invalid(record, "its first line is missing");
  }
  const json in = json::parse(absl::string_view(record.body).substr(0, end), nullptr,
                              /*allow_exceptions=*/false);
  OperationSummary summary;
  try {
    const std::string kind = in.at("kind").get<std::string>();
    const auto name = std::ranges::find(kKindNames, kind);
    if (name == kKindNames.end()) {
      return Invalid(record, absl::StrCat("unknown kind '", kind, "'"));
    }
    summary.kind = static_cast<OperationKind>(name - kKindNames.begin());
    summary.history = in.at("history").get<std::string>();
    summary.batch_id = in.value("batch_id", std::string());
    summary.time = absl::FromUnixMillis(in.value("time", int64_t{0}));
  } catch (const json::exception& error) {
    return Invalid(record, error.what());
  }
  return summary;
}

absl::StatusOr<JournaledOperation> ReadOperation(const JournalRecord& record,
                                                 const RequestReader& read_request) {
  BRAID_ASSIGN_OR_RETURN(OperationSummary summary, ReadSummary(record));
  absl::StatusOr<Operation> operation =
      read_request(summary.kind, record.body.substr(record.body.find('\n') + 1));
  if (!operation.ok()) {
    return Invalid(record, operation.status().message());
  }
  if (operation->sequence != record.sequence) {
    return Invalid(record, absl::StrCat("its request is of operation ", operation->sequence));
  }
  JournaledOperation read;
  read.operation = *std::move(operation);
  read.history = std::move(summary.history);
  return read;
}

absl::StatusOr<RecordedResult> ReadResult(const JournalRecord& record) {
  const json in = json::parse(record.body, nullptr, /*allow_exceptions=*/false);
  RecordedResult result;
  try {
    result.step = in.at("step").get<int64_t>();
    result.loss = NumberIn(in, "loss");
    result.gradient_norm = NumberIn(in, "gradient_norm");
    result.lr = NumberIn(in, "lr");
    result.skipped = in.value("skipped", false);
    result.version = in.value("version", int64_t{0});
    result.model = in.value("model", std::string());
  } catch (const json::exception& error) {
    return absl::DataLossError(absl::StrCat("the journal's result of operation ", record.sequence,
                                            " is invalid: ", error.what()));
  }
  return result;
}

std::string ReadFailure(const JournalRecord& record) {
  const json in = json::parse(record.body, nullptr, /*allow_exceptions=*/false);
  return in.is_object() && in.contains("error") && in["error"].is_string()
             ? in["error"].get<std::string>()
             : "";
}

}  // namespace braid
