// Files as the storage tests look at them and spoil them.
#pragma once

#include <sys/resource.h>

#include <csignal>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace braid {

inline std::string Contents(const std::filesystem::path& path) {
  std::stringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

inline void Put(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

inline void Truncate(const std::filesystem::path& path) {
  ASSERT_GT(std::filesystem::file_size(path), 0u);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
}

inline void FlipByte(const std::filesystem::path& path, size_t at) {
  std::string text = Contents(path);
  ASSERT_LT(at, text.size());
  text[at] = static_cast<char>(text[at] ^ 0x10);
  Put(path, text);
}

// `from` once replaced by `to`.
inline std::string Replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from << " is not in " << text;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

// The names in `directory`, those that begin with a '.' too.
inline std::vector<std::string> Names(const std::filesystem::path& directory) {
  std::vector<std::string> names;
  for (const auto& child : std::filesystem::directory_iterator(directory)) {
    names.push_back(child.path().filename());
  }
  return names;
}

// While it lives, no file of this process grows beyond `bytes`: a disk that is full.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(size_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    EXPECT_EQ(getrlimit(RLIMIT_FSIZE, &before_), 0);
    const rlimit limit = {bytes, before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  }
  ~FileSizeLimit() {
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &before_), 0);
    std::signal(SIGXFSZ, handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit before_ = {};
  sighandler_t handler_;
};

}  // namespace braid
