#include "server/parallel/replica_bytes.h"

#include "ATen/ATen.h"
#include "gtest/gtest.h"
#include "tests/fakes/puppet_replica.h"

namespace braid {
namespace {

TEST(ReplicaBytesTest, CountsSharedStorageOnce) {
  const at::Tensor tied = at::zeros({4, 3});
  const PuppetReplica replica(
      nullptr, {{"encoder", tied}, {"decoder", tied.t()}, {"bias", at::zeros({5}, at::kDouble)}});
  EXPECT_EQ(BytesOf(replica), 4 * 3 * 4 + 5 * 8);
}

TEST(ReplicaBytesTest, IsZeroWithoutTensors) { EXPECT_EQ(BytesOf(PuppetReplica(nullptr)), 0); }

}  // namespace
}  // namespace braid
