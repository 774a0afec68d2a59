#include "server/telemetry/metrics.h"

#include <array>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"

namespace braid {
namespace {

using prometheus::Counter;
using prometheus::Family;
using prometheus::Gauge;
using prometheus::Histogram;
using Buckets = Histogram::BucketBoundaries;

// 100 µs to 10 s: a batch-1 reply over loopback to a long training step.
const Buckets kSeconds = {0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025,
                          0.05,   0.1,     0.25,   0.5,   1,      2.5,   5,    10};
const Buckets kRows = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096};

constexpr std::array<absl::string_view, kPhases> kPhaseNames = {
    "load", "copy_in", "forward", "loss", "backward", "reduce", "update", "broadcast", "copy_out"};

// The series of one family by the value of its labels: Family::Add() costs an allocation and a hash
// of a map at each call, which the request path cannot afford.
template <typename T>
class Cached {
 public:
  template <typename Make>
  T& Get(const std::string& key, Make make) {
    const absl::MutexLock lock(&mu_);
    auto [found, added] = series_.try_emplace(key, nullptr);
    if (added) {
      found->second = &make();
    }
    return *found->second;
  }

  // The series of `key`, no longer cached; nullptr if there is none.
  T* Forget(const std::string& key) {
    const absl::MutexLock lock(&mu_);
    const auto found = series_.find(key);
    if (found == series_.end()) {
      return nullptr;
    }
    T* series = found->second;
    series_.erase(found);
    return series;
  }

 private:
  absl::Mutex mu_;
  absl::flat_hash_map<std::string, T*> series_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

absl::string_view PhaseName(Phase phase) { return kPhaseNames[static_cast<size_t>(phase)]; }

struct Metrics::Families {
  template <typename T>
  using Builder = prometheus::detail::Builder<T>;
  template <typename T>
  Family<T>& Make(Builder<T> builder, const char* name, const char* help) {
    return builder.Name(name).Help(help).Register(*registry);
  }

  std::shared_ptr<prometheus::Registry> registry = std::make_shared<prometheus::Registry>();

  Family<Counter>& requests =
      Make(prometheus::BuildCounter(), "braid_requests_total", "RPCs that ended, by status code.");
  Family<Histogram>& request_duration =
      Make(prometheus::BuildHistogram(), "braid_request_duration_seconds",
           "Time from an RPC's arrival to its reply.");
  Family<Histogram>& batch_size = Make(prometheus::BuildHistogram(), "braid_batch_size_rows",
                                       "Rows of the inference batches that were run.");
  Family<Gauge>& queued = Make(prometheus::BuildGauge(), "braid_queue_rows",
                               "Rows that wait in a model's inference queue.");
  Family<Counter>& samples = Make(prometheus::BuildCounter(), "braid_inference_samples_total",
                                  "Rows that went through inference.");
  Family<Counter>& busy = Make(prometheus::BuildCounter(), "braid_device_busy_seconds_total",
                               "Time that a device's worker spent working, by phase.");
  Family<Counter>& steps =
      Make(prometheus::BuildCounter(), "braid_training_steps_total", "Updates made.");
  Family<Counter>& training_samples =
      Make(prometheus::BuildCounter(), "braid_training_samples_total",
           "Rows that a training loss was computed over.");
  Family<Gauge>& loss =
      Make(prometheus::BuildGauge(), "braid_training_loss", "The loss that was computed last.");
  Family<Counter>& checkpoints = Make(prometheus::BuildCounter(), "braid_checkpoints_total",
                                      "Checkpoints that were written, or failed.");
  Family<Histogram>& checkpoint_duration =
      Make(prometheus::BuildHistogram(), "braid_checkpoint_duration_seconds",
           "Time from a checkpoint's begin until it was durable.");
  Family<Histogram>& checkpoint_pause =
      Make(prometheus::BuildHistogram(), "braid_checkpoint_pause_seconds",
           "Time for which a trainer's operations waited while its state was copied.");

