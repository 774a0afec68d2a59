#include "server/decode/text_decoder.h"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/fakes/status_matchers.h"
#include "tests/fakes/temp_dir.h"

namespace braid {
namespace {

using Json = nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

using Ids = std::vector<int64_t>;

// Tokens of bert.json.
constexpr int64_t kPad = 0;
constexpr int64_t kCls = 2;
constexpr int64_t kSep = 3;

std::string ReadTokenizer(const std::string& name) {
  std::ifstream file(std::filesystem::path(BRAID_TOKENIZERS) / name);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<EncodedRow> Rows(const std::vector<std::string>& texts) {
  std::vector<EncodedRow> rows;
  for (const std::string& text : texts) {
    rows.push_back({.bytes = text, .row = 100 + static_cast<int64_t>(rows.size())});
  }
  return rows;
}

absl::StatusOr<std::shared_ptr<const Decoder>> Make(const TextSpec& spec) {
  return MakeTextDecoder(spec, {BRAID_TOKENIZERS}, "decode");
}

absl::StatusOr<std::vector<HostTensor>> Decode(const Decoder& decoder,
                                               const std::vector<std::string>& texts) {
  return decoder.Decode(Rows(texts), DecodeOptions());
}

Ids Values(const HostTensor& tensor) {
  const auto* const values = static_cast<const int64_t*>(tensor.data);
  return {values, values + tensor.shape[0] * tensor.shape[1]};
}

// Returns one row without its padding on the right.
Ids Row(const std::vector<HostTensor>& tensors, size_t row) {
  const auto width = static_cast<size_t>(tensors.front().shape[1]);
  const Ids ids = Values(tensors.front());
  const Ids mask = Values(tensors.back());
  Ids tokens;
  for (size_t i = row * width; i < (row + 1) * width && mask[i] == 1; ++i) {
    tokens.push_back(ids[i]);
  }
  return tokens;
}

// Tokenizers that a test changes.
class ChangedTokenizerTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::shared_ptr<const Decoder>> Make(TextSpec spec, const std::string& file) {
    dir_.Write("changed.json", file);
    spec.tokenizer = "changed.json";
    return MakeTextDecoder(spec, {dir_.path()}, "decode");
  }

  const TempDir dir_;
};

TEST(TextDecoderTest, ReturnsTheTokensOfHuggingFacesTokenizers) {
  const Json expected = Json::parse(ReadTokenizer("expected.json"));
  const auto texts = expected["texts"].get<std::vector<std::string>>();
  for (const Json& golden : expected["cases"]) {
    SCOPED_TRACE(absl::StrCat(golden["tokenizer"].dump(), " ", golden["truncate_to"].dump(), " ",
                              golden["special_tokens"].dump()));
    const auto max_length = golden["truncate_to"].get<int64_t>();
    BRAID_ASSERT_OK_AND_ASSIGN(const auto decoder, Make({.tokenizer = golden["tokenizer"],
                                                         .max_length = max_length,
                                                         .truncate = max_length > 0,
                                                         .special_tokens = golden["special_tokens"],
                                                         .mask = "mask"}));
    BRAID_ASSERT_OK_AND_ASSIGN(const auto tensors, Decode(*decoder, texts));
    for (size_t i = 0; i < texts.size(); ++i) {
      EXPECT_EQ(Row(tensors, i), golden["ids"][i].get<Ids>()) << texts[i];
    }
  }
}

TEST(TextDecoderTest, PadsToTheLongestRow) {
  BRAID_ASSERT_OK_AND_ASSIGN(const auto decoder, Make({.tokenizer = "bert.json", .mask = "mask"}));
  ASSERT_THAT(decoder->outputs(), SizeIs(2));
  for (const Decoder::Output& output : decoder->outputs()) {
    EXPECT_EQ(output.row, (RowType{.type = DataType::kInt64, .shape = {kUnknownDim}}));
  }
  BRAID_ASSERT_OK_AND_ASSIGN(const auto tensors, Decode(*decoder, {"", "dog"}));
  ASSERT_THAT(tensors, SizeIs(2));
  const int64_t dog = Values(tensors[0])[4];
  EXPECT_EQ(tensors[0].name, "");
  EXPECT_EQ(tensors[0].type, DataType::kInt64);
  EXPECT_THAT(tensors[0].shape, ElementsAre(2, 3));
  EXPECT_THAT(Values(tensors[0]), ElementsAre(kCls, kSep, kPad, kCls, dog, kSep));
  EXPECT_EQ(tensors[1].name, "mask");
  EXPECT_THAT(tensors[1].shape, ElementsAre(2, 3));
  EXPECT_THAT(Values(tensors[1]), ElementsAre(1, 1, 0, 1, 1, 1));
}

TEST(TextDecoderTest, ChecksTheBytesOfPaddedRows) {
  BRAID_ASSERT_OK_AND_ASSIGN(const auto decoder, Make({.tokenizer = "bert.json", .mask = "mask"}));
  const std::vector<EncodedRow> rows = {{"", 7}, {"dog dog", 8}};
  // 2 rows of 4 tokens, each 8 bytes in both tensors.
  EXPECT_THAT(decoder->Decode(rows, {.max_bytes = 128}), IsOk());
  EXPECT_THAT(decoder->Decode(rows, {.max_bytes = 127}),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       "row 8: padding 2 rows to 4 tokens takes 64 bytes per row (expected at most "
                       "127 bytes per batch; set max_length, or use a smaller batch_size)"));
}

TEST(TextDecoderTest, PadsToTheMaximumLength) {
  BRAID_ASSERT_OK_AND_ASSIGN(
      const auto decoder,
      Make({.tokenizer = "bert.json", .max_length = 4, .pad_to_max_length = true}));
  ASSERT_THAT(decoder->outputs(), SizeIs(1));
  EXPECT_THAT(decoder->outputs()[0].row.shape, ElementsAre(4));
  BRAID_ASSERT_OK_AND_ASSIGN(const auto tensors, Decode(*decoder, {""}));
  ASSERT_THAT(tensors, SizeIs(1));
  EXPECT_THAT(tensors[0].shape, ElementsAre(1, 4));
  EXPECT_THAT(Values(tensors[0]), ElementsAre(kCls, kSep, kPad, kPad));
  BRAID_ASSERT_OK_AND_ASSIGN(const auto none, Decode(*decoder, {}));
  EXPECT_THAT(none[0].shape, ElementsAre(0, 4));
}

TEST(TextDecoderTest, ReturnsPaddingForATextWithoutTokens) {
  BRAID_ASSERT_OK_AND_ASSIGN(const auto decoder, Make({.tokenizer = "gpt2.json", .mask = "mask"}));
  BRAID_ASSERT_OK_AND_ASSIGN(const auto tensors, Decode(*decoder, {"", ""}));
  EXPECT_THAT(tensors[0].shape, ElementsAre(2, 1));
  EXPECT_THAT(Values(tensors[0]), ElementsAre(0, 0));
  EXPECT_THAT(Values(tensors[1]), ElementsAre(0, 0));
}

TEST(TextDecoderTest, RejectsTextsThatAreTooLong) {
  BRAID_ASSERT_OK_AND_ASSIGN(const auto decoder, Make({.tokenizer = "bert.json", .max_length = 4}));
  EXPECT_THAT(Decode(*decoder, {"dog", "the dog . . ."}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "row 101: the text has 7 tokens (expected at most max_length, 4; truncate "
                       "cuts longer texts)"));
}

TEST(TextDecoderTest, RejectsTextsThatAreNotUtf8) {
  BRAID_ASSERT_OK_AND_ASSIGN(const auto decoder, Make({.tokenizer = "bert.json"}));
  for (const std::string text : {"dog\xff", "dog\xc3", "dog\xed\xa0\x80", "dog\xc0\xaf"}) {
    EXPECT_THAT(Decode(*decoder, {text}),
                StatusIs(absl::StatusCode::kInvalidArgument, "row 100: byte 3: not UTF-8"));
  }
}

TEST(TextDecoderTest, LeavesOutUnreadableRows) {
  BRAID_ASSERT_OK_AND_ASSIGN(const auto decoder, Make({.tokenizer = "bert.json"}));
  std::vector<UnreadableRow> unreadable;
  BRAID_ASSERT_OK_AND_ASSIGN(const auto tensors, decoder->Decode(Rows({"\xff", "dog", "\xfe"}),
                                                                 DecodeOptions(), &unreadable));
  EXPECT_THAT(tensors[0].shape, ElementsAre(1, 3));
  ASSERT_THAT(unreadable, SizeIs(2));
  EXPECT_EQ(unreadable[0].index, 0);
  EXPECT_EQ(unreadable[1].index, 2);
  EXPECT_THAT(unreadable[1].status,
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("row 102")));
}

