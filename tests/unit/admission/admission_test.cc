#include "server/admission/admission.h"

#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(AdmissionTest, LimitsRequestsInFlight) {
  Admission admission({.requests = 2, .bytes = 100});
  BRAID_ASSERT_OK_AND_ASSIGN(const Ticket first, admission.Admit(1));
  {
    BRAID_ASSERT_OK_AND_ASSIGN(const Ticket second, admission.Admit(1));
    EXPECT_THAT(admission.Admit(1),
                StatusIs(absl::StatusCode::kResourceExhausted,
                         AllOf(HasSubstr("2 requests"), HasSubstr("--max_requests"))));
    EXPECT_EQ(admission.in_flight(), 2);
  }
  EXPECT_EQ(admission.in_flight(), 1);
  EXPECT_THAT(admission.Admit(1), IsOk());
}

TEST(AdmissionTest, AClosedGateRejectsRequests) {
  Admission admission({.requests = 1, .bytes = 100});
  EXPECT_THAT(admission.CheckOpen(), IsOk());
  admission.Close("does something else");
  EXPECT_THAT(admission.Admit(1), StatusIs(absl::StatusCode::kUnavailable,
                                           HasSubstr("the server does something else")));
  EXPECT_THAT(admission.CheckOpen(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("server")));
  admission.Open();
  EXPECT_THAT(admission.CheckOpen(), IsOk());
  EXPECT_THAT(admission.Admit(1), IsOk());
}

TEST(AdmissionTest, LimitsBytesInFlight) {
  Admission admission({.requests = 10, .bytes = 100});
  BRAID_ASSERT_OK_AND_ASSIGN(const Ticket first, admission.Admit(60));
  EXPECT_THAT(admission.Admit(41),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("41 bytes"), HasSubstr("--max_request_bytes"))));
  EXPECT_THAT(admission.Admit(40), IsOk());
}

TEST(AdmissionTest, AdmitsAnOversizedRequestAlone) {
  Admission admission({.requests = 10, .bytes = 100});
  BRAID_ASSERT_OK_AND_ASSIGN(const Ticket large, admission.Admit(1000));
  EXPECT_EQ(StatusOf(admission.Admit(0)).code(), absl::StatusCode::kResourceExhausted);
}

TEST(AdmissionTest, ATicketGrowsWithinTheLimits) {
  Admission admission({.requests = 10, .bytes = 100, .client_bytes = 70});
  {
    BRAID_ASSERT_OK_AND_ASSIGN(Ticket first, admission.Admit(20, "a"));
    BRAID_ASSERT_OK_AND_ASSIGN(const Ticket of_client, admission.Admit(20, "a"));
    EXPECT_THAT(first.Add(31), StatusIs(absl::StatusCode::kResourceExhausted,
                                        HasSubstr("--max_client_request_bytes")));
    EXPECT_THAT(first.Add(30), IsOk());
    BRAID_ASSERT_OK_AND_ASSIGN(Ticket other, admission.Admit(20, "b"));
    EXPECT_THAT(other.Add(11),
                StatusIs(absl::StatusCode::kResourceExhausted,
                         AllOf(HasSubstr("11 bytes"), HasSubstr("--max_request_bytes"))));
    EXPECT_EQ(admission.bytes_in_flight(), 90);
  }
  EXPECT_EQ(admission.bytes_in_flight(), 0);
}

TEST(AdmissionTest, ATicketDoesNotGrowByMoreThanTheLimit) {
  Admission admission({.requests = 10, .bytes = 100});
  BRAID_ASSERT_OK_AND_ASSIGN(Ticket alone, admission.Admit(50));
  EXPECT_THAT(alone.Add(101), StatusIs(absl::StatusCode::kResourceExhausted,
                                       HasSubstr("101 bytes (expected at most 100")));
  EXPECT_THAT(alone.Add(100), IsOk());  // as a large request may be admitted alone
}

TEST(AdmissionTest, LimitsRequestsPerClient) {
  Admission admission({.requests = 10, .bytes = 100, .client_requests = 2});
  EXPECT_TRUE(admission.limits_clients());
  BRAID_ASSERT_OK_AND_ASSIGN(Ticket first, admission.Admit(1, "ann"));
  BRAID_ASSERT_OK_AND_ASSIGN(const Ticket second, admission.Admit(1, "ann"));
  EXPECT_THAT(admission.Admit(1, "ann"),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("--max_client_requests")));
  EXPECT_EQ(admission.in_flight(), 2);
  EXPECT_THAT(admission.Admit(1, "bob"), IsOk());
  first.Release();
  BRAID_ASSERT_OK_AND_ASSIGN(const Ticket third, admission.Admit(1, "ann"));
  EXPECT_FALSE(admission.Admit(1, "ann").ok());
}

