// NcclClique over tensors in host memory. A test can keep its collectives from ending.
#pragma once

#include <algorithm>
#include <cstddef>
#include <thread>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/devices/nccl_clique.h"

namespace braid {

// State that all cliques of a test share. Thread-safe. Outlives them.
class FakeNccl {
 public:
  enum class Hang { kNever, kUnderWay, kBeginning };

  // Makes later collectives hang in flight or while they start.
  void set_hang(Hang hang) {
    const absl::MutexLock lock(&mu_);
    hang_ = hang;
  }
  // Set the results of later calls of Begin() and Running().
  void set_begin_fault(absl::Status fault) {
    const absl::MutexLock lock(&mu_);
    begin_fault_ = std::move(fault);
  }
  void set_running_fault(absl::Status fault) {
    const absl::MutexLock lock(&mu_);
    running_fault_ = std::move(fault);
  }
  int begun() const {
    const absl::MutexLock lock(&mu_);
    return begun_;
  }
  int aborted() const {
    const absl::MutexLock lock(&mu_);
    return aborted_;
  }
  // Maximum number of threads that were initializing, starting or destroying at once.
  int most_inside() const {
    const absl::MutexLock lock(&mu_);
    return most_inside_;
  }

 private:
  friend class FakeNcclClique;

  // Scope of an operation that must be serialized.
  class Inside {
   public:
    explicit Inside(FakeNccl& nccl) : nccl_(nccl) {
      {
        const absl::MutexLock lock(&nccl_.mu_);
        nccl_.most_inside_ = std::max(nccl_.most_inside_, ++nccl_.inside_);
      }
      // Gives other threads the chance to enter if nothing prevents it.
      for (int i = 0; i < 100; ++i) {
        std::this_thread::yield();
      }
    }
    ~Inside() {
      const absl::MutexLock lock(&nccl_.mu_);
      --nccl_.inside_;
    }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;

   private:
    FakeNccl& nccl_;
  };

  mutable absl::Mutex mu_;
  Hang hang_ ABSL_GUARDED_BY(mu_) = Hang::kNever;
  absl::Status begin_fault_ ABSL_GUARDED_BY(mu_);
  absl::Status running_fault_ ABSL_GUARDED_BY(mu_);
  int begun_ ABSL_GUARDED_BY(mu_) = 0;
  int aborted_ ABSL_GUARDED_BY(mu_) = 0;  // cliques
  int inside_ ABSL_GUARDED_BY(mu_) = 0;
  int most_inside_ ABSL_GUARDED_BY(mu_) = 0;
};

class FakeNcclClique final : public NcclClique {
 public:
  explicit FakeNcclClique(FakeNccl* nccl) : nccl_(*nccl) { const FakeNccl::Inside inside(nccl_); }
  ~FakeNcclClique() override { const FakeNccl::Inside inside(nccl_); }
  FakeNcclClique(const FakeNcclClique&) = delete;
  FakeNcclClique& operator=(const FakeNcclClique&) = delete;

  absl::Status Begin(CollectiveKind kind, const std::vector<at::Tensor>& tensors) override {
    const FakeNccl::Inside inside(nccl_);
    const absl::MutexLock lock(&nccl_.mu_);
    ++nccl_.begun_;
    if (!nccl_.begin_fault_.ok()) {
      return nccl_.begin_fault_;
    }
    if (nccl_.hang_ == FakeNccl::Hang::kBeginning) {
      nccl_.mu_.Await(absl::Condition(&aborted_));
    }
    hangs_ = nccl_.hang_ != FakeNccl::Hang::kNever;
    if (!hangs_) {
      Do(kind, tensors);
    }
    return absl::OkStatus();
  }
  absl::Status MarkReady(size_t, size_t) override { return absl::OkStatus(); }
  absl::Status FollowReady(size_t) override { return absl::OkStatus(); }
  absl::Status Wait(size_t) override {
    const absl::MutexLock lock(&nccl_.mu_);
    nccl_.mu_.Await(absl::Condition(
        +[](FakeNcclClique* clique) { return !clique->hangs_ || clique->aborted_; }, this));
    return absl::OkStatus();
  }
  absl::StatusOr<bool> Running() override {
    const absl::MutexLock lock(&nccl_.mu_);
    if (!nccl_.running_fault_.ok()) {
      return nccl_.running_fault_;
    }
    return hangs_;
  }
  void Abort() override {
    const absl::MutexLock lock(&nccl_.mu_);
    ++nccl_.aborted_;
    aborted_ = true;
  }

 private:
  static void Do(CollectiveKind kind, const std::vector<at::Tensor>& tensors) {
    for (size_t r = 1; kind != CollectiveKind::kBroadcast && r < tensors.size(); ++r) {
      tensors[0].add_(tensors[r]);
    }
    for (size_t r = 1; kind != CollectiveKind::kReduce && r < tensors.size(); ++r) {
      tensors[r].copy_(tensors[0]);
    }
  }

  FakeNccl& nccl_;
  // Guarded by FakeNccl::mu_.
  bool hangs_ = false;
  bool aborted_ = false;
};

}  // namespace braid