  Cached<Counter> request_series;
  Cached<Histogram> duration_series;
  Cached<Histogram> batch_series;
  Cached<Counter> sample_series;
  Cached<Gauge> queue_series;
  Cached<Counter> busy_series;
  Cached<Counter> step_series;
  Cached<Counter> training_sample_series;
  Cached<Gauge> loss_series;
  Cached<Counter> checkpoint_series;
  Cached<Histogram> checkpoint_duration_series;
  Cached<Histogram> checkpoint_pause_series;
};

Metrics::Metrics() : families_(std::make_unique<Families>()) {}
Metrics::~Metrics() = default;

void Metrics::CountRequest(absl::string_view method, absl::string_view code,
                           absl::Duration duration) {
  Families& f = *families_;
  f.request_series
      .Get(absl::StrCat(method, "\n", code),
           [&]() -> Counter& {
             return f.requests.Add({{"method", std::string(method)}, {"code", std::string(code)}});
           })
      .Increment();
  f.duration_series
      .Get(std::string(method),
           [&]() -> Histogram& {
             return f.request_duration.Add({{"method", std::string(method)}}, kSeconds);
           })
      .Observe(absl::ToDoubleSeconds(duration));
}

void Metrics::CountBatch(absl::string_view model, int64_t rows) {
  Families& f = *families_;
  const std::string key(model);
  f.batch_series.Get(key,
                     [&]() -> Histogram& {
                       return f.batch_size.Add({{"model", key}}, kRows);
                     })
      .Observe(static_cast<double>(rows));
  f.sample_series.Get(key,
                      [&]() -> Counter& {
                        return f.samples.Add({{"model", key}});
                      })
      .Increment(static_cast<double>(rows));
}

void Metrics::AddQueuedRows(absl::string_view model, int64_t delta) {
  Families& f = *families_;
  const std::string key(model);
  f.queue_series.Get(key,
                     [&]() -> Gauge& {
                       return f.queued.Add({{"model", key}});
                     })
      .Increment(static_cast<double>(delta));
}

void Metrics::AddBusy(absl::string_view device, Phase phase, absl::Duration busy) {
  Families& f = *families_;
  f.busy_series
      .Get(absl::StrCat(device, "\n", PhaseName(phase)),
           [&]() -> Counter& {
             return f.busy.Add(
                 {{"device", std::string(device)}, {"phase", std::string(PhaseName(phase))}});
           })
      .Increment(absl::ToDoubleSeconds(busy));
}

void Metrics::CountTrainingStep(absl::string_view trainer) {
  Families& f = *families_;
  const std::string key(trainer);
  f.step_series.Get(key, [&]() -> Counter& { return f.steps.Add({{"trainer", key}}); }).Increment();
}

void Metrics::RecordLoss(absl::string_view trainer, double loss, int64_t rows) {
  Families& f = *families_;
  const std::string key(trainer);
  f.loss_series.Get(key, [&]() -> Gauge& { return f.loss.Add({{"trainer", key}}); }).Set(loss);
  f.training_sample_series
      .Get(key,
           [&]() -> Counter& {
             return f.training_samples.Add({{"trainer", key}});
           })
      .Increment(static_cast<double>(rows));
}

void Metrics::RecordCheckpointPause(absl::string_view trainer, absl::Duration pause) {
  Families& f = *families_;
  const std::string key(trainer);
  f.checkpoint_pause_series
      .Get(key,
           [&]() -> Histogram& {
             return f.checkpoint_pause.Add({{"trainer", key}}, kSeconds);
           })
      .Observe(absl::ToDoubleSeconds(pause));
}

void Metrics::RecordCheckpoint(absl::string_view trainer, bool written, absl::Duration duration) {
  Families& f = *families_;
  const std::string key(trainer);
  const std::string outcome = written ? "written" : "failed";
  f.checkpoint_series
      .Get(absl::StrCat(key, "\n", outcome),
           [&]() -> Counter& {
             return f.checkpoints.Add({{"trainer", key}, {"outcome", outcome}});
           })
      .Increment();
  f.checkpoint_duration_series
      .Get(key,
           [&]() -> Histogram& {
             return f.checkpoint_duration.Add({{"trainer", key}}, kSeconds);
           })
      .Observe(absl::ToDoubleSeconds(duration));
}

void Metrics::ForgetTrainer(absl::string_view trainer) {
  Families& f = *families_;
  const std::string key(trainer);
  if (auto* series = f.step_series.Forget(key)) {
    f.steps.Remove(series);
  }
  if (auto* series = f.training_sample_series.Forget(key)) {
    f.training_samples.Remove(series);
  }
  if (auto* series = f.loss_series.Forget(key)) {
    f.loss.Remove(series);
  }
  for (const char* outcome : {"written", "failed"}) {
    if (auto* series = f.checkpoint_series.Forget(absl::StrCat(key, "\n", outcome))) {
      f.checkpoints.Remove(series);
    }
  }
  if (auto* series = f.checkpoint_duration_series.Forget(key)) {
    f.checkpoint_duration.Remove(series);
  }
  if (auto* series = f.checkpoint_pause_series.Forget(key)) {
    f.checkpoint_pause.Remove(series);
  }
}

const std::shared_ptr<prometheus::Registry>& Metrics::registry() const {
  return families_->registry;
}

}  // namespace braid
