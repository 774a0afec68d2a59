#include "server/rpc/auth/audit_details.h"

#include <utility>

#include "braid/v1/data.pb.h"
#include "braid/v1/training.pb.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "inference/grpc_service.pb.h"
#include "server/rpc/auth/request_names.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

AuditDetails::value_type Detail(const char* name, AuditValue value) {
  return {name, std::move(value)};
}

TEST(AuditDetailsTest, ContainWhatTheRequestSets) {
  braid::v1::RollbackRequest rollback;
  rollback.set_version(3);
  EXPECT_THAT(DetailsOf(rollback, Subject::kModel), ElementsAre(Detail("version", 3)));
  braid::v1::RestoreCheckpointRequest restore;
  EXPECT_THAT(DetailsOf(restore, Subject::kTrainer), IsEmpty());
  restore.set_checkpoint("c");
  EXPECT_THAT(DetailsOf(restore, Subject::kTrainer), ElementsAre(Detail("checkpoint", "c")));
  restore.Clear();
  restore.set_step(0);
  EXPECT_THAT(DetailsOf(restore, Subject::kTrainer), ElementsAre(Detail("step", 0)));
  braid::v1::ForkTrainerRequest fork;
  fork.set_new_name("b");
  EXPECT_THAT(DetailsOf(fork, Subject::kTrainer), ElementsAre(Detail("new_name", "b")));
  braid::v1::CreateTrainerRequest create;
  create.set_name("t");
  EXPECT_THAT(DetailsOf(create, Subject::kModel), IsEmpty());
  create.set_version(2);
  EXPECT_THAT(DetailsOf(create, Subject::kModel), ElementsAre(Detail("version", 2)));
  inference::LogSettingsRequest log;
  EXPECT_THAT(DetailsOf(log, Subject::kServer), IsEmpty());
  (*log.mutable_settings())["log_level"].set_string_param("info");
  EXPECT_THAT(DetailsOf(log, Subject::kServer), ElementsAre(Detail("settings", "log_level=info")));
  braid::v1::PreviewDatasetRequest preview;
  preview.set_path("t.csv");
  EXPECT_THAT(DetailsOf(preview, Subject::kServer), ElementsAre(Detail("path", "t.csv")));
  braid::v1::DeleteDatasetRequest dataset;
  dataset.set_dataset("d");
  EXPECT_THAT(DetailsOf(dataset, Subject::kServer), ElementsAre(Detail("dataset", "d")));
  inference::SystemSharedMemoryRegisterRequest region;
  region.set_name("r");
  region.set_key("/k");
  EXPECT_THAT(DetailsOf(region, Subject::kServer),
              ElementsAre(Detail("region", "r"), Detail("key", "/k")));
}

TEST(RequestNamesTest, ContainOnlyModelsAndTrainers) {
  inference::SystemSharedMemoryRegisterRequest region;
  region.set_name("r");
  EXPECT_EQ(NamesIn(region, Subject::kServer).trainer, "");
  EXPECT_EQ(NamesIn(region, Subject::kServer).model, "");
  inference::ModelReadyRequest ready;
  ready.set_name("m");
  EXPECT_EQ(NamesIn(ready, Subject::kModel).model, "m");
  braid::v1::DeleteTrainerRequest remove;
  remove.set_name("t");
  EXPECT_EQ(NamesIn(remove, Subject::kTrainer).trainer, "t");
  EXPECT_EQ(NamesIn(remove, Subject::kTrainer).model, "");
}

TEST(RequestNamesTest, ATrainerWithoutANameGetsItsModels) {
  braid::v1::CreateTrainerRequest create;
  create.set_model("net");
  EXPECT_EQ(NamesIn(create, Subject::kModel).model, "net");
  EXPECT_EQ(NamesIn(create, Subject::kModel).trainer, "net");
  create.set_name("mine");
  EXPECT_EQ(NamesIn(create, Subject::kModel).model, "net");
  EXPECT_EQ(NamesIn(create, Subject::kModel).trainer, "mine");
}

}  // namespace
}  // namespace braid
