// Counts calls of one LibTorch operator.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "ATen/record_function.h"

namespace braid {

// Counts within its scope, on the calling thread. Only one object at a time.
class OperatorCounter {
 public:
  explicit OperatorCounter(std::string name)
      : handle_(at::addThreadLocalCallback(at::RecordFunctionCallback(&OperatorCounter::Count))) {
    State() = {std::move(name), 0};
  }
  ~OperatorCounter() { at::removeCallback(handle_); }
  OperatorCounter(const OperatorCounter&) = delete;
  OperatorCounter& operator=(const OperatorCounter&) = delete;

  int count() const { return State().calls; }

 private:
  struct Counted {
    std::string name;
    int calls = 0;
  };

  static Counted& State() {
    thread_local Counted counted;
    return counted;
  }
  static std::unique_ptr<at::ObserverContext> Count(const at::RecordFunction& call) {
    State().calls += State().name == call.name() ? 1 : 0;
    return nullptr;
  }

  const at::CallbackHandle handle_;
};

}  // namespace braid
