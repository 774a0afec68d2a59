// Table of the metrics that are updated by events: names, labels, help texts and buckets. Used only
// in server/telemetry; other code uses Metrics, ModelMetrics, TrainerMetrics, DeviceMetrics and
// JobMetrics.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/metric_family.h"
#include "prometheus/registry.h"
#include "server/telemetry/description.h"

namespace braid {

// Registry of the metrics of one table, and their descriptions.
struct SeriesTable {
  std::shared_ptr<prometheus::Registry> registry = std::make_shared<prometheus::Registry>();
  // In the order of registration.
  std::vector<MetricDescription> descriptions = {};
};

// Caches the series of a prometheus::Family, whose Add() is too slow for the request path: it
// allocates and hashes a map on each call. Thread-safe.
template <typename T>
class Series {
 public:
  using Buckets = prometheus::Histogram::BucketBoundaries;

  // `buckets` is for histograms.
  Series(SeriesTable* table, MetricGroup group, const char* name, std::vector<std::string> labels,
         const char* help, Buckets buckets = {})
      : labels_(std::move(labels)),
        buckets_(std::move(buckets)),
        family_(Build().Name(name).Help(help).Register(*table->registry)) {
    table->descriptions.push_back({group, name, T::metric_type, labels_, help});
  }

  // Returns the series with these label values, in the order of the labels. Creates it on first
  // use.
  T& At(std::initializer_list<absl::string_view> values) ABSL_LOCKS_EXCLUDED(mu_) {
    const std::string key = absl::StrJoin(values, "\n");  // values contain no newlines
    const absl::MutexLock lock(&mu_);
    auto [found, added] = series_.try_emplace(key);
    if (added) {
      found->second = Make(values);
    }
    return *found->second.series;
  }

  // Returns the current values of all series.
  std::vector<prometheus::MetricFamily> Collect() const { return family_.Collect(); }

  // Removes the series whose label `label` is `value`. They must not be used afterwards.
  void Drop(absl::string_view label, absl::string_view value) ABSL_LOCKS_EXCLUDED(mu_) {
    const absl::MutexLock lock(&mu_);
    absl::erase_if(series_, [&](const auto& entry) {
      const auto has = entry.second.labels.find(std::string(label));
      const bool drops = has != entry.second.labels.end() && has->second == value;
      if (drops) {
        family_.Remove(entry.second.series);
      }
      return drops;
    });
  }

 private:
  struct Entry {
    prometheus::Labels labels;
    T* series = nullptr;
  };

  static auto Build() {
    if constexpr (std::is_same_v<T, prometheus::Histogram>) {
      return prometheus::BuildHistogram();
    } else if constexpr (std::is_same_v<T, prometheus::Counter>) {
      return prometheus::BuildCounter();
    } else {
      return prometheus::BuildGauge();
    }
  }

  Entry Make(std::initializer_list<absl::string_view> values) {
    Entry entry;
    size_t label = 0;
    for (const absl::string_view value : values) {
      entry.labels[labels_[label++]] = std::string(value);
    }
    if constexpr (std::is_same_v<T, prometheus::Histogram>) {
      entry.series = &family_.Add(entry.labels, buckets_);
    } else {
      entry.series = &family_.Add(entry.labels);
    }
    return entry;
  }

  const std::vector<std::string> labels_;
  const Buckets buckets_;
  prometheus::Family<T>& family_;

  absl::Mutex mu_;
  absl::flat_hash_map<std::string, Entry> series_ ABSL_GUARDED_BY(mu_);
};

using Counters = Series<prometheus::Counter>;
using Gauges = Series<prometheus::Gauge>;
using Histograms = Series<prometheus::Histogram>;

struct MetricTable {
  // From 50 µs, a small request over loopback, to 5 minutes; steps of at most 28 % from 100 µs to
  // 10 s, which bounds the error of a quantile. 56 buckets.
  static Histograms::Buckets Latencies();
  static Histograms::Buckets Rows();
  static Histograms::Buckets Ratios();
  // From 0.1 s to 7 days, for jobs. 18 buckets.
  static Histograms::Buckets JobDurations();

  // First member: the others register their families in it.
  SeriesTable table;

