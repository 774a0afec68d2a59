// Text for a terminal.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace braid::cli {

// Control characters become spaces: what came over the network must not steer the terminal.
std::string Printable(absl::string_view text);

// "512 B", "1.5 KiB", "3.2 GiB".
std::string FormatBytes(int64_t bytes);

// Rows of cells, the first the headings, in columns two spaces apart. A column whose cells below
// the heading all begin with a digit is flush right, others are flush left. Every row must have as
// many cells as the first. Ends with a newline.
std::string FormatTable(const std::vector<std::vector<std::string>>& rows);

}  // namespace braid::cli