TEST(TextDecoderTest, RejectsAMaximumLengthBelowTheSpecialTokens) {
  EXPECT_THAT(Make({.tokenizer = "bert.json", .max_length = 1, .truncate = true}),
              RefusesField("decode.max_length", HasSubstr("expected at least 2")));
  EXPECT_THAT(
      Make({.tokenizer = "bert.json", .max_length = 1, .truncate = true, .special_tokens = false}),
      IsOk());
}

TEST(TextDecoderTest, FindsTheFileInTheFirstDirectoryThatHasIt) {
  const TempDir empty;
  EXPECT_THAT(
      MakeTextDecoder({.tokenizer = "bert.json"}, {empty.path(), BRAID_TOKENIZERS}, "decode"),
      IsOk());
  EXPECT_THAT(MakeTextDecoder({.tokenizer = "bert.json"}, {empty.path()}, "decode"),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("decode.tokenizer: no file 'bert.json' in "),
                             HasSubstr(empty.path().string()))));
  for (const std::string path : {"../tokenizers/bert.json", "/bert.json"}) {
    EXPECT_THAT(Make({.tokenizer = path}),
                RefusesField("decode.tokenizer", HasSubstr("relative path without ..")));
  }
}

TEST_F(ChangedTokenizerTest, UsesThePaddingTokenOfTheSpecificationThenOfTheFile) {
  Json file = Json::parse(ReadTokenizer("bert.json"));
  const auto padding = [&](const TextSpec& spec) {
    const auto decoder = Make(spec, file.dump()).value();
    return Values(Decode(*decoder, {"", "dog"}).value().front())[2];
  };
  EXPECT_EQ(padding({}), kPad);
  file["padding"] = {
      {"strategy", "BatchLongest"},    {"direction", "Right"}, {"pad_id", 4},
      {"pad_to_multiple_of", nullptr}, {"pad_type_id", 0},     {"pad_token", "[MASK]"}};
  EXPECT_EQ(padding({}), 4);
  EXPECT_EQ(padding({.pad_token = 1}), 1);
}

