#include "server/graph/model_line.h"

#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "server/base/text.h"

namespace braid {
namespace {

// Returns "path, line 12, in forward" for `File "path", line 12, in forward`; empty for other
// lines.
std::string Place(absl::string_view line) {
  line = absl::StripAsciiWhitespace(line);
  if (!absl::ConsumePrefix(&line, "File \"")) {
    return "";
  }
  const size_t end = line.find('"');
  return end == absl::string_view::npos ? ""
                                        : absl::StrCat(line.substr(0, end), line.substr(end + 1));
}

std::string TextOf(const JsonField& metadata, const char* name) {
  const absl::StatusOr<JsonField> field = metadata.Get(name);
  return field.ok() ? field->String().value_or("") : "";
}

// Returns "encoder.0 (Linear)" for
// "L__self__,,pkg.Model;L__self___encoder_0,encoder.0,torch.nn.Linear".
std::string InnermostModule(const std::string& modules) {
  const std::vector<absl::string_view> stack = absl::StrSplit(modules, ';');
  const std::vector<absl::string_view> parts = absl::StrSplit(stack.back(), ',');
  if (parts.size() != 3) {
    return "";
  }
  const absl::string_view type = parts[2].substr(parts[2].rfind('.') + 1);
  return absl::StrCat(parts[1], parts[1].empty() ? "" : " ", "(", type, ")");
}

}  // namespace

std::string InnermostLine(absl::string_view stack_trace) {
  const std::vector<absl::string_view> lines = absl::StrSplit(stack_trace, '\n');
  for (size_t i = lines.size(); i-- > 0;) {
    const std::string place = Place(lines[i]);
    if (place.empty() || place.front() == '<') {
      continue;
    }
    const bool has_code = i + 1 < lines.size() && Place(lines[i + 1]).empty();
    const absl::string_view code =
        has_code ? absl::StripAsciiWhitespace(lines[i + 1]) : absl::string_view();
    return absl::StrCat(Excerpt(place), code.empty() ? "" : ": ", Excerpt(code));
  }
  return "";
}

std::string ModelLine(const JsonField& node) {
  const absl::StatusOr<JsonField> metadata = node.Get("metadata");
  if (!metadata.ok()) {
    return "";
  }
  const std::string line = InnermostLine(TextOf(*metadata, "stack_trace"));
  return line.empty() ? InnermostModule(TextOf(*metadata, "nn_module_stack")) : line;
}

}  // namespace braid
