#include "server/decode/decode_inputs.h"

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/fake_decoder.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::StrEq;

std::string BytesOf(const HostTensor& tensor) {
  return {static_cast<const char*>(tensor.data), tensor.bytes};
}

EncodedInput MakeInput(std::shared_ptr<const Decoder> decoder,
                       const std::vector<std::string>& rows) {
  EncodedInput input;
  input.name = "image";
  input.decoder = std::move(decoder);
  for (const std::string& bytes : rows) {
    input.rows.push_back({bytes, static_cast<int64_t>(input.rows.size())});
  }
  return input;
}

// Decodes and waits.
absl::StatusOr<DecodedInputs> Decode(
    int threads, std::vector<EncodedInput> inputs,
    CheckBeforeDecode check = [] { return absl::OkStatus(); }) {
  DecodeThreads pool(threads);
  absl::StatusOr<DecodedInputs> result;
  absl::Notification done;
  const absl::Status started = DecodeInputs(&pool, std::move(inputs), std::move(check),
                                            [&](absl::StatusOr<DecodedInputs> decoded) {
                                              result = std::move(decoded);
                                              done.Notify();
                                            });
  EXPECT_THAT(started, IsOk());
  done.WaitForNotification();
  return result;
}

TEST(DecodeInputsTest, JoinsTheRowsOfAllPartsInOrder) {
  std::vector<std::string> rows;
  std::string whole;
  for (char c = 'a'; c <= 'z'; ++c) {
    rows.emplace_back(2, c);
    whole += rows.back();
  }
  for (const int threads : {1, 2, 3}) {
    BRAID_ASSERT_OK_AND_ASSIGN(
        const DecodedInputs decoded,
        Decode(threads, {MakeInput(std::make_shared<FakeDecoder>(2, "mask"), rows)}));
    ASSERT_EQ(decoded.tensors.size(), 1);
    EXPECT_EQ(decoded.tensors[0].name, "image");
    EXPECT_EQ(decoded.tensors[0].type, DataType::kUint8);
    EXPECT_THAT(decoded.tensors[0].shape, ElementsAre(26, 2));
    EXPECT_EQ(BytesOf(decoded.tensors[0]), whole);
    ASSERT_EQ(decoded.masks.size(), 1);
    EXPECT_EQ(decoded.masks[0].name, "mask");
    EXPECT_EQ(BytesOf(decoded.masks[0]), std::string(52, 1));
    EXPECT_GT(decoded.busy, absl::ZeroDuration());
  }
}

TEST(DecodeInputsTest, DividesRowsOfAFixedShape) {
  std::atomic<int> calls = 0;
  const auto decoder = std::make_shared<FakeDecoder>(1, "", [&](absl::Span<const EncodedRow> rows) {
    ++calls;
    EXPECT_LE(rows.size(), 8);
  });
  const std::vector<std::string> rows(33, "x");
  BRAID_ASSERT_OK_AND_ASSIGN(const DecodedInputs decoded, Decode(2, {MakeInput(decoder, rows)}));
  EXPECT_EQ(calls, 5);
  EXPECT_EQ(BytesOf(decoded.tensors[0]), std::string(33, 'x'));
}

TEST(DecodeInputsTest, PadsRowsOfDifferentLengthsInOneCall) {
  std::atomic<int> calls = 0;
  const auto decoder = std::make_shared<FakeDecoder>(
      kUnknownDim, "", [&](absl::Span<const EncodedRow>) { ++calls; });
  const std::vector<std::string> rows = {"a", "bcd", ""};
  BRAID_ASSERT_OK_AND_ASSIGN(const DecodedInputs decoded, Decode(2, {MakeInput(decoder, rows)}));
  EXPECT_EQ(calls, 1);
  EXPECT_THAT(decoded.tensors[0].shape, ElementsAre(3, 3));
  EXPECT_EQ(BytesOf(decoded.tensors[0]), "a..bcd...");
  EXPECT_THAT(decoded.masks, IsEmpty());
}

TEST(DecodeInputsTest, ErrorNamesTheInputAndTheFirstBadRow) {
  std::vector<std::string> rows(20, "ab");
  rows[17] = "abc";
  rows[3] = "a";
  for (const int threads : {1, 4}) {
    EXPECT_THAT(
        Decode(threads, {MakeInput(std::make_shared<FakeDecoder>(2), rows)}),
        StatusIs(absl::StatusCode::kInvalidArgument, StrEq("input 'image', row 3: 1 bytes")));
  }
}

TEST(DecodeInputsTest, AFailedCheckEndsTheWork) {
  std::atomic<int> calls = 0;
  const auto decoder =
      std::make_shared<FakeDecoder>(1, "", [&](absl::Span<const EncodedRow>) { ++calls; });
  const std::vector<std::string> rows(100, "x");
  EXPECT_THAT(Decode(2, {MakeInput(decoder, rows)}, [] { return absl::CancelledError("gone"); }),
              StatusIs(absl::StatusCode::kCancelled, StrEq("gone")));
  EXPECT_EQ(calls, 0);
}

TEST(DecodingBytesTest, ImagesCountByTheirTensors) {
  const std::vector<std::string> rows(4, "tiny");
  const EncodedInput input = MakeInput(std::make_shared<FakeDecoder>(1000), rows);
  EXPECT_EQ(DecodingBytes(input, ImageSpec(), 2), 4000);
}

TEST(DecodingBytesTest, TextsCountByTheLongestOneAndItsTokenizer) {
  const std::vector<std::string> rows = {"a", std::string(84, 'b')};
  const EncodedInput ids = MakeInput(std::make_shared<FakeDecoder>(kUnknownDim), rows);
  const EncodedInput masked = MakeInput(std::make_shared<FakeDecoder>(kUnknownDim, "mask"), rows);
  constexpr size_t kLongest = 84 + 16;
  constexpr size_t kTokenizer = size_t{84} * 512;
  EXPECT_EQ(DecodingBytes(ids, TextSpec(), 4), 2 * kLongest + kTokenizer);
  EXPECT_EQ(DecodingBytes(masked, TextSpec(), 4), 4 * kLongest + kTokenizer);
  TextSpec limited;
  limited.max_length = 50;
  EXPECT_EQ(DecodingBytes(ids, limited, 4), size_t{2} * 50 + kTokenizer);
  const EncodedInput fixed = MakeInput(std::make_shared<FakeDecoder>(50), rows);
  EXPECT_EQ(DecodingBytes(fixed, limited, 4), size_t{2} * 50 + 2 * kTokenizer);
}

TEST(DecodingBytesTest, DoesNotOverflow) {
  const std::vector<std::string> rows(100, "tiny");
  const EncodedInput input = MakeInput(std::make_shared<FakeDecoder>(int64_t{1} << 61), rows);
  EXPECT_EQ(DecodingBytes(input, ImageSpec(), 2), size_t{1} << 62);
}

}  // namespace
}  // namespace braid