TEST(AdmissionTest, LimitsBytesPerClient) {
  Admission admission({.requests = 10, .bytes = 1000, .client_bytes = 100});
  EXPECT_TRUE(admission.limits_clients());
  BRAID_ASSERT_OK_AND_ASSIGN(Ticket first, admission.Admit(60, "ann"));
  EXPECT_THAT(
      admission.Admit(41, "ann"),
      StatusIs(absl::StatusCode::kResourceExhausted,
               AllOf(HasSubstr("41 bytes"), HasSubstr("100 (--max_client_request_bytes)"))));
  EXPECT_EQ(admission.bytes_in_flight(), 60);
  EXPECT_THAT(admission.Admit(100, "bob"), IsOk());
  EXPECT_THAT(admission.Admit(40, "ann"), IsOk());
  first.Release();
  EXPECT_THAT(admission.Admit(100, "ann"), IsOk());
}

TEST(AdmissionTest, AdmitsAnOversizedRequestOfAClientAlone) {
  Admission admission({.requests = 10, .bytes = 10000, .client_bytes = 100});
  BRAID_ASSERT_OK_AND_ASSIGN(const Ticket other, admission.Admit(1, "bob"));
  BRAID_ASSERT_OK_AND_ASSIGN(const Ticket large, admission.Admit(1000, "ann"));
  EXPECT_EQ(StatusOf(admission.Admit(1, "ann")).code(), absl::StatusCode::kResourceExhausted);
}

TEST(AdmissionTest, AMovedTicketCountsForItsClient) {
  Admission admission({.requests = 10, .bytes = 100, .client_requests = 1});
  Ticket kept;
  {
    BRAID_ASSERT_OK_AND_ASSIGN(Ticket ticket, admission.Admit(1, "ann"));
    kept = std::move(ticket);
  }
  EXPECT_FALSE(admission.Admit(1, "ann").ok());
  kept = Ticket();
  EXPECT_THAT(admission.Admit(1, "ann"), IsOk());
}

TEST(AdmissionTest, ARejectedRequestIsNotCounted) {
  Admission admission({.requests = 1, .bytes = 100});
  {
    BRAID_ASSERT_OK_AND_ASSIGN(const Ticket first, admission.Admit(0));
    EXPECT_FALSE(admission.Admit(0).ok());
  }
  EXPECT_EQ(admission.in_flight(), 0);
}

TEST(AdmissionTest, AMovedTicketIsReleasedOnce) {
  Admission admission({.requests = 10, .bytes = 100});
  {
    BRAID_ASSERT_OK_AND_ASSIGN(Ticket first, admission.Admit(60));
    Ticket moved = std::move(first);
    Ticket assigned;
    assigned = std::move(moved);
    EXPECT_EQ(admission.in_flight(), 1);
  }
  EXPECT_EQ(admission.in_flight(), 0);
  BRAID_ASSERT_OK_AND_ASSIGN(const Ticket other, admission.Admit(1));
  EXPECT_THAT(admission.Admit(99), IsOk());  // the bytes came back too
}

TEST(AdmissionTest, ClosingKeepsRequestsInFlight) {
  Admission admission({.requests = 10, .bytes = 100});
  BRAID_ASSERT_OK_AND_ASSIGN(const Ticket before, admission.Admit(1));
  admission.Close();
  EXPECT_THAT(admission.Admit(1),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("shutting down")));
  EXPECT_EQ(admission.in_flight(), 1);
}

TEST(AdmissionTest, WaitUntilIdleWaitsForTheLastTicket) {
  Admission admission({.requests = 10, .bytes = 100});
  EXPECT_TRUE(admission.WaitUntilIdle(absl::ZeroDuration()));
  auto ticket = admission.Admit(1);
  ASSERT_THAT(ticket, IsOk());
  EXPECT_FALSE(admission.WaitUntilIdle(absl::ZeroDuration()));
  std::thread holder([last = *std::move(ticket)] {});
  EXPECT_TRUE(admission.WaitUntilIdle(absl::InfiniteDuration()));
  holder.join();
}

TEST(AdmissionTest, ThreadsNeverExceedTheLimit) {
  Admission admission({.requests = 3, .bytes = 1000});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&admission] {
      for (int i = 0; i < 1000; ++i) {
        const absl::StatusOr<Ticket> ticket = admission.Admit(1);
        EXPECT_LE(admission.in_flight(), 3);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(admission.in_flight(), 0);
}

TEST(AdmissionTest, AReleasedTicketIsUnrepliedUntilDestroyed) {
  Admission admission({.requests = 1, .bytes = 100});
  {
    BRAID_ASSERT_OK_AND_ASSIGN(Ticket first, admission.Admit(100));
    EXPECT_TRUE(admission.WaitUntilReplied(absl::ZeroDuration()));
    first.Release();
    first.Release();  // again is fine
    EXPECT_EQ(admission.in_flight(), 0);
    EXPECT_TRUE(admission.WaitUntilIdle(absl::ZeroDuration()));
    EXPECT_FALSE(admission.WaitUntilReplied(absl::ZeroDuration()));
    EXPECT_THAT(admission.Admit(100), IsOk());
  }
  EXPECT_EQ(admission.in_flight(), 0);
  EXPECT_TRUE(admission.WaitUntilReplied(absl::ZeroDuration()));
}

}  // namespace
}  // namespace braid
