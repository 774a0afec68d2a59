#include "server/batching/ordered_answers.h"

#include <utility>

namespace braid {

OrderedAnswers::Place OrderedAnswers::Expect() {
  const absl::MutexLock lock(&mu_);
  answers_.emplace(next_, Answer());
  return next_++;
}

void OrderedAnswers::Bring(Place place, Answer answer) {
  {
    const absl::MutexLock lock(&mu_);
    answers_[place] = std::move(answer);
  }
  GiveWhatIsDue();
}

void OrderedAnswers::Forget(Place place) {
  {
    const absl::MutexLock lock(&mu_);
    answers_.erase(place);
  }
  GiveWhatIsDue();
}

void OrderedAnswers::GiveWhatIsDue() {
  while (true) {
    Answer answer;
    {
      const absl::MutexLock lock(&mu_);
      // One thread gives at a time: two could overtake each other between the lock and the answer.
      if (giving_ || answers_.empty() || !answers_.begin()->second) {
        return;
      }
      giving_ = true;
      answer = std::move(answers_.begin()->second);
      answers_.erase(answers_.begin());
    }
    answer();
    const absl::MutexLock lock(&mu_);
    giving_ = false;
  }
}

}  // namespace braid
