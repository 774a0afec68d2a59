#include "client/cli/spec.h"

#include <fstream>
#include <iterator>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "google/protobuf/descriptor.h"

namespace braid::cli {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

template <typename... Parts>
absl::Status Invalid(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

std::string Known(const std::vector<std::string>& names) {
  return absl::StrCat("; known: ", absl::StrJoin(names, ", "));
}

// Not those whose name is said otherwise.
std::string KnownFields(const Descriptor& type) {
  std::vector<std::string> names;
  for (int i = 0; i < type.field_count(); ++i) {
    const bool said = type.field(i)->name() == "name" || type.field(i)->name() == "pattern";
    if (!said) names.push_back(type.field(i)->name());
  }
  return Known(names);
}

// The name's part that is a word of its own: "PRECISION_BFLOAT16" is "bfloat16".
std::string Word(const EnumValueDescriptor& value) {
  const std::string& zero = value.type()->value(0)->name();
  const size_t prefix = zero.size() - absl::string_view("UNSPECIFIED").size();
  return absl::AsciiStrToLower(value.name().substr(prefix));
}

absl::StatusOr<const EnumValueDescriptor*> ParseWord(const EnumDescriptor& type,
                                                     absl::string_view text) {
  std::vector<std::string> words;
  for (int i = 1; i < type.value_count(); ++i) {
    words.push_back(Word(*type.value(i)));
    if (words.back() == absl::AsciiStrToLower(text)) return type.value(i);
  }
  return Invalid("\"", text, "\" is unknown", Known(words));
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return Invalid("cannot read ", path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// Parses `text` with `parse` into a T and hands it to `set`.
template <typename T, typename Parse, typename Set>
absl::Status SetNumber(absl::string_view text, const char* kind, Parse parse, Set set) {
  T value{};
  if (!parse(text, &value)) return Invalid("\"", text, "\" is not ", kind);
  set(value);
  return absl::OkStatus();
}

// Sets the field, or adds to it.
absl::Status SetField(const FieldDescriptor& field, absl::string_view text, Message* message) {
  const google::protobuf::Reflection& access = *message->GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return SetNumber<double>(
          text, "a number", [](auto from, double* to) { return absl::SimpleAtod(from, to); },
          [&](double value) {
            field.is_repeated() ? access.AddDouble(message, &field, value)
                                : access.SetDouble(message, &field, value);
          });
    case FieldDescriptor::CPPTYPE_INT64:
      return SetNumber<int64_t>(
          text, "a whole number", [](auto from, auto* to) { return absl::SimpleAtoi(from, to); },
          [&](int64_t value) {
            field.is_repeated() ? access.AddInt64(message, &field, value)
                                : access.SetInt64(message, &field, value);
          });
    case FieldDescriptor::CPPTYPE_UINT64:
      return SetNumber<uint64_t>(
          text, "a whole number", [](auto from, auto* to) { return absl::SimpleAtoi(from, to); },
          [&](uint64_t value) { access.SetUInt64(message, &field, value); });
    case FieldDescriptor::CPPTYPE_BOOL:
      return SetNumber<bool>(
          text, "true or false", [](auto from, bool* to) { return absl::SimpleAtob(from, to); },
          [&](bool value) { access.SetBool(message, &field, value); });
    case FieldDescriptor::CPPTYPE_ENUM: {
      absl::StatusOr<const EnumValueDescriptor*> value = ParseWord(*field.enum_type(), text);
      if (!value.ok()) return value.status();
      access.SetEnum(message, &field, *value);
      return absl::OkStatus();
    }
    case FieldDescriptor::CPPTYPE_STRING: {
      absl::StatusOr<std::string> value = std::string(text);
      if (field.type() == FieldDescriptor::TYPE_BYTES) value = ReadFile(std::string(text));
      if (!value.ok()) return value.status();
      access.SetString(message, &field, *std::move(value));
      return absl::OkStatus();
    }
    default:
      return Invalid("has fields of its own", KnownFields(*field.message_type()));
  }
}

absl::StatusOr<const FieldDescriptor*> FindField(const Descriptor& type, absl::string_view key) {
  const FieldDescriptor* field = type.FindFieldByName(absl::AsciiStrToLower(key));
  if (field == nullptr) return Invalid("\"", key, "\" is unknown", KnownFields(type));
  return field;
}

// The field that the path `key` leads to, and the message that it is in.
absl::StatusOr<std::pair<Message*, const FieldDescriptor*>> Follow(absl::string_view key,
                                                                   Message* message) {
  const std::vector<absl::string_view> path = absl::StrSplit(key, '.');
  for (size_t i = 0;; ++i) {
    absl::StatusOr<const FieldDescriptor*> field = FindField(*message->GetDescriptor(), path[i]);
    if (!field.ok()) return field.status();
    if (i + 1 == path.size()) return std::make_pair(message, *field);
    if ((*field)->message_type() == nullptr || (*field)->is_repeated()) {
      return Invalid("\"", key, "\" is not one field");
    }
    message = message->GetReflection()->MutableMessage(message, *field);
  }
}

absl::Status Prefixed(absl::string_view what, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(what, ": ", status.message()));
}

// "name:fields".
std::pair<std::string, std::string> SplitSpec(const std::string& spec) {
  return absl::StrSplit(spec, absl::MaxSplits(':', 1));
}

// The message of the oneof's field, chosen also where every field of its own has its default.
Message* Choose(const FieldDescriptor& field, Message* message) {
  return message->GetReflection()->MutableMessage(message, &field);
}

struct ScheduleName {
  const char* pytorch;
  const char* field;
};

constexpr ScheduleName kSchedules[] = {{"StepLR", "step"},
                                       {"MultiStepLR", "multi_step"},
                                       {"ExponentialLR", "exponential"},
                                       {"CosineAnnealingLR", "cosine"},
                                       {"OneCycleLR", "one_cycle"},
                                       {"ReduceLROnPlateau", "plateau"}};

constexpr const char* kOptimizers[] = {"SGD", "Adam", "AdamW", "RMSprop", "Adagrad"};

}  // namespace

absl::Status SetFields(absl::string_view what, absl::string_view fields, Message* message) {
  std::pair<Message*, const FieldDescriptor*> target = {nullptr, nullptr};
  for (absl::string_view part : absl::StrSplit(fields, ',')) {
    const size_t equals = part.find('=');
    absl::string_view value = part;
    if (equals != absl::string_view::npos) {
      const absl::string_view key = part.substr(0, equals);
      auto found = Follow(key, message);
      if (!found.ok()) return Prefixed(what, found.status());
      target = *found;
      value = part.substr(equals + 1);
    } else if (target.second == nullptr || !target.second->is_repeated()) {
      return Invalid(what, ": \"", part, "\" is not KEY=VALUE",
                     KnownFields(*message->GetDescriptor()));
    }
    const absl::Status set = SetField(*target.second, value, target.first);
    if (!set.ok()) return Prefixed(absl::StrCat(what, ": ", target.second->name()), set);
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::Loss> ParseLoss(const std::string& spec) {
  v1::Loss loss;
  auto [name, fields] = SplitSpec(spec);
  // The name's place may hold the fields of a loss that has none.
  if (absl::StrContains(name, '=')) {
    fields = spec;
    name.clear();
  }
  loss.set_name(name);
  if (fields.empty()) return loss;
  absl::Status status = SetFields(absl::StrCat("--loss ", name), fields, &loss);
  if (!status.ok()) return status;
  return loss;
}

absl::StatusOr<v1::Optimizer> ParseOptimizer(const std::string& spec) {
  v1::Optimizer optimizer;
  const auto [name, fields] = SplitSpec(spec);
  const FieldDescriptor* field =
      v1::Optimizer::descriptor()->FindFieldByName(absl::AsciiStrToLower(name));
  if (field == nullptr) {
    return Invalid("--optimizer: \"", name, "\" is unknown",
                   Known({std::begin(kOptimizers), std::end(kOptimizers)}));
  }
  Message* chosen = Choose(*field, &optimizer);
  if (fields.empty()) return optimizer;
  absl::Status status = SetFields(absl::StrCat("--optimizer ", name), fields, chosen);
  if (!status.ok()) return status;
  return optimizer;
}

absl::Status ParseSchedule(const std::string& spec, v1::Schedule* schedule) {
  const auto [name, fields] = SplitSpec(spec);
  std::vector<std::string> names;
  const FieldDescriptor* field = nullptr;
  for (const ScheduleName& known : kSchedules) {
    names.emplace_back(known.pytorch);
    const std::string lower = absl::AsciiStrToLower(name);
    if (lower == absl::AsciiStrToLower(known.pytorch) || lower == known.field) {
      field = v1::Schedule::descriptor()->FindFieldByName(known.field);
    }
  }
  if (field == nullptr) {
    return Invalid("--schedule: \"", name, "\" is unknown", Known(names));
  }
  Message* chosen = Choose(*field, schedule);
  if (fields.empty()) return absl::OkStatus();
  return SetFields(absl::StrCat("--schedule ", name), fields, chosen);
}

absl::StatusOr<v1::Stage> ParseStage(const std::string& spec) {
  const std::vector<std::string> parts = absl::StrSplit(spec, absl::MaxSplits('=', 1));
  const std::vector<std::string> devices = absl::StrSplit(parts.back(), ',');
  if (parts.size() != 2 || absl::c_linear_search(devices, "")) {
    return Invalid("--stage: \"", spec, "\" is not PATH=DEVICE,…, such as features=cpu:0,cpu:1");
  }
  v1::Stage stage;
  stage.set_path(parts.front());
  stage.mutable_devices()->Add(devices.begin(), devices.end());
  return stage;
}

absl::StatusOr<v1::ParameterGroup> ParseGroup(const std::string& spec) {
  const size_t colon = spec.rfind(':');
  if (colon == std::string::npos || colon == 0) {
    return Invalid("--group: \"", spec, "\" is not PATTERN:KEY=VALUE,…, such as bias$:lr=0.01");
  }
  v1::ParameterGroup group;
  absl::Status status =
      SetFields(absl::StrCat("--group ", spec.substr(0, colon)), spec.substr(colon + 1), &group);
  if (!status.ok()) return status;
  group.set_pattern(spec.substr(0, colon));
  return group;
}

}  // namespace braid::cli
