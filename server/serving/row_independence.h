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
  // Replacing other rows by similar ones changes a row by a few percent of its column's largest
  // value at most, as with dynamic quantization, which has one scale for the batch.
  bool approximate = false;
  // The evidence for kDependent, or why nothing can be said. Empty for kProven.
  std::string reason = {};
  // An output without dimensions is one number for all rows.
  bool one_number = false;
  // Integers without a range were tested with 0 and 1 only, so mixing that needs larger numbers may
  // have gone unnoticed.
  bool narrow_integers = false;
};

// Runs `replica`, which is batched, on random inputs of at most four rows, at most eight times, and
// compares rows of its outputs:
//  - in batches of one size, a row's output must not change when other rows change: to small and
//    large numbers, and to NaN;
//  - a row alone must give, within rounding error, what it gives in batches of other sizes.
//
// Integers stay in the inputs' ranges. INT32 and INT64 without a range are 0 and 1. Inputs of any
// size are short. Random numbers that the model draws follow from a seed. The replica's buffers are
// what they were. Each run is a task of `worker`, so batches of other models run in between.
// Blocks; not to be called by a worker.
//
// FAILED_PRECONDITION if outputs are not what `config` says. UNAVAILABLE if the device is lost.
absl::StatusOr<RowTest> TestRowIndependence(const ModelConfig& config, Worker& worker,
                                            Replica& replica);

}  // namespace braid
