#include "server/base/local_address.h"

#include "gtest/gtest.h"

namespace braid {
namespace {

TEST(LocalAddressTest, RecognizesLoopbackAddresses) {
  for (const char* host :
       {"127.0.0.1", "127.9.9.9", "localhost", "::1", "[::1]", "[::ffff:127.0.0.1]"}) {
    EXPECT_TRUE(IsLoopback(host)) << host;
  }
}

TEST(LocalAddressTest, RecognizesOtherAddresses) {
  for (const char* host : {"0.0.0.0", "::", "[::]", "10.0.0.1", "128.0.0.1", "[fe80::1]",
                           "[::ffff:10.0.0.1]", "no.such.host.invalid", "999.1.1.1"}) {
    EXPECT_FALSE(IsLoopback(host)) << host;
  }
}

}  // namespace
}  // namespace braid