  Counters requests{&table,
                    MetricGroup::kRequests,
                    "braid_requests_total",
                    {"method", "model", "code"},
                    "Completed RPCs by gRPC status code. Each request of a ModelStreamInfer "
                    "stream counts. model is empty unless the call, or its trainer, names a "
                    "served model. Calls that gRPC itself rejects, for example because a message "
                    "is too large, are not counted."};
  Histograms request_duration{
      &table,
      MetricGroup::kRequests,
      "braid_request_duration_seconds",
      {"method", "model"},
      "Time from the arrival of a request in braid_requests_total to its reply.",
      Latencies()};
  Counters denied{&table,
                  MetricGroup::kRequests,
                  "braid_access_denied_total",
                  {"reason"},
                  "Calls that were denied: no_credentials, bad_credentials or role (the role "
                  "does not permit the call)."};
  Counters dataset_uploads{&table,
                           MetricGroup::kData,
                           "braid_dataset_uploads_total",
                           {"result"},
                           "Uploads of datasets by result: stored, replaced (another dataset), "
                           "unchanged (an equal dataset existed) or failed. A broken stream that a "
                           "client can continue does not count."};
  Gauges queue_rows{&table,
                    MetricGroup::kInference,
                    "braid_queue_rows",
                    {"model"},
                    "Rows waiting in a model's inference queue."};
  Histograms queue_duration{&table,
                            MetricGroup::kInference,
                            "braid_queue_duration_seconds",
                            {"model"},
                            "Time from the arrival of a request until a worker takes its first "
                            "rows, without the time for decoding its inputs.",
                            Latencies()};
  Counters decoded_rows{&table,
                        MetricGroup::kInference,
                        "braid_decode_rows_total",
                        {"model"},
                        "Images and texts of requests that were decoded to tensors."};
  Counters decode_failures{&table,
                           MetricGroup::kInference,
                           "braid_decode_failures_total",
                           {"model"},
                           "Requests that failed because an image or text could not be decoded."};
  Counters decode_busy{&table,
                       MetricGroup::kInference,
                       "braid_decode_busy_seconds_total",
                       {"model"},
                       "Time that decode threads spent on images and texts of requests."};
  Histograms batch_size{&table,    MetricGroup::kInference,     "braid_batch_size_rows",
                        {"model"}, "Rows per inference batch.", Rows()};
  Counters samples{&table,
                   MetricGroup::kInference,
                   "braid_inference_samples_total",
                   {"model"},
                   "Rows inferred for requests."};
  Counters job_samples{&table,
                       MetricGroup::kInference,
                       "braid_job_samples_total",
                       {"model"},
                       "Rows inferred for jobs. The other metrics of this group do not count "
                       "jobs."};

  Gauges pending_versions{&table,
                          MetricGroup::kInference,
                          "braid_versions_pending",
                          {"model"},
                          "Published versions that are served and not durable yet."};
  Counters version_writes{&table,
                          MetricGroup::kInference,
                          "braid_version_writes_total",
                          {"model", "outcome"},
                          "Published versions by outcome: durable, superseded (replaced before it "
                          "was written, so not written) or failed (not written; it is served until "
                          "another version replaces it)."};
  Histograms version_write_duration{&table,
                                    MetricGroup::kInference,
                                    "braid_version_write_duration_seconds",
                                    {"model"},
                                    "Time from when a published version was served until it was "
                                    "durable.",
                                    Latencies()};

  Counters busy{&table,
                MetricGroup::kDevices,
                "braid_device_busy_seconds_total",
                {"device", "phase"},
                "Time that a device was busy in a phase: load, copy_in, forward, loss, backward, "
                "reduce, update, broadcast or copy_out."};
  Counters device_samples{&table,
                          MetricGroup::kDevices,
                          "braid_device_samples_total",
                          {"device", "work"},
                          "Rows of the forward passes on a device. work is inference, job for "
                          "inference jobs, or training for all work of trainers."};
  Histograms chunk_size{&table,
                        MetricGroup::kDevices,
                        "braid_device_chunk_size_rows",
                        {"device", "work"},
                        "Rows per forward pass on a device, for inference, jobs or training.",
                        Rows()};

  Histograms device_queue{&table,
                          MetricGroup::kDevices,
                          "braid_device_queue_duration_seconds",
                          {"device", "work"},
                          "Time that work waited for a device: an inference batch from the arrival "
                          "of its oldest request, a training operation or warm-up run from when it "
                          "was queued.",
                          Latencies()};

