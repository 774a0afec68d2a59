#include "server/rpc/inference/tensor_codec.h"

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "gtest/gtest.h"
#include "server/rpc/status.h"
#include "tests/fakes/fake_decoder.h"
#include "tests/fakes/host_tensors.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();

template <typename Message>
void SetHeader(Message* message, const std::string& type, const std::vector<int64_t>& shape) {
  message->set_name("x");
  message->set_datatype(type);
  message->mutable_shape()->Assign(shape.begin(), shape.end());
}

// A request with one raw input, named x.
inference::ModelInferRequest Raw(const std::string& type, const std::vector<int64_t>& shape,
                                 size_t bytes) {
  inference::ModelInferRequest request;
  SetHeader(request.add_inputs(), type, shape);
  request.add_raw_input_contents(std::string(bytes, '\1'));
  return request;
}

TEST(ReadInputsTest, ReadsEveryDatatypeWithoutACopy) {
  for (const absl::string_view name : absl::StrSplit(AllDataTypeNames(), ", ")) {
    const size_t bytes = 6 * DataTypeSize(*DataTypeFromName(name));
    const inference::ModelInferRequest request = Raw(std::string(name), {2, 3}, bytes);
    BRAID_ASSERT_OK_AND_ASSIGN(const auto tensors, ReadInputs(request));
    ASSERT_EQ(tensors.size(), 1);
    EXPECT_EQ(tensors[0].name, "x");
    EXPECT_EQ(DataTypeName(tensors[0].type), name);
    EXPECT_THAT(tensors[0].shape, ElementsAre(2, 3));
    EXPECT_EQ(tensors[0].data, request.raw_input_contents(0).data());
    EXPECT_EQ(tensors[0].bytes, bytes);
  }
}

TEST(ReadInputsTest, AcceptsScalarAndEmptyShapes) {
  EXPECT_THAT(ReadInputs(Raw("FP32", {}, 4)), IsOk());
  EXPECT_THAT(ReadInputs(Raw("FP32", {0, 3}, 0)), IsOk());
  EXPECT_THAT(ReadInputs(inference::ModelInferRequest()), IsOk());
}

TEST(ReadInputsTest, RejectsUnknownDatatypes) {
  for (const char* type : {"", "BYTES", "float32"}) {
    EXPECT_THAT(ReadInputs(Raw(type, {1}, 4)),
                RefusesField("inputs[0].datatype", AllOf(HasSubstr(absl::StrCat("'", type, "'")),
                                                         HasSubstr("BOOL, UINT8"))));
  }
}

// Inputs of a model that decodes "x" and not "z".
std::vector<TensorSpec> DecodedSpecs() {
  std::vector<TensorSpec> specs = {{"x", DataType::kUint8, {2}}, {"z", DataType::kUint8, {2}}};
  specs[0].decoder = std::make_shared<FakeDecoder>(2);
  return specs;
}

// A request with the BYTES input x, of the elements "ab" and "c".
inference::ModelInferRequest Encoded(const std::vector<int64_t>& shape) {
  inference::ModelInferRequest request;
  SetHeader(request.add_inputs(), "BYTES", shape);
  request.add_raw_input_contents(std::string("\2\0\0\0ab\1\0\0\0c", 11));
  return request;
}

TEST(ReadInputsTest, BytesOfADecodedInputBecomeRows) {
  const std::vector<TensorSpec> specs = DecodedSpecs();
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{2}, {2, 1}}) {
    const inference::ModelInferRequest request = Encoded(shape);
    EncodedInputs encoded{specs};
    BRAID_ASSERT_OK_AND_ASSIGN(const auto tensors, ReadInputs(request, nullptr, nullptr, &encoded));
    EXPECT_TRUE(tensors.empty());
    ASSERT_EQ(encoded.inputs.size(), 1);
    EXPECT_THAT(encoded.positions, ElementsAre(0));
    EXPECT_EQ(encoded.inputs[0].name, "x");
    EXPECT_EQ(encoded.inputs[0].decoder, specs[0].decoder);
    ASSERT_EQ(encoded.inputs[0].rows.size(), 2);
    EXPECT_EQ(encoded.inputs[0].rows[1].bytes, "c");
    EXPECT_EQ(encoded.inputs[0].rows[1].row, 1);
  }
}

