// Every metric that is counted where it happens: name, labels, help, buckets.
//
// For server/telemetry alone: the rest of the server counts through Metrics, ModelMetrics,
// TrainerMetrics and DeviceMetrics.
#pragma once

#include <cstdint>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "server/telemetry/series.h"

namespace braid {

struct MetricTable {
  // 50 µs, a small reply over loopback, to 5 minutes.
  static Histograms::Buckets Seconds();
  static Histograms::Buckets Rows();
  static Histograms::Buckets Ratios();

  // First member: the families are made in it.
  SeriesTable table;

  Counters requests{&table,
                    MetricGroup::kRequests,
                    "braid_requests_total",
                    {"method", "model", "code"},
                    "RPCs that ended, by gRPC status code; of ModelStreamInfer each request of a "
                    "stream; model: empty where the call names none that is served, directly or "
                    "through its trainer. Calls that gRPC itself refuses, as for a message that "
                    "is too large, do not reach it."};
  Histograms request_duration{
      &table,
      MetricGroup::kRequests,
      "braid_request_duration_seconds",
      {"method", "model"},
      "Time from the arrival of what braid_requests_total counts to its reply.",
      Seconds()};
  Counters denied{&table,
                  MetricGroup::kRequests,
                  "braid_access_denied_total",
                  {"reason"},
                  "Calls that were refused: no_credentials, bad_credentials, or a role that does "
                  "not allow them."};
  Gauges queue_rows{&table,
                    MetricGroup::kInference,
                    "braid_queue_rows",
                    {"model"},
                    "Rows that wait in a model's inference queue."};
  Histograms queue_duration{&table,
                            MetricGroup::kInference,
                            "braid_queue_duration_seconds",
                            {"model"},
                            "Time from a request's arrival until a worker takes the first of its "
                            "rows.",
                            Seconds()};
  Histograms batch_size{&table,
                        MetricGroup::kInference,
                        "braid_batch_size_rows",
                        {"model"},
                        "Rows of the inference batches that were run.",
                        Rows()};
  Counters samples{&table,
                   MetricGroup::kInference,
                   "braid_inference_samples_total",
                   {"model"},
                   "Rows that went through inference."};

  Counters busy{&table,
                MetricGroup::kDevices,
                "braid_device_busy_seconds_total",
                {"device", "phase"},
                "Time that a device's worker spent working: load, copy_in, forward, loss, "
                "backward, reduce, update, broadcast or copy_out."};
  Counters device_samples{&table,
                          MetricGroup::kDevices,
                          "braid_device_samples_total",
                          {"device", "work"},
                          "Rows that went through a forward pass on a device: inference, or "
                          "training, which is all that trainers do."};
  Histograms chunk_size{&table,
                        MetricGroup::kDevices,
                        "braid_device_chunk_size_rows",
                        {"device", "work"},
                        "Rows of a forward pass on a device: inference or training.",
                        Rows()};

  Histograms device_queue{&table,
                          MetricGroup::kDevices,
                          "braid_device_queue_duration_seconds",
                          {"device", "work"},
                          "Time that work waited for a device: an inference batch, since the "
                          "oldest of its requests came; a training operation, or a run of a "
                          "warm-up, until its turn.",
                          Seconds()};

  Counters steps{
      &table, MetricGroup::kTraining, "braid_training_steps_total", {"trainer"}, "Updates made."};
  Counters training_samples{&table,
                            MetricGroup::kTraining,
                            "braid_training_samples_total",
                            {"trainer"},
                            "Rows that a training loss was computed over."};
  Histograms step_duration{&table,
                           MetricGroup::kTraining,
                           "braid_training_step_duration_seconds",
                           {"trainer"},
                           "Time that the operations of an update took, all that followed the "
                           "update before, without what they waited for the client.",
                           Seconds()};
  Counters phases{&table,
                  MetricGroup::kTraining,
                  "braid_training_phase_seconds_total",
                  {"trainer", "phase"},
                  "Time that a trainer's operations spent in a phase, of all its workers the one "
                  "that took longest: copy_in, forward, loss, backward, reduce, update, broadcast "
                  "or copy_out."};
  Gauges loss{&table,
              MetricGroup::kTraining,
              "braid_training_loss",
              {"trainer"},
              "The loss that was computed last."};
  Gauges learning_rate{&table,
                       MetricGroup::kTraining,
                       "braid_training_learning_rate",
                       {"trainer"},
                       "Learning rate of the first parameter group: the last update's, and before "
                       "there is one the next update's."};
  Gauges gradient_norm{&table,
                       MetricGroup::kTraining,
                       "braid_training_gradient_norm",
                       {"trainer"},
                       "Norm of the last update's gradients before clipping; there only where "
                       "they are clipped by their norm, which measures it: max_norm may be one "
                       "that none reaches."};
  Counters replayed{&table,
                    MetricGroup::kTraining,
                    "braid_training_replayed_steps_total",
                    {"trainer"},
                    "Operations that were sent again and answered from the record of the first "
                    "time."};
  Counters skipped{&table,
                   MetricGroup::kTraining,
                   "braid_training_skipped_steps_total",
                   {"trainer"},
                   "Operations whose loss or gradients were not finite, and that changed no "
                   "parameter."};
  Histograms imbalance{&table,
                       MetricGroup::kTraining,
                       "braid_replica_imbalance_ratio",
                       {"trainer"},
                       "1 - mean / maximum of the time that each of a trainer's workers spent on "
                       "forward and backward in an operation: 0 where all took as long. Of "
                       "trainers with several workers.",
                       Ratios()};
  Counters checkpoints{&table,
                       MetricGroup::kTraining,
                       "braid_checkpoints_total",
                       {"trainer", "outcome"},
                       "Checkpoints that were written, or failed."};
  Histograms checkpoint_duration{&table,
                                 MetricGroup::kTraining,
                                 "braid_checkpoint_duration_seconds",
                                 {"trainer"},
                                 "Time from a checkpoint's begin until it was durable.",
                                 Seconds()};
  Histograms checkpoint_pause{&table,
                              MetricGroup::kTraining,
                              "braid_checkpoint_pause_seconds",
                              {"trainer"},
                              "Time for which a trainer's operations waited while its state was "
                              "copied.",
                              Seconds()};
  Gauges last_checkpoint{&table,
                         MetricGroup::kTraining,
                         "braid_checkpoint_last_written_timestamp_seconds",
                         {"trainer"},
                         "When a trainer's newest checkpoint was written, in Unix time."};

  // How many have to do with a model or a trainer, by its name: its series are there as long as one
  // is.
  absl::Mutex mu;
  absl::flat_hash_map<std::string, int64_t> models ABSL_GUARDED_BY(mu);
  absl::flat_hash_map<std::string, int64_t> trainers ABSL_GUARDED_BY(mu);
};

}  // namespace braid
