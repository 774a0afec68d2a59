// Decodes image files for tests/e2e/test_decoded_images.py, which compares the tensors with
// torchvision's.
//
// Reads one request per line, {"decode": {…}, "files": […], "seed": 0, "epoch": 0}, until the end
// of its input. Row n is file n. Writes one line per request, {"error": "…"} or {"type": "UINT8",
// "shape": […], "unreadable": {"1": "row 1: …"}}, and then the bytes of the tensor.
#include <cstdint>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "server/base/status.h"
#include "server/decode/decoder.h"

namespace braid {
namespace {

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  content << file.rdbuf();
  return content.str();
}

absl::StatusOr<HostTensor> DecodeFiles(const nlohmann::json& request,
                                       std::vector<UnreadableRow>& unreadable) {
  BRAID_ASSIGN_OR_RETURN(const DecodeSpec spec,
                         ParseDecodeSpec(request.at("decode").dump(), "decode"));
  BRAID_ASSIGN_OR_RETURN(const auto decoder, MakeDecoder(spec, {}, "decode"));
  std::vector<std::string> files;
  for (const auto& path : request.at("files")) {
    files.push_back(ReadFile(path.get<std::string>()));
  }
  std::vector<EncodedRow> rows;
  for (const std::string& file : files) {
    rows.push_back({file, static_cast<int64_t>(rows.size())});
  }
  const DecodeOptions options = {request.value("seed", uint64_t{0}),
                                 request.value("epoch", int64_t{0})};
  BRAID_ASSIGN_OR_RETURN(const std::vector<HostTensor> tensors,
                         decoder->Decode(rows, options, &unreadable));
  return tensors.front();
}

void Answer(const nlohmann::json& request) {
  std::vector<UnreadableRow> unreadable;
  const absl::StatusOr<HostTensor> tensor = DecodeFiles(request, unreadable);
  if (!tensor.ok()) {
    std::cout << nlohmann::json{{"error", tensor.status().message()}} << std::endl;
    return;
  }
  nlohmann::json reply = {{"type", DataTypeName(tensor->type)},
                          {"shape", tensor->shape},
                          {"unreadable", nlohmann::json::object()}};
  for (const UnreadableRow& row : unreadable) {
    reply["unreadable"][std::to_string(row.index)] = row.status.message();
  }
  std::cout << reply << '\n';
  std::cout.write(static_cast<const char*>(tensor->data),
                  static_cast<std::streamsize>(tensor->bytes));
  std::cout.flush();
}

}  // namespace
}  // namespace braid

// NOLINTNEXTLINE(bugprone-exception-escape): an invalid request ends the program.
int main() {
  for (std::string line; std::getline(std::cin, line);) {
    braid::Answer(nlohmann::json::parse(line));
  }
}
