#include "server/tracking/step_file.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "server/base/status.h"

namespace braid {
namespace {

using Json = nlohmann::ordered_json;

constexpr absl::string_view kHeader = "step,time,name,value\n";

// Sets the value of the metric `value.name`.
void Set(const TrackedValue& value, std::vector<TrackedValue>* values) {
  const auto found = std::ranges::find(*values, value.name, &TrackedValue::name);
  if (found == values->end()) {
    values->push_back(value);
  } else {
    found->value = value.value;
  }
}

// Rounds to milliseconds.
double Seconds(absl::Time time) { return static_cast<double>(absl::ToUnixMillis(time)) / 1000; }

absl::Time AtSeconds(double seconds) {
  return absl::FromUnixMillis(static_cast<int64_t>(std::llround(seconds * 1000)));
}

// Returns the shortest text that reads back as `value`.
std::string NumberText(double value) {
  return std::isfinite(value) ? Json(value).dump() : absl::StrCat(value);
}

std::optional<TrackedValues> ParseCsv(absl::string_view line) {
  const std::vector<absl::string_view> fields = absl::StrSplit(line, ',');
  TrackedValues row;
  double seconds = 0;
  TrackedValue value;
  if (fields.size() != 4 || !absl::SimpleAtoi(fields[0], &row.step) || row.step < 0 ||
      !absl::SimpleAtod(fields[1], &seconds) || !absl::SimpleAtod(fields[3], &value.value)) {
    return std::nullopt;
  }
  row.time = AtSeconds(seconds);
  value.name = std::string(fields[2]);
  row.values.push_back(std::move(value));
  return row;
}

std::optional<TrackedValues> ParseJson(const std::string& line) {
  const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("step") || !json["step"].is_number_unsigned() ||
      !json.contains("time") || !json["time"].is_number()) {
    return std::nullopt;
  }
  TrackedValues row{json["step"].get<int64_t>(), AtSeconds(json["time"].get<double>()), {}};
  for (const auto& [name, value] : json.items()) {
    if (name != "step" && name != "time") {
      row.values.push_back({name, value.is_number() ? value.get<double>() : std::nan("")});
    }
  }
  return row;
}

}  // namespace

absl::Status StepFile::Open(int64_t last) {
  row_ = {-1, {}, {}};
  unwritten_.clear();
  written_ = 0;
  int64_t end = 0;
  std::ifstream in;
  if (last >= 0) {
    in.open(path_);
  }
  for (std::string line; std::getline(in, line) && !in.eof();) {
    const auto size = static_cast<int64_t>(line.size()) + 1;
    if (format_ == Format::kCsv && end == 0) {
      if (absl::StrCat(line, "\n") != kHeader) {
        break;
      }
      written_ = size;
    } else {
      std::optional<TrackedValues> row = Parse(line);
      if (!row.has_value() || row->step < row_.step || row->step > last) {
        break;
      }
      if (row->step > row_.step) {
        row_ = *std::move(row);
        written_ = end;
      } else {
        for (const TrackedValue& value : row->values) {
          Set(value, &row_.values);
        }
      }
    }
    end += size;
  }
  BRAID_ASSIGN_OR_RETURN(file_, TailFile::Open(path_));
  if (format_ == Format::kCsv && end == 0) {
    unwritten_ = std::string(kHeader);
  }
  return file_->Replace(end, "");
}

absl::Status StepFile::Write(absl::Span<const TrackedValues> all) {
  std::string text = std::move(unwritten_);
  for (const TrackedValues& values : all) {
    if (values.step > row_.step) {
      absl::StrAppend(&text, Text(row_));
      row_ = {values.step, values.time, {}};
    }
    for (const TrackedValue& value : values.values) {
      Set(value, &row_.values);
    }
  }
  const size_t before_row = text.size();
  absl::StrAppend(&text, Text(row_));
  const absl::Status status = file_->Replace(written_, text);
  if (status.ok()) {
    unwritten_.clear();
    written_ += static_cast<int64_t>(before_row);
  } else if (before_row <= TailFile::kMaxUnwritten) {
    text.resize(before_row);
    unwritten_ = std::move(text);
  } else {
    unwritten_ = format_ == Format::kCsv && written_ == 0 ? std::string(kHeader) : "";
  }
  return status;
}

std::optional<TrackedValues> StepFile::Parse(const std::string& line) const {
  return format_ == Format::kCsv ? ParseCsv(line) : ParseJson(line);
}

std::string StepFile::Text(const TrackedValues& row) const {
  if (row.values.empty()) {
    return "";
  }
  if (format_ == Format::kJsonLines) {
    Json json{{"step", row.step}, {"time", Seconds(row.time)}};
    for (const TrackedValue& value : row.values) {
      json[value.name] = value.value;
    }
    return json.dump() + "\n";
  }
  std::string text;
  for (const TrackedValue& value : row.values) {
    absl::StrAppend(&text, row.step, ",", absl::StrFormat("%.3f", Seconds(row.time)), ",",
                    value.name, ",", NumberText(value.value), "\n");
  }
  return text;
}

}  // namespace braid