TEST_F(ChangedTokenizerTest, IgnoresTheLengthsOfTheFile) {
  Json file = Json::parse(ReadTokenizer("bert.json"));
  file["padding"] = {{"strategy", {{"Fixed", 9}}}, {"direction", "Right"}, {"pad_id", 0},
                     {"pad_to_multiple_of", 8},    {"pad_type_id", 0},     {"pad_token", "[PAD]"}};
  file["truncation"] = {
      {"direction", "Right"}, {"max_length", 3}, {"strategy", "LongestFirst"}, {"stride", 1}};
  BRAID_ASSERT_OK_AND_ASSIGN(const auto decoder, Make({}, file.dump()));
  BRAID_ASSERT_OK_AND_ASSIGN(const auto tensors, Decode(*decoder, {"dog dog dog"}));
  EXPECT_THAT(tensors[0].shape, ElementsAre(1, 5));
}

TEST_F(ChangedTokenizerTest, TruncatesAndPadsOnTheSideThatTheFileNames) {
  Json file = Json::parse(ReadTokenizer("bert.json"));
  file["padding"] = {
      {"strategy", "BatchLongest"},    {"direction", "Left"}, {"pad_id", 0},
      {"pad_to_multiple_of", nullptr}, {"pad_type_id", 0},    {"pad_token", "[PAD]"}};
  file["truncation"] = {
      {"direction", "Left"}, {"max_length", 3}, {"strategy", "LongestFirst"}, {"stride", 1}};
  BRAID_ASSERT_OK_AND_ASSIGN(
      const auto decoder, Make({.max_length = 3, .truncate = true, .mask = "mask"}, file.dump()));
  BRAID_ASSERT_OK_AND_ASSIGN(const auto tensors, Decode(*decoder, {"the dog", "dog", ""}));
  const int64_t dog = Values(tensors[0])[1];
  EXPECT_THAT(Values(tensors[0]), ElementsAre(kCls, dog, kSep, kCls, dog, kSep, kPad, kCls, kSep));
  EXPECT_THAT(Values(tensors[1]), ElementsAre(1, 1, 1, 1, 1, 1, 0, 1, 1));
}

TEST_F(ChangedTokenizerTest, RejectsAFileThatIsNotATokenizer) {
  for (const std::string text : {"", "[]", "{}", "{\"model\": 1}", "\xff\xfe"}) {
    EXPECT_THAT(Make({}, text), RefusesField("decode.tokenizer", HasSubstr("changed.json': ")));
  }
}

TEST_F(ChangedTokenizerTest, SurvivesDamagedFiles) {
  for (const std::string name : {"bert.json", "gpt2.json", "llama3.json", "t5.json"}) {
    const std::string intact = ReadTokenizer(name);
    for (uint32_t seed = 0; seed < 150; ++seed) {
      std::mt19937 random(seed);
      std::string damaged = intact;
      for (uint32_t changes = 1 + random() % 3; changes > 0; --changes) {
        const size_t at = random() % damaged.size();
        switch (random() % 4) {
          case 0:
            damaged.resize(at + 1);
            break;
          case 1:
            damaged[at] = static_cast<char>(random());
            break;
          case 2:
            damaged.erase(at, 1 + random() % 20);
            break;
          default:
            damaged.insert(at, damaged.substr(random() % damaged.size(), random() % 40));
        }
      }
      const auto decoder = Make({.max_length = 8, .truncate = true}, damaged);
      if (decoder.ok()) {
        // Returns tokens or an error.
        Decode(**decoder, {"The dog isn't <|endoftext|> 日本語 12\n\n", ""}).IgnoreError();
      }
    }
  }
}

TEST(TextDecoderTest, DecodesOnSeveralThreads) {
  const Json expected = Json::parse(ReadTokenizer("expected.json"));
  const auto texts = expected["texts"].get<std::vector<std::string>>();
  BRAID_ASSERT_OK_AND_ASSIGN(const auto decoder, Make({.tokenizer = "t5.json"}));
  BRAID_ASSERT_OK_AND_ASSIGN(const auto alone, Decode(*decoder, texts));
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int repeat = 0; repeat < 10; ++repeat) {
        const auto tensors = Decode(*decoder, texts);
        ASSERT_THAT(tensors, IsOk());
        EXPECT_EQ(Values(tensors->front()), Values(alone.front()));
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

}  // namespace
}  // namespace braid
