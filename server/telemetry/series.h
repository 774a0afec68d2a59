// The series of one metric, by the values of its labels.
#pragma once

#include <cstddef>
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
#include "prometheus/registry.h"
#include "server/telemetry/description.h"

namespace braid {

// What the families of one table are made in.
struct SeriesTable {
  std::shared_ptr<prometheus::Registry> registry = std::make_shared<prometheus::Registry>();
  // In the order of the table.
  std::vector<MetricDescription> descriptions = {};
};

// Thread-safe. Remembers its series: Family::Add() allocates and hashes a map at each call, which
// the request path cannot afford.
template <typename T>
class Series {
 public:
  using Buckets = prometheus::Histogram::BucketBoundaries;

  // `buckets`: of histograms.
  Series(SeriesTable* table, MetricGroup group, const char* name, std::vector<std::string> labels,
         const char* help, Buckets buckets = {})
      : labels_(std::move(labels)),
        buckets_(std::move(buckets)),
        family_(Build().Name(name).Help(help).Register(*table->registry)) {
    table->descriptions.push_back({group, name, T::metric_type, labels_, help});
  }

  // The series with these values, in the order of the labels; made at the first call.
  T& At(std::initializer_list<absl::string_view> values) ABSL_LOCKS_EXCLUDED(mu_) {
    const std::string key = absl::StrJoin(values, "\n");  // no value has a line's end in it
    const absl::MutexLock lock(&mu_);
    auto [found, added] = series_.try_emplace(key);
    if (added) {
      found->second = Make(values);
    }
    return *found->second.series;
  }

  // Drops the series whose label `label` is `value`: nobody may use them any more.
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

}  // namespace braid
