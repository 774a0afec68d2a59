// A stored trainer, brought back to work.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/training/trainer/trainer_registry.h"
#include "server/training/trainer/trainer_storage.h"
#include "server/training/trainer_spec.h"

namespace braid {

// `stored`, created as `spec` says, with what `checkpoint` holds, the newest for an empty name.
// Blocks. NOT_FOUND if there is no such checkpoint or the model is not served, DATA_LOSS if what is
// on the disk cannot be read.
absl::StatusOr<std::shared_ptr<Trainer>> RestoreTrainer(const StoredTrainer& stored,
                                                        TrainerSpec spec,
                                                        const std::string& checkpoint,
                                                        const TrainerStorage& storage,
                                                        const TrainerServices& services);

}  // namespace braid
