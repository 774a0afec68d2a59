#include "server/decode/decode_spec.h"

#include <array>
#include <limits>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"
#include "server/base/abbreviate_names.h"
#include "server/base/status.h"
#include "server/base/text.h"
#include "server/decode/image/image_row.h"

namespace braid {
namespace {

using Json = nlohmann::json;

// Returns true for a value that is not nested: a primitive, or a list of them.
bool IsFlat(const Json& json) {
  return json.is_primitive() || (json.is_array() && absl::c_all_of(json, [](const Json& item) {
                                   return item.is_primitive();
                                 }));
}

// Returns a value for messages. Nested values, whose text may be long, are described.
std::string Shown(const Json& json) {
  if (json.is_primitive()) {
    return std::string(Excerpt(json.dump()));
  }
  if (IsFlat(json)) {
    const auto append = [](std::string* out, const Json& item) { *out += item.dump(); };
    return absl::StrCat("[", Excerpt(absl::StrJoin(json, ", ", append)), "]");
  }
  if (!json.is_object()) {
    return "a nested list";
  }
  std::vector<std::string> keys;
  for (const auto& entry : json.items()) {
    keys.push_back(entry.key());
  }
  return keys.empty() ? "{}" : absl::StrCat("an object with ", AbbreviateNames(keys));
}

// INVALID_ARGUMENT for a value of another type or length.
absl::Status Unexpected(const std::string& where, const Json& json, absl::string_view expected) {
  return InvalidField(where, absl::StrCat(Shown(json), " (expected ", expected, ")"));
}

absl::Status Parse(const Json& json, const std::string& where, bool& value) {
  if (!json.is_boolean()) {
    return Unexpected(where, json, "true or false");
  }
  value = json.get<bool>();
  return absl::OkStatus();
}

absl::Status Parse(const Json& json, const std::string& where, int64_t& value) {
  if (!json.is_number_integer() ||
      (json.is_number_unsigned() &&
       json.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()})) {
    return Unexpected(where, json, "a 64-bit integer");
  }
  value = json.get<int64_t>();
  return absl::OkStatus();
}

absl::Status Parse(const Json& json, const std::string& where, double& value) {
  if (!json.is_number()) {
    return Unexpected(where, json, "a number");
  }
  value = json.get<double>();
  return absl::OkStatus();
}

absl::Status Parse(const Json& json, const std::string& where, std::string& value) {
  if (!json.is_string()) {
    return Unexpected(where, json, "a string");
  }
  value = json.get<std::string>();
  return absl::OkStatus();
}

absl::Status Parse(const Json& json, const std::string& where, Interpolation& value) {
  if (json == "bilinear") {
    value = Interpolation::kBilinear;
  } else if (json == "nearest") {
    value = Interpolation::kNearest;
  } else if (json == "bicubic") {
    value = Interpolation::kBicubic;
  } else {
    return Unexpected(where, json, R"("bilinear", "nearest" or "bicubic")");
  }
  return absl::OkStatus();
}

// Takes one number for a list of one.
template <typename Number>
absl::Status ParseNumbers(const Json& json, const std::string& where, std::vector<Number>& values) {
  values.clear();
  if (!json.is_array()) {
    return Parse(json, where, values.emplace_back());
  }
  for (size_t i = 0; i < json.size(); ++i) {
    BRAID_RETURN_IF_ERROR(Parse(json[i], absl::StrCat(where, "[", i, "]"), values.emplace_back()));
  }
  return absl::OkStatus();
}

absl::Status Parse(const Json& json, const std::string& where, std::vector<int64_t>& values) {
  return ParseNumbers(json, where, values);
}

absl::Status Parse(const Json& json, const std::string& where, std::vector<double>& values) {
  return ParseNumbers(json, where, values);
}

absl::Status Parse(const Json& json, const std::string& where,
                   std::vector<ImageTransform>& transforms);

// Height and width, or one number for both.
struct CropSize {
  int64_t& height;
  int64_t& width;
};

absl::Status Parse(const Json& json, const std::string& where, CropSize size) {
  std::vector<int64_t> sides;
  BRAID_RETURN_IF_ERROR(Parse(json, where, sides));
  if (sides.empty() || sides.size() > 2) {
    return Unexpected(where, json, "an integer, or height and width");
  }
  size.height = sides.front();
  size.width = sides.back();
  return absl::OkStatus();
}

struct Range {
  double& min;
  double& max;
};

absl::Status Parse(const Json& json, const std::string& where, Range range) {
  std::vector<double> ends;
  BRAID_RETURN_IF_ERROR(Parse(json, where, ends));
  if (ends.size() != 2) {
    return Unexpected(where, json, "two numbers, the lower one first");
  }
  range.min = ends.front();
  range.max = ends.back();
  return absl::OkStatus();
}

// Reads the fields of a JSON object. A field that is null is absent. Keeps the first error.
class ObjectReader {
 public:
  ObjectReader(const Json& json, std::string where) : json_(json), where_(std::move(where)) {
    if (!json_.is_object()) {
      status_ = Unexpected(where_, json_, "an object");
    }
  }

