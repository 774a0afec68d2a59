// Tests by values whether rows of a batch depend on each other.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "server/devices/worker.h"
#include "server/models/model_config.h"
#include "server/parallel/replica.h"

namespace braid {

struct RowTest {
  // kProven, kDependent or kUnproven.
  RowIndependence result = RowIndependence::kUnproven;
  // If other rows are replaced by similar ones, a row changes by at most a few percent of its
  // column's largest value. An example is dynamic quantization with one scale per batch.
  bool approximate = false;
  // Evidence for kDependent, or why kUnproven. Empty for kProven.
  std::string reason = {};
  // An output without dimensions is a single number for all rows.
  bool one_number = false;
  // Integers without a range were tested with 0 and 1 only, so mixing that needs larger numbers may
  // have gone unnoticed.
  bool narrow_integers = false;
};

// Runs `replica`, which must be batched, at most eight times on random inputs of at most four rows
// and compares rows of its outputs:
//  - In batches of one size, a row's output must not change if other rows change to small or large
//    numbers, or to NaN.
//  - A row's output must be equal, within rounding error, in batches of different sizes.
//
// Integers stay in the inputs' ranges; INT32 and INT64 without a range are 0 and 1. Dimensions of
// any size are small. The model's random numbers are seeded. The replica's buffers do not change.
// Each run is a task of `worker`, so batches of other models run in between. Blocks; must not be
// called by a worker.
//
// FAILED_PRECONDITION if the outputs contradict `config`. UNAVAILABLE if the device is lost.
absl::StatusOr<RowTest> TestRowIndependence(const ModelConfig& config, Worker& worker,
                                            Replica& replica);

}  // namespace braid
