#include "server/devices/work_share.h"

#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace braid {
namespace {

constexpr absl::Duration kTime = absl::Milliseconds(3);

TEST(WorkShareTest, ChoosesBatchesFirst) {
  const WorkShare share(0.25);
  EXPECT_EQ(share.Choose(), WorkKind::kBatch);
}

TEST(WorkShareTest, ChoosesATaskThatWaitedForABatch) {
  WorkShare share(0.25);
  share.RecordBatch(kTime, /*task_waited=*/true);
  EXPECT_EQ(share.Choose(), WorkKind::kTask);
}

TEST(WorkShareTest, WithoutAShareTasksRunOnlyWhenIdle) {
  WorkShare share(0);
  share.RecordBatch(kTime, /*task_waited=*/true);
  EXPECT_EQ(share.Choose(), WorkKind::kBatch);
}

TEST(WorkShareTest, TasksGetTheirShareWhileBothWait) {
  for (const double part : {0.1, 0.25, 0.5, 0.9}) {
    WorkShare share(part);
    absl::Duration tasks;
    absl::Duration batches;
    for (int i = 0; i < 10000; ++i) {
      if (share.Choose() == WorkKind::kTask) {
        share.RecordTask(kTime, /*by_credit=*/true);
        tasks += kTime;
      } else {
        share.RecordBatch(kTime, /*task_waited=*/true);
        batches += kTime;
      }
    }
    EXPECT_NEAR(absl::FDivDuration(tasks, tasks + batches), part, 0.002) << part;
  }
}

TEST(WorkShareTest, ALongTaskUsesItsCreditUp) {
  WorkShare share(0.5);
  share.RecordBatch(kTime, /*task_waited=*/true);
  share.RecordTask(3 * kTime, /*by_credit=*/true);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(share.Choose(), WorkKind::kBatch);
    share.RecordBatch(kTime, /*task_waited=*/true);
  }
  EXPECT_EQ(share.Choose(), WorkKind::kBatch);
  share.RecordBatch(kTime, /*task_waited=*/true);
  EXPECT_EQ(share.Choose(), WorkKind::kTask);
}

TEST(WorkShareTest, EarnsNoCreditWhileOnlyOneKindWaits) {
  WorkShare share(0.5);
  share.RecordBatch(kTime, /*task_waited=*/true);
  share.RecordBatch(kTime, /*task_waited=*/false);
  EXPECT_EQ(share.Choose(), WorkKind::kBatch);

  // A task that ran because there was no batch leaves no debt.
  share.RecordTask(100 * kTime, /*by_credit=*/false);
  share.RecordBatch(kTime, /*task_waited=*/true);
  EXPECT_EQ(share.Choose(), WorkKind::kTask);
}

}  // namespace
}  // namespace braid
