#include "server/rpc/training/fingerprint.h"

#include <functional>
#include <string>
#include <vector>

#include "braid/v1/training.pb.h"
#include "gtest/gtest.h"

namespace braid {
namespace {

using braid::v1::ForwardBackwardRequest;
using braid::v1::StepRequest;

StepRequest Request(size_t bytes) {
  StepRequest request;
  request.set_trainer("t");
  request.set_sequence(7);
  auto* input = request.add_inputs();
  input->set_name("x");
  input->set_datatype("UINT8");
  input->add_shape(static_cast<int64_t>(bytes));
  input->set_data(std::string(bytes, 'a'));
  return request;
}

TEST(FingerprintTest, IsEqualForEqualRequests) {
  for (const size_t bytes : {0, 10, 5'000'000}) {
    EXPECT_EQ(FingerprintOf(Request(bytes)), FingerprintOf(Request(bytes)));
  }
  StepRequest parsed;
  ASSERT_TRUE(parsed.ParseFromString(Request(10).SerializeAsString()));
  EXPECT_EQ(FingerprintOf(parsed), FingerprintOf(Request(10)));
}

TEST(FingerprintTest, DiffersForAnyFlippedByte) {
  constexpr size_t kBytes = 100'000;  // larger than the buffer that it goes through
  const Fingerprint original = FingerprintOf(Request(kBytes));
  for (const size_t at :
       {size_t{0}, size_t{1}, size_t{8191}, size_t{8192}, kBytes / 2, kBytes - 1}) {
    StepRequest request = Request(kBytes);
    (*request.mutable_inputs(0)->mutable_data())[at] ^= 1;
    EXPECT_NE(FingerprintOf(request), original) << at;
  }
}

TEST(FingerprintTest, DiffersForAnyChangedField) {
  const Fingerprint original = FingerprintOf(Request(10));
  const std::vector<std::function<void(StepRequest*)>> changes = {
      [](StepRequest* r) { r->set_sequence(8); },
      [](StepRequest* r) { r->set_trainer("u"); },
      [](StepRequest* r) { r->mutable_inputs(0)->set_name("y"); },
      [](StepRequest* r) { r->mutable_inputs(0)->set_datatype("INT8"); },
      [](StepRequest* r) { r->mutable_inputs(0)->set_shape(0, 5); },
      [](StepRequest* r) { r->mutable_inputs(0)->mutable_data()->pop_back(); },
      [](StepRequest* r) { *r->add_targets() = r->inputs(0); },
      [](StepRequest* r) { r->mutable_hyper_parameters()->set_lr(0); },
  };
  for (size_t c = 0; c < changes.size(); ++c) {
    StepRequest request = Request(10);
    changes[c](&request);
    EXPECT_NE(FingerprintOf(request), original) << c;
  }
}

TEST(FingerprintTest, DiffersBetweenTypesWithEqualBytes) {
  const StepRequest step = Request(10);
  ForwardBackwardRequest forward_backward;
  ASSERT_TRUE(forward_backward.ParseFromString(step.SerializeAsString()));
  ASSERT_EQ(forward_backward.SerializeAsString(), step.SerializeAsString());
  EXPECT_NE(FingerprintOf(forward_backward), FingerprintOf(step));
}

}  // namespace
}  // namespace braid
