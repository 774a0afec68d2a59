#include "client/cli/table.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace braid::cli {
namespace {

using Rows = std::vector<std::vector<std::string>>;

// Characters, not bytes, of UTF-8.
size_t Width(absl::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

bool FlushRight(const Rows& rows, size_t column) {
  return rows.size() > 1 && std::all_of(rows.begin() + 1, rows.end(), [&](const auto& row) {
           return !row[column].empty() && absl::ascii_isdigit(row[column][0]);
         });
}

}  // namespace

std::string Printable(absl::string_view text) {
  std::string result(text);
  std::replace_if(
      result.begin(), result.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, ' ');
  return result;
}

std::string FormatBytes(int64_t bytes) {
  if (bytes < 1024) return absl::StrCat(bytes, " B");
  auto size = static_cast<double>(bytes);
  const char* units[] = {"KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  for (size /= 1024; size >= 1024 && unit + 1 < std::size(units); ++unit) size /= 1024;
  return absl::StrFormat("%.1f %s", size, units[unit]);
}

std::string FormatTable(const Rows& rows) {
  std::vector<std::string> lines(rows.size());
  for (size_t column = 0; column < rows.front().size(); ++column) {
    size_t width = 0;
    for (const auto& row : rows) width = std::max(width, Width(row[column]));
    const bool right = FlushRight(rows, column);
    for (size_t i = 0; i < rows.size(); ++i) {
      const std::string padding(width - Width(rows[i][column]), ' ');
      if (column > 0) lines[i] += "  ";
      if (right) lines[i] += padding;
      lines[i] += Printable(rows[i][column]);
      if (!right) lines[i] += padding;
    }
  }
  std::string table;
  for (std::string& line : lines) {
    absl::StripTrailingAsciiWhitespace(&line);
    table += line + '\n';
  }
  return table;
}

}  // namespace braid::cli