  Counters steps{
      &table, MetricGroup::kTraining, "braid_training_steps_total", {"trainer"}, "Updates."};
  Counters training_samples{&table,
                            MetricGroup::kTraining,
                            "braid_training_samples_total",
                            {"trainer"},
                            "Rows for which a training loss was computed."};
  Histograms step_duration{&table,
                           MetricGroup::kTraining,
                           "braid_training_step_duration_seconds",
                           {"trainer"},
                           "Time of all operations since the previous update, without the time "
                           "that the server waited for the client.",
                           Latencies()};
  Counters phases{&table,
                  MetricGroup::kTraining,
                  "braid_training_phase_seconds_total",
                  {"trainer", "phase"},
                  "Time of a trainer's operations in a phase, on the slowest of its workers: "
                  "copy_in, forward, loss, backward, reduce, update, broadcast or copy_out."};
  Gauges loss{&table, MetricGroup::kTraining, "braid_training_loss", {"trainer"}, "Latest loss."};
  Gauges learning_rate{&table,
                       MetricGroup::kTraining,
                       "braid_training_learning_rate",
                       {"trainer", "group"},
                       "Learning rate of a parameter group in the latest update; before the first "
                       "update, the one that it will use. group is the group's pattern, empty for "
                       "the parameters outside groups. Groups without parameters to update, such "
                       "as frozen ones, have no series."};
  Gauges gradient_norm{&table,
                       MetricGroup::kTraining,
                       "braid_training_gradient_norm",
                       {"trainer"},
                       "Norm of the gradients in the latest update before clipping. Present only "
                       "with clipping by norm; set a large max_norm to measure without clipping."};
  Counters replayed{&table,
                    MetricGroup::kTraining,
                    "braid_training_replayed_steps_total",
                    {"trainer"},
                    "Retried operations that were answered with the recorded reply."};
  Counters skipped{&table,
                   MetricGroup::kTraining,
                   "braid_training_skipped_steps_total",
                   {"trainer"},
                   "Operations that changed no parameter because the loss or a gradient was not "
                   "finite."};
  Histograms imbalance{&table,
                       MetricGroup::kTraining,
                       "braid_replica_imbalance_ratio",
                       {"trainer"},
                       "1 - mean / maximum over a trainer's workers of the time for forward and "
                       "backward of an operation; 0 if all took the same time. Only for trainers "
                       "with several workers.",
                       Ratios()};
  Counters checkpoints{&table,
                       MetricGroup::kTraining,
                       "braid_checkpoints_total",
                       {"trainer", "outcome"},
                       "Checkpoints by outcome: written or failed."};
  Histograms checkpoint_duration{&table,
                                 MetricGroup::kTraining,
                                 "braid_checkpoint_duration_seconds",
                                 {"trainer"},
                                 "Time from the start of a checkpoint until it was durable.",
                                 Latencies()};
  Histograms checkpoint_pause{&table,
                              MetricGroup::kTraining,
                              "braid_checkpoint_pause_seconds",
                              {"trainer"},
                              "Time that a trainer's operations waited while its state was copied "
                              "for a checkpoint.",
                              Latencies()};
  Gauges last_checkpoint{&table,
                         MetricGroup::kTraining,
                         "braid_checkpoint_last_written_timestamp_seconds",
                         {"trainer"},
                         "Unix time when a trainer's newest checkpoint was written."};
  Counters journal_bytes{&table,
                         MetricGroup::kTraining,
                         "braid_journal_written_bytes_total",
                         {"trainer"},
                         "Bytes written to a trainer's journal."};
  Gauges journal_size{&table,
                      MetricGroup::kTraining,
                      "braid_journal_bytes",
                      {"trainer"},
                      "Size of a trainer's journal on disk, including its history."};
  Histograms journal_wait{&table,
                          MetricGroup::kTraining,
                          "braid_journal_wait_seconds",
                          {"trainer"},
                          "Time that a reply waited for the journal after its operation had been "
                          "applied.",
                          Latencies()};
  Counters journal_errors{&table,
                          MetricGroup::kTraining,
                          "braid_journal_errors_total",
                          {"trainer"},
                          "Operations that failed because the journal could not be written."};

  Counters job_rows{&table,
                    MetricGroup::kJobs,
                    "braid_job_rows_total",
                    {"kind"},
                    "Rows that jobs have done, in training over all epochs. Rows that are repeated "
                    "after a crash count again."};
  Counters job_steps{&table,
                     MetricGroup::kJobs,
                     "braid_job_steps_total",
                     {},
                     "Training steps that jobs have done."};
  Histograms job_queue_duration{&table,
                                MetricGroup::kJobs,
                                "braid_job_queue_duration_seconds",
                                {"kind"},
                                "Time from the submission of a job, or its return to the queue, "
                                "until it started. Without time as a paused job.",
                                JobDurations()};
  Histograms job_duration{&table,
                          MetricGroup::kJobs,
                          "braid_job_duration_seconds",
                          {"kind", "state"},
                          "Time from the first start of a job until it ended, by state: succeeded, "
                          "failed or cancelled. With the time that it waited or was paused in "
                          "between. Jobs that never started are not counted.",
                          JobDurations()};
  Counters job_failures{&table,
                        MetricGroup::kJobs,
                        "braid_job_failures_total",
                        {"kind", "code"},
                        "Jobs that failed, by status code of the error. ABORTED: the server "
                        "crashed, or a device was lost, too often while the job ran."};
  Counters job_preemptions{&table,
                           MetricGroup::kJobs,
                           "braid_job_preemptions_total",
                           {"kind"},
                           "Running jobs that returned to the queue for a job of higher priority."};
  Counters job_pauses{
      &table, MetricGroup::kJobs, "braid_job_pauses_total", {"kind"}, "Jobs that became paused."};

  // Number of users of a model's or trainer's series, by name. The last user removes the series.
  absl::Mutex mu;
  absl::flat_hash_map<std::string, int64_t> models ABSL_GUARDED_BY(mu);
  absl::flat_hash_map<std::string, int64_t> trainers ABSL_GUARDED_BY(mu);
};

}  // namespace braid
