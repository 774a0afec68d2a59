#include "server/storage/manifest.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/storage/checksum.h"
#include "tests/fakes/status_matchers.h"
#include "tests/unit/storage/file_tools.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Manifest Example() {
  return {"checkpoint",
          absl::FromUnixMicros(1'700'000'000'123'456),
          {{"step", 120}, {"lowest", std::numeric_limits<int64_t>::min()}},
          R"({"lr":0.1,"name":"é","large":9007199254740993})",
          {{"a.bin", {5, ChecksumOf("12345")}}, {"b.bin", {0, ChecksumOf("")}}}};
}

std::string TextOfExample() {
  const absl::StatusOr<std::string> text = ManifestText(Example());
  EXPECT_THAT(text, IsOk());
  return text.value_or("");
}

// Returns `text` with its correct checksum.
std::string Sealed(const std::string& text) {
  const size_t at = text.rfind(",\n  \"checksum\"");
  return text.substr(0, at) + ",\n  \"checksum\": \"" + ChecksumOf(text.substr(0, at)) + "\"\n}\n";
}

TEST(ManifestTest, RoundTrips) {
  BRAID_ASSERT_OK_AND_ASSIGN(const Manifest manifest, ParseManifest(TextOfExample()));
  EXPECT_EQ(manifest.kind, "checkpoint");
  EXPECT_EQ(manifest.created, Example().created);
  EXPECT_EQ(manifest.numbers, Example().numbers);
  EXPECT_EQ(nlohmann::json::parse(manifest.state), nlohmann::json::parse(Example().state));
  ASSERT_EQ(manifest.files.size(), 2u);
  EXPECT_EQ(manifest.files.at("a.bin").bytes, 5);
  EXPECT_EQ(manifest.files.at("a.bin").checksum, ChecksumOf("12345"));
}

TEST(ManifestTest, IsJsonWithAVersion) {
  const nlohmann::json json = nlohmann::json::parse(TextOfExample());
  EXPECT_EQ(json["format_version"], 2);
  EXPECT_EQ(json["files"]["a.bin"]["bytes"], 5);
  EXPECT_EQ(json["state"]["lr"], 0.1);
}

TEST(ManifestTest, RejectsAStateThatIsNotAnObject) {
  for (const char* state : {"", "[]", "1", "{", "{} {}"}) {
    Manifest manifest = Example();
    manifest.state = state;
    EXPECT_THAT(ManifestText(manifest),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("not a JSON object")))
        << state;
  }
}

TEST(ManifestTest, DetectsEveryFlippedByte) {
  const std::string text = TextOfExample();
  for (size_t i = 0; i < text.size(); ++i) {
    std::string flipped = text;
    flipped[i] = static_cast<char>(flipped[i] ^ 1);
    EXPECT_THAT(ParseManifest(flipped), testing::Not(IsOk())) << "byte " << i;
  }
}

TEST(ManifestTest, DetectsEveryTruncation) {
  const std::string text = TextOfExample();
  for (size_t size = 0; size < text.size(); ++size) {
    EXPECT_THAT(ParseManifest(text.substr(0, size)),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("damaged")))
        << "at " << size;
  }
}

TEST(ManifestTest, ReadsTheEarlierVersion) {
  std::string text = Replaced(TextOfExample(), "\"format_version\": 2", "\"format_version\": 1");
  text.resize(text.rfind(",\n  \"checksum\""));
  text += ",\n  \"checksum\": \"" + ChecksumOf(text) + "\"\n}\n";
  EXPECT_THAT(ParseManifest(text), IsOk());
}

TEST(ManifestTest, ReportsALaterVersion) {
  for (const char* later : {"7", "3"}) {
    const std::string text = Replaced(TextOfExample(), "\"format_version\": 2",
                                      std::string("\"format_version\": ") + later);
    EXPECT_THAT(ParseManifest(text),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr(std::string("format_version ") + later),
                               HasSubstr("expected at most 2"))));
  }
}

TEST(ManifestTest, DetectsMissingAndInvalidFields) {
  const std::pair<const char*, const char*> edits[] = {
      {"\"format_version\": 2", "\"format_version\": 0"},
      {"\"format_version\": 2", "\"format_version\": \"1\""},
      {"\"format_version\": 2", "\"format\": 1"},
      {"\"kind\": \"checkpoint\"", "\"kind\": 1"},
      {"\"created\": \"2023", "\"created\": \"when"},
      {"\"step\": 120", "\"step\": 1.5"},
      {"\"numbers\": {", "\"number\": {"},
      {"\"state\": {", "\"states\": {"},
      {"\"bytes\": 5", "\"bytes\": -5"},
      {"\"a.bin\"", "\"../a.bin\""},
      {"\"a.bin\"", "\"a/b\""},
      {"\"a.bin\": {", "\"x\": 1, \"a.bin\": {"},
  };
  for (const auto& [from, to] : edits) {
    EXPECT_THAT(ParseManifest(Sealed(Replaced(TextOfExample(), from, to))),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("damaged")))
        << to;
  }
  EXPECT_THAT(ParseManifest(Sealed(TextOfExample())), IsOk());
}

}  // namespace
}  // namespace braid