  template <typename Value>
  ObjectReader& Optional(const char* name, Value&& value) {
    known_.emplace_back(name);
    if (status_.ok() && Has(name)) {
      status_ = Parse(json_.at(name), absl::StrCat(where_, ".", name), value);
    }
    return *this;
  }

  template <typename Value>
  ObjectReader& Required(const char* name, Value&& value) {
    if (status_.ok() && !Has(name)) {
      status_ = InvalidField(absl::StrCat(where_, ".", name), "missing (expected a value)");
    }
    return Optional(name, std::forward<Value>(value));
  }

  // Returns an error for fields that were not read.
  absl::Status Finish() const {
    BRAID_RETURN_IF_ERROR(status_);
    std::vector<std::string> unknown;
    for (const auto& entry : json_.items()) {
      if (!absl::c_linear_search(known_, entry.key())) {
        unknown.push_back(entry.key());
      }
    }
    if (!unknown.empty()) {
      return InvalidField(where_, absl::StrCat("unknown fields ", AbbreviateNames(unknown),
                                               " (expected: ", absl::StrJoin(known_, ", "), ")"));
    }
    return absl::OkStatus();
  }

 private:
  bool Has(const char* name) const { return json_.contains(name) && !json_.at(name).is_null(); }

  const Json& json_;
  const std::string where_;
  std::vector<std::string> known_;
  absl::Status status_;
};

absl::Status Read(const Json& json, std::string where, Resize& resize) {
  return ObjectReader(json, std::move(where))
      .Required("size", resize.size)
      .Optional("interpolation", resize.interpolation)
      .Finish();
}

absl::Status Read(const Json& json, std::string where, CenterCrop& crop) {
  return ObjectReader(json, std::move(where))
      .Required("size", CropSize{crop.height, crop.width})
      .Finish();
}

absl::Status Read(const Json& json, std::string where, RandomCrop& crop) {
  return ObjectReader(json, std::move(where))
      .Required("size", CropSize{crop.height, crop.width})
      .Optional("padding", crop.padding)
      .Finish();
}

absl::Status Read(const Json& json, std::string where, RandomResizedCrop& crop) {
  return ObjectReader(json, std::move(where))
      .Required("size", CropSize{crop.height, crop.width})
      .Optional("scale", Range{crop.min_scale, crop.max_scale})
      .Optional("ratio", Range{crop.min_ratio, crop.max_ratio})
      .Optional("interpolation", crop.interpolation)
      .Finish();
}

absl::Status Read(const Json& json, std::string where, RandomHorizontalFlip& flip) {
  return ObjectReader(json, std::move(where)).Optional("p", flip.p).Finish();
}

absl::Status Read(const Json& json, std::string where, RandomVerticalFlip& flip) {
  return ObjectReader(json, std::move(where)).Optional("p", flip.p).Finish();
}

absl::Status Read(const Json& json, std::string where, ToFloat& to_float) {
  return ObjectReader(json, std::move(where)).Optional("scale", to_float.scale).Finish();
}

absl::Status Read(const Json& json, std::string where, Normalize& normalize) {
  return ObjectReader(json, std::move(where))
      .Required("mean", normalize.mean)
      .Required("std", normalize.std)
      .Finish();
}

// Argument that a transform may be written with alone: {"resize": 256}.
const char* FirstArgument(const ImageTransform& transform) {
  static constexpr auto kArguments = std::to_array(
      {"size", "size", "size", "size", "p", "p", "scale", "mean"});  // in the variant's order
  static_assert(kArguments.size() == std::variant_size_v<ImageTransform>);
  return kArguments[transform.index()];
}

// Makes the transform `name`. `arguments`: an object, the first argument only, or null for none.
template <size_t index = 0>
absl::StatusOr<ImageTransform> ReadTransform(const std::string& name, const Json& arguments,
                                             const std::string& where) {
  if constexpr (index < std::variant_size_v<ImageTransform>) {
    std::variant_alternative_t<index, ImageTransform> transform;
    if (name != TransformName(transform)) {
      return ReadTransform<index + 1>(name, arguments, where);
    }
    const std::string own = absl::StrCat(where, ".", name);
    if (arguments.is_object()) {
      BRAID_RETURN_IF_ERROR(Read(arguments, own, transform));
      return transform;
    }
    Json object = Json::object();
    if (!IsFlat(arguments)) {
      return Unexpected(own, arguments, "an object with arguments");
    }
    if (!arguments.is_null()) {
      object[FirstArgument(transform)] = arguments;
    }
    BRAID_RETURN_IF_ERROR(Read(object, own, transform));
    return transform;
  } else {
    return InvalidField(where, absl::StrCat("unknown transform '", Excerpt(name),
                                            "' (expected one of ", TransformNames(), ")"));
  }
}

absl::Status Parse(const Json& json, const std::string& where,
                   std::vector<ImageTransform>& transforms) {
  if (!json.is_array()) {
    return Unexpected(where, json, "a list of transforms");
  }
  const Json none;
  for (size_t i = 0; i < json.size(); ++i) {
    const std::string item = absl::StrCat(where, "[", i, "]");
    const bool is_name = json[i].is_string();
    if (!is_name && (!json[i].is_object() || json[i].size() != 1)) {
      return Unexpected(item, json[i], R"(one transform, such as {"resize": 256} or "to_float")");
    }
    const std::string name = is_name ? json[i].get<std::string>() : json[i].begin().key();
    const Json& arguments = is_name ? none : json[i].front();
    BRAID_ASSIGN_OR_RETURN(transforms.emplace_back(), ReadTransform(name, arguments, item));
  }
  return absl::OkStatus();
}

absl::Status ParseJson(absl::string_view json, absl::string_view field, Json* document) {
  *document = Json::parse(json, /*cb=*/nullptr, /*allow_exceptions=*/false);
  return document->is_discarded()
             ? InvalidField(field, absl::StrCat("'", Excerpt(json), "' (expected JSON)"))
             : absl::OkStatus();
}

absl::StatusOr<DecodeSpec> ReadSpec(const Json& json, absl::string_view field) {
  const std::string where(field);
  if (json.is_object() && json.contains("image")) {
    ImageSpec image;
    for (const auto& entry : json.items()) {
      if (entry.key() != "image") {
        return InvalidField(where, absl::StrCat("'", Excerpt(entry.key()),
                                                "' next to image (expected only image)"));
      }
    }
    BRAID_RETURN_IF_ERROR(ObjectReader(json.at("image"), absl::StrCat(where, ".image"))
                              .Optional("channels", image.channels)
                              .Optional("transforms", image.transforms)
                              .Optional("max_pixels", image.max_pixels)
                              .Finish());
    return image;
  }
  if (json.is_object() && json.contains("tokenizer")) {
    TextSpec text;
    BRAID_RETURN_IF_ERROR(ObjectReader(json, where)
                              .Required("tokenizer", text.tokenizer)
                              .Optional("max_length", text.max_length)
                              .Optional("truncate", text.truncate)
                              .Optional("special_tokens", text.special_tokens)
                              .Optional("pad_to_max_length", text.pad_to_max_length)
                              .Optional("pad_token", text.pad_token)
                              .Optional("mask", text.mask)
                              .Finish());
    return text;
  }
  return Unexpected(where, json, R"(an object with "image" or "tokenizer")");
}

absl::Status CheckText(const TextSpec& spec, absl::string_view field) {
  const auto invalid = [&](absl::string_view name, absl::string_view what) {
    return InvalidField(absl::StrCat(field, ".", name), what);
  };
  if (spec.tokenizer.empty()) {
    return invalid("tokenizer", "'' (expected the path of a tokenizer.json)");
  }
  if (spec.max_length < 0 || spec.max_length > kMaxTextTokens) {
    return invalid("max_length",
                   absl::StrCat(spec.max_length, " (expected 0 to ", kMaxTextTokens, " tokens)"));
  }
  if (spec.truncate && spec.max_length == 0) {
    return invalid("truncate", "true without max_length (expected a max_length of at least 1)");
  }
  if (spec.pad_to_max_length && spec.max_length == 0) {
    return invalid("pad_to_max_length",
                   "true without max_length (expected a max_length of at least 1)");
  }
  if (spec.pad_token < -1) {
    return invalid("pad_token", absl::StrCat(spec.pad_token, " (expected a token, or -1)"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<DecodeSpec> ParseDecodeSpec(absl::string_view json, absl::string_view field) {
  Json document;
  BRAID_RETURN_IF_ERROR(ParseJson(json, field, &document));
  BRAID_ASSIGN_OR_RETURN(DecodeSpec spec, ReadSpec(document, field));
  BRAID_RETURN_IF_ERROR(CheckDecodeSpec(spec, field));
  return spec;
}

absl::StatusOr<PadSpec> ParsePadSpec(absl::string_view json, absl::string_view field) {
  Json document;
  BRAID_RETURN_IF_ERROR(ParseJson(json, field, &document));
  PadSpec spec;
  BRAID_RETURN_IF_ERROR(ObjectReader(document, std::string(field))
                            .Optional("value", spec.value)
                            .Optional("mask", spec.mask)
                            .Optional("multiple", spec.multiple)
                            .Finish());
  if (spec.multiple < 1 || spec.multiple > kMaxPadMultiple) {
    return InvalidField(absl::StrCat(field, ".multiple"),
                        absl::StrCat(spec.multiple, " (expected 1 to ", kMaxPadMultiple, ")"));
  }
  return spec;
}

absl::Status CheckDecodeSpec(const DecodeSpec& spec, absl::string_view field) {
  if (const auto* text = std::get_if<TextSpec>(&spec)) {
    return CheckText(*text, field);
  }
  return ImageRow(std::get<ImageSpec>(spec), absl::StrCat(field, ".image")).status();
}

absl::string_view RandomTransform(const DecodeSpec& spec) {
  const auto* image = std::get_if<ImageSpec>(&spec);
  if (image == nullptr) {
    return "";
  }
  const auto found = absl::c_find_if(image->transforms, [](const ImageTransform& transform) {
    return std::holds_alternative<RandomCrop>(transform) ||
           std::holds_alternative<RandomResizedCrop>(transform) ||
           std::holds_alternative<RandomHorizontalFlip>(transform) ||
           std::holds_alternative<RandomVerticalFlip>(transform);
  });
  return found == image->transforms.end() ? "" : TransformName(*found);
}

}  // namespace braid