TEST(ReadInputsTest, ReadsTypedBytes) {
  const std::vector<TensorSpec> specs = DecodedSpecs();
  inference::ModelInferRequest request;
  SetHeader(request.add_inputs(), "BYTES", {1});
  request.mutable_inputs(0)->mutable_contents()->add_bytes_contents("ab");
  EncodedInputs encoded{specs};
  ASSERT_THAT(ReadInputs(request, nullptr, nullptr, &encoded), IsOk());
  EXPECT_EQ(encoded.inputs[0].rows[0].bytes, "ab");
}

TEST(ReadInputsTest, ADecodedInputMayBeATensor) {
  const std::vector<TensorSpec> specs = DecodedSpecs();
  EncodedInputs encoded{specs};
  const inference::ModelInferRequest request = Raw("UINT8", {2, 2}, 4);
  BRAID_ASSERT_OK_AND_ASSIGN(const auto tensors, ReadInputs(request, nullptr, nullptr, &encoded));
  EXPECT_EQ(tensors.size(), 1);
  EXPECT_TRUE(encoded.inputs.empty());
}

TEST(ReadInputsTest, RejectsBytesOfOtherInputsAndShapes) {
  const std::vector<TensorSpec> specs = DecodedSpecs();
  EncodedInputs encoded{specs};
  for (const std::vector<int64_t>& shape :
       std::vector<std::vector<int64_t>>{{}, {0}, {-1}, {1, 2}, {2, 1, 1}}) {
    EXPECT_THAT(ReadInputs(Encoded(shape), nullptr, nullptr, &encoded),
                RefusesField("inputs[0].shape", HasSubstr(ShapeString(shape))));
  }
  EXPECT_THAT(ReadInputs(Encoded({kHuge}), nullptr, nullptr, &encoded),
              RefusesField("raw_input_contents[0]", HasSubstr("has 2 elements")));
  inference::ModelInferRequest other = Encoded({2});
  other.mutable_inputs(0)->set_name("z");
  EXPECT_THAT(ReadInputs(other, nullptr, nullptr, &encoded),
              RefusesField("inputs[0].datatype", HasSubstr("parameters[\"decode.<input>\"]")));
  other.set_model_name("net");
  other.mutable_inputs(0)->set_name("image");
  EXPECT_THAT(ReadInputs(other, nullptr, nullptr, &encoded),
              RefusesField("inputs[0].name",
                           HasSubstr("model 'net' has no input 'image' (expected 'x', 'z')")));
}

TEST(ReadInputsTest, RejectsInvalidShapes) {
  for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{
           {-1}, {kHuge}, {kHuge, kHuge}, {int64_t{1} << 32, int64_t{1} << 32}, {0, -5}}) {
    EXPECT_THAT(ReadInputs(Raw("FP32", shape, 4)),
                RefusesField("inputs[0].shape", HasSubstr(ShapeString(shape))));
  }
  EXPECT_THAT(ReadInputs(Raw("FP32", std::vector<int64_t>(65, 1), 4)),
              RefusesField("inputs[0].shape", HasSubstr("65 dimensions")));
}

TEST(ReadInputsTest, RejectsWrongByteCounts) {
  for (const size_t bytes : {0, 23, 25}) {
    EXPECT_THAT(ReadInputs(Raw("FP32", {2, 3}, bytes)),
                RefusesField("raw_input_contents[0]",
                             AllOf(HasSubstr(absl::StrCat("has ", bytes, " bytes for 'x'")),
                                   HasSubstr("expected 24 for FP32 [2, 3]"))));
  }
}

