#include "server/models/pickle_depth.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "server/base/status.h"
#include "torch/csrc/jit/serialization/pickler_helper.h"

namespace braid {
namespace {

using Op = torch::jit::PickleOpCode;

absl::Status Wrong() {
  return absl::FailedPreconditionError("takes values that are not there: it is damaged");
}

struct Value {
  size_t depth = 0;
  size_t brackets = 0;  // of a string, which may be the name of a type, or of the strings in it
  bool fixed = true;    // nothing may be put into it
};

// How deep brackets nest in what may be the name of a type, which is parsed recursively too.
size_t BracketsIn(absl::string_view text) {
  size_t open = 0;
  size_t most = 0;
  for (const char c : text) {
    if (c == '[' || c == '(') {
      most = std::max(most, ++open);
    } else if ((c == ']' || c == ')') && open > 0) {
      --open;
    }
  }
  return most;
}

// Does what LibTorch's unpickler does to its stack, with depths for values. Values have numbers, as
// the memo refers to them.
class PickleMeter {
 public:
  explicit PickleMeter(absl::string_view pickle) : rest_(pickle), most_memo_(pickle.size()) {}

  // Until LibTorch would stop, too.
  absl::Status Run() {
    while (!rest_.empty() && !done_) {
      const Op op = static_cast<Op>(rest_[0]);
      rest_.remove_prefix(1);
      BRAID_RETURN_IF_ERROR(Do(op));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Do(Op op) {
    switch (op) {
      case Op::PROTO:
        return Skip(1);
      case Op::NEWTRUE:
      case Op::NEWFALSE:
      case Op::NONE:
        return PushPlain(0);
      case Op::BININT1:
        return PushPlain(1);
      case Op::BININT2:
        return PushPlain(2);
      case Op::BININT:
        return PushPlain(4);
      case Op::BINFLOAT:
        return PushPlain(8);
      case Op::LONG1:
        return PushPlain(9);
      case Op::BINUNICODE:
        return PushString(4);
      case Op::BINUNICODE8:
        return PushString(8);
      case Op::GLOBAL:
        return PushGlobal();
      case Op::BINPUT:
      case Op::LONG_BINPUT:
        return Put(op == Op::BINPUT ? 1 : 4);
      case Op::BINGET:
      case Op::LONG_BINGET:
        return Get(op == Op::BINGET ? 1 : 4);
      default:
        return Build(op);
    }
  }

  // What makes values of values.
  absl::Status Build(Op op) {
    switch (op) {
      case Op::MARK:
        marks_.push_back(stack_.size());
        return absl::OkStatus();
      case Op::EMPTY_TUPLE:
        return Gather(0, Value{.depth = 1});
      case Op::EMPTY_LIST:
      case Op::EMPTY_DICT:
        return Gather(0, Value{.depth = 1, .fixed = false});
      case Op::TUPLE1:
        return Gather(1, Value{.depth = 1});
      case Op::TUPLE2:
        return Gather(2, Value{.depth = 1});
      case Op::TUPLE3:
        return Gather(3, Value{.depth = 1});
      case Op::TUPLE:
        return GatherMarked(Value{.depth = 1});
      case Op::LIST:
      case Op::DICT:
        return GatherMarked(Value{.depth = 1, .fixed = false});
      case Op::APPENDS:
      case Op::SETITEMS: {
        BRAID_ASSIGN_OR_RETURN(const size_t count, SinceMark());
        return PutInto(count);
      }
      case Op::APPEND:
        return PutInto(1);
      case Op::SETITEM:
        return PutInto(2);
      case Op::NEWOBJ:
        return Drop(1);
      case Op::BINPERSID:
        return Gather(1, Value{});
      case Op::BUILD:
      case Op::REDUCE:
        return Call();
      default:
        // STOP, and what LibTorch refuses.
        done_ = true;
        return absl::OkStatus();
    }
  }

  absl::Status Skip(size_t bytes) {
    if (rest_.size() < bytes) {
      return Wrong();
    }
    rest_.remove_prefix(bytes);
    return absl::OkStatus();
  }

  absl::StatusOr<size_t> Number(size_t bytes) {
    uint64_t number = 0;
    if (rest_.size() < bytes) {
      return Wrong();
    }
    std::memcpy(&number, rest_.data(), bytes);
    rest_.remove_prefix(bytes);
    return number;
  }

  absl::Status CheckDepth(size_t depth) const {
    if (depth <= kMostPickleDepth) {
      return absl::OkStatus();
    }
    return absl::FailedPreconditionError(
        absl::StrCat("nests more than ", kMostPickleDepth, " values in each other"));
  }

  absl::Status Push(Value value) {
    stack_.push_back(values_.size());
    values_.push_back(value);
    return CheckDepth(value.depth);
  }

  absl::Status PushPlain(size_t bytes) {
    BRAID_RETURN_IF_ERROR(Skip(bytes));
    stack_.push_back(kPlain);
    return absl::OkStatus();
  }

  absl::Status PushString(size_t length_bytes) {
    BRAID_ASSIGN_OR_RETURN(const size_t bytes, Number(length_bytes));
    const absl::string_view text = rest_.substr(0, bytes);
    BRAID_RETURN_IF_ERROR(Skip(bytes));
    const size_t brackets = BracketsIn(text);
    return brackets == 0 ? PushPlain(0) : Push(Value{.brackets = brackets});
  }

  // Two lines: a module and a name in it.
  absl::Status PushGlobal() {
    for (int i = 0; i < 2; ++i) {
      const size_t end = rest_.find('\n');
      if (end == absl::string_view::npos) {
        return Wrong();
      }
      rest_.remove_prefix(end + 1);
    }
    return PushPlain(0);
  }

  // Ids count up, LibTorch makes a table of as many.
  absl::Status Put(size_t bytes) {
    BRAID_ASSIGN_OR_RETURN(const size_t id, Number(bytes));
    if (stack_.empty() || id > most_memo_) {
      return Wrong();
    }
    memo_[id] = stack_.back();
    return absl::OkStatus();
  }

  absl::Status Get(size_t bytes) {
    BRAID_ASSIGN_OR_RETURN(const size_t id, Number(bytes));
    const auto put = memo_.find(id);
    if (put == memo_.end()) {
      return Wrong();
    }
    stack_.push_back(put->second);
    return absl::OkStatus();
  }

  absl::StatusOr<size_t> SinceMark() {
    if (marks_.empty() || marks_.back() > stack_.size()) {
      return Wrong();
    }
    const size_t count = stack_.size() - marks_.back();
    marks_.pop_back();
    return count;
  }

  absl::Status Drop(size_t count) {
    if (stack_.size() < count) {
      return Wrong();
    }
    stack_.resize(stack_.size() - count);
    return absl::OkStatus();
  }

  // The last `count` values go into `whole`.
  absl::Status Take(size_t count, Value* whole) {
    if (stack_.size() < count) {
      return Wrong();
    }
    for (auto part = stack_.end() - static_cast<std::ptrdiff_t>(count); part != stack_.end();
         ++part) {
      Value& value = values_[*part];
      value.fixed = true;
      whole->depth = std::max(whole->depth, value.depth + 1);
      if (value.depth == 0) {
        whole->brackets = std::max(whole->brackets, value.brackets);
      }
    }
    return Drop(count);
  }

  absl::Status Gather(size_t count, Value whole) {
    BRAID_RETURN_IF_ERROR(Take(count, &whole));
    return Push(whole);
  }

  absl::Status GatherMarked(Value whole) {
    BRAID_ASSIGN_OR_RETURN(const size_t count, SinceMark());
    return Gather(count, whole);
  }

  // The last `count` values go into the one before them, which nothing has yet.
  absl::Status PutInto(size_t count) {
    if (stack_.size() <= count) {
      return Wrong();
    }
    const size_t whole = stack_[stack_.size() - count - 1];
    if (values_[whole].fixed) {
      return absl::FailedPreconditionError("puts values into what is part of others already");
    }
    Value changed = values_[whole];
    BRAID_RETURN_IF_ERROR(Take(count, &changed));
    values_[whole].depth = changed.depth;
    return CheckDepth(changed.depth);
  }

  // A class or a function, and what it takes.
  absl::Status Call() {
    if (stack_.size() < 2) {
      return Wrong();
    }
    if (values_[stack_.back()].brackets > kMostPickleDepth) {
      return absl::FailedPreconditionError(
          absl::StrCat("has a type that nests more than ", kMostPickleDepth, " levels"));
    }
    Value result;
    BRAID_RETURN_IF_ERROR(Take(1, &result));
    result.brackets = 0;
    BRAID_RETURN_IF_ERROR(Drop(1));
    return Push(result);
  }

  absl::string_view rest_;
  const size_t most_memo_;
  bool done_ = false;
  static constexpr size_t kPlain = 0;  // all that have nothing in them
  std::vector<Value> values_ = {Value{}};
  std::vector<size_t> stack_;
  std::vector<size_t> marks_;
  std::map<size_t, size_t> memo_;
};

}  // namespace

absl::Status CheckPickleDepth(absl::string_view pickle) { return PickleMeter(pickle).Run(); }

}  // namespace braid