TEST(ReadInputsTest, RequiresRawContentsForAllInputsOrNone) {
  inference::ModelInferRequest request = Raw("FP32", {1}, 4);
  request.add_raw_input_contents("");
  EXPECT_THAT(ReadInputs(request),
              RefusesField("raw_input_contents", HasSubstr("2 entries for 1 inputs")));
  request = Raw("FP32", {1}, 4);
  request.mutable_inputs(0)->mutable_contents()->add_fp32_contents(1);
  EXPECT_THAT(ReadInputs(request),
              RefusesField("inputs[0].contents", HasSubstr("when using raw_input_contents")));
}

TEST(ReadInputsTest, RejectsLongNames) {
  inference::ModelInferRequest request = Raw("FP32", {1}, 4);
  request.mutable_inputs(0)->set_name(std::string(1025, 'x'));
  EXPECT_THAT(ReadInputs(request), RefusesField("inputs[0].name", HasSubstr("1025 bytes")));
}

TEST(ReadInputsTest, ErrorsAreValidUtf8) {
  for (size_t before = 56; before < 66; ++before) {  // what is quoted is cut somewhere there
    const absl::Status status = ReadInputs(Raw(std::string(before, 'x') + "€€", {1}, 4)).status();
    google::rpc::Status details;
    google::rpc::BadRequest bad_request;
    ASSERT_TRUE(details.ParseFromString(ToGrpcStatus(status).error_details())) << before;
    EXPECT_TRUE(details.details(0).UnpackTo(&bad_request)) << before;
  }
}

TEST(ReadTensorsTest, ReadsWhatWriteTensorWrote) {
  const HostTensor tensor = MakeHost<double>("x", {2, 1}, {1.5, -2});
  google::protobuf::RepeatedPtrField<braid::v1::Tensor> messages;
  WriteTensor(tensor, messages.Add());
  BRAID_ASSERT_OK_AND_ASSIGN(const auto read, ReadTensors(messages, "inputs"));
  ASSERT_EQ(read.size(), 1);
  EXPECT_EQ(read[0].name, "x");
  EXPECT_EQ(read[0].type, DataType::kFp64);
  EXPECT_THAT(read[0].shape, ElementsAre(2, 1));
  EXPECT_THAT(ValuesOf<double>(read[0]), ElementsAre(1.5, -2));
  EXPECT_EQ(read[0].data, messages.Get(0).data().data());
}

TEST(ReadTensorsTest, ErrorsNameTheElement) {
  google::protobuf::RepeatedPtrField<braid::v1::Tensor> messages;
  WriteTensor(MakeRows("a", 2, 0), messages.Add());
  WriteTensor(MakeRows("x", 2, 0), messages.Add());
  messages.Mutable(1)->mutable_data()->pop_back();
  EXPECT_THAT(ReadTensors(messages, "targets"),
              RefusesField("targets[1].data", HasSubstr("has 7 bytes for 'x'")));
  messages.Mutable(0)->set_datatype("FP8");
  EXPECT_THAT(ReadTensors(messages, "targets"),
              RefusesField("targets[0].datatype", HasSubstr("'FP8'")));
  messages.Mutable(0)->set_datatype("FP32");
  messages.Mutable(0)->set_shape(0, -2);
  EXPECT_THAT(ReadTensors(messages, "targets"),
              RefusesField("targets[0].shape", HasSubstr("[-2, 1]")));
}

TEST(WriteOutputTest, WritesRawContents) {
  inference::ModelInferResponse response;
  const HostTensor one = MakeHost<int64_t>("y", {1}, {1});
  const HostTensor two = MakeHost<int64_t>("y", {1}, {2});
  WriteOutput({"y", DataType::kInt64, {2}, 16, {one, two}}, &response);
  WriteOutput({"z", DataType::kFp32, {}, 4, {MakeHost<float>("z", {}, {0.5})}}, &response);
  ASSERT_EQ(response.outputs_size(), 2);
  EXPECT_EQ(response.outputs(0).name(), "y");
  EXPECT_EQ(response.outputs(0).datatype(), "INT64");
  EXPECT_THAT(response.outputs(0).shape(), ElementsAre(2));
  EXPECT_EQ(response.raw_output_contents(0), std::string("\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0", 16));
  EXPECT_EQ(response.raw_output_contents(1).size(), 4);
}

}  // namespace
}  // namespace braid
