#include "server/models/inference_only/aoti_ranges.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "re2/re2.h"

namespace braid {
namespace {

re2::StringPiece Piece(absl::string_view text) { return {text.data(), text.size()}; }

// Product of a number and of dynamic sizes, such as "5L*ks0".
struct Product {
  int64_t number = 1;
  std::multiset<std::string> sizes;

  static std::optional<Product> Parse(absl::string_view text) {
    Product product;
    for (absl::string_view factor : absl::StrSplit(text, '*')) {
      int64_t number = 0;
      if (absl::ConsumePrefix(&factor, "ks")) {
        product.sizes.emplace(factor);
      } else if (absl::ConsumeSuffix(&factor, "L") && absl::SimpleAtoi(factor, &number)) {
        product.number *= number;
      } else {
        return std::nullopt;
      }
    }
    return product;
  }
  Product operator*(const Product& other) const {
    Product product = *this;
    product.number *= other.number;
    product.sizes.insert(other.sizes.begin(), other.sizes.end());
    return product;
  }
  bool operator==(const Product& other) const = default;
};

// End of each loop of a kernel, by its variable. nullopt: unknown.
using Loops = std::map<std::string, std::optional<Product>>;

// Returns the number of distinct elements that the index `expression`, such as "1L + x1 + 5L*x0",
// visits in `loops`; nullopt if that is unknown.
std::optional<Product> CountVisited(const std::string& expression, const Loops& loops) {
  static const re2::RE2 kTerm(R"((?:(.*)\*)?(x\d+))");
  std::vector<std::pair<Product, Product>> steps;  // factor of a variable, and end of its loop
  for (const absl::string_view term : absl::StrSplit(expression, " + ")) {
    std::string factor;
    std::string variable;
    if (!RE2::FullMatch(Piece(term), kTerm, &factor, &variable)) {
      if (const auto offset = Product::Parse(term); !offset || !offset->sizes.empty()) {
        return std::nullopt;
      }
      continue;
    }
    const auto step = factor.empty() ? Product() : Product::Parse(factor);
    const auto loop = loops.find(variable);
    if (!step || loop == loops.end() || !loop->second) {
      return std::nullopt;
    }
    steps.emplace_back(*step, *loop->second);
  }
  std::sort(steps.begin(), steps.end(), [](const auto& one, const auto& other) {
    return std::pair(one.first.sizes.size(), one.first.number) <
           std::pair(other.first.sizes.size(), other.first.number);
  });
  Product visited;
  Product inner;  // minimum of the next step
  for (const auto& [step, end] : steps) {
    if (step != inner && (step.sizes != inner.sizes || step.number < inner.number)) {
      return std::nullopt;
    }
    inner = step * end;
    visited = visited * end;
  }
  return visited;
}

// Use of elements of a kernel's argument as indices of an embedding with `size` rows.
struct Lookup {
  size_t argument = 0;
  int64_t size = 0;
  std::string elements;
  std::optional<Product> count;  // of distinct elements
  bool wrapped = false;          // accepts negative indices
};

// Tracks indices through the source of one kernel.
class Kernel {
 public:
  explicit Kernel(absl::string_view source) {
    static const re2::RE2 kHead(R"(^\s*void\s+(\w+)\(([^)]*)\))");
    std::string parameters;
    RE2::PartialMatch(Piece(source), kHead, &name_, &parameters);
    if (!absl::StrContains(name_, "embedding")) {
      return;
    }
    for (const absl::string_view parameter : absl::StrSplit(parameters, ',')) {
      parameters_.emplace_back(
          *std::prev(std::vector<absl::string_view>(absl::StrSplit(parameter, ' ')).end()));
    }
    for (const absl::string_view line : absl::StrSplit(source, '\n')) {
      Read(line);
    }
  }

  const std::string& name() const { return name_; }
  // Returns the embedding lookups in the kernel.
  const std::vector<Lookup>& lookups() const { return lookups_; }
  // True if the kernel accepts negative indices that are not elements of an argument.
  bool wraps_others() const { return wraps_others_; }

 private:
  struct Load {
    std::string parameter;
    std::string elements;
    std::optional<Product> count;
  };

  void Read(absl::string_view line) {
    static const re2::RE2 kLoop(
        R"(for\(int64_t (x\d+)=.*; x\d+<static_cast<int64_t>\((.*)\); x\d+\+=)");
    static const re2::RE2 kDefinition(R"(^\s*auto (tmp\d+) =\s*(.*)$)");
    static const re2::RE2 kStored(R"(^\s*(tmp\d+)\.store\(tmpbuf)");
    static const re2::RE2 kTaken(R"(^\s*tmpbuf\[\w+\] = static_cast<int64_t>\((tmp\d+)\[)");
    static const re2::RE2 kCheck(R"("index out of bounds: 0 <= (tmp\d+) < (\d+)L")");
    const re2::StringPiece text = Piece(line);
    std::string one;
    std::string other;
    if (RE2::PartialMatch(text, kLoop, &one, &other)) {
      loops_[one] = Product::Parse(other);
    } else if (RE2::PartialMatch(text, kDefinition, &one, &other)) {
      Define(one, other);
    } else if (RE2::PartialMatch(text, kStored, &one) || RE2::PartialMatch(text, kTaken, &one)) {
      Copy(one, defined_);  // inside of the lambda that defines it
    } else if (RE2::PartialMatch(text, kCheck, &one, &other)) {
      Check(one, other);
    }
  }

  void Define(const std::string& name, const std::string& value) {
    static const re2::RE2 kElement(R"(^(\w+)\[static_cast<int64_t>\((.*)\)\];$)");
    static const re2::RE2 kElements(
        R"(^at::vec::\w+<int[\w, ]*>::loadu\((\w+) \+ static_cast<int64_t>\((.*?)\), )");
    static const re2::RE2 kSame(R"(^(?:c10::convert<int(?:32|64)_t>\()?(tmp\d+)\)?;$)");
    static const re2::RE2 kSum(R"(^(?:int(?:32|64)_t\()?(tmp\d+) \+ tmp\d+\)?;$)");
    static const re2::RE2 kChoice(R"(^tmp\d+ \? (tmp\d+) : (tmp\d+);$)");
    static const re2::RE2 kBlend(R"(^decltype\(tmp\d+\)::blendv\((tmp\d+), (tmp\d+), )");
    defined_ = name;
    loads_.erase(name);
    sums_.erase(name);
    wrapped_.erase(name);
    std::string one;
    std::string other;
    if (RE2::PartialMatch(value, kElement, &one, &other) ||
        RE2::PartialMatch(value, kElements, &one, &other)) {
      loads_[name] = {one, other, CountVisited(other, loops_)};
    } else if (RE2::PartialMatch(value, kSame, &one)) {
      Copy(one, name);
    } else if (RE2::PartialMatch(value, kSum, &one)) {
      sums_[name] = one;
    } else if (RE2::PartialMatch(value, kChoice, &one, &other) ||
               RE2::PartialMatch(value, kBlend, &other, &one)) {
      // Negative indices count from the end.
      if (const auto sum = sums_.find(one); sum != sums_.end() && sum->second == other) {
        Copy(other, name);
        wrapped_.insert(name);
      }
    }
  }

  void Copy(const std::string& from, const std::string& to) {
    if (const auto load = loads_.find(from); load != loads_.end()) {
      loads_[to] = load->second;
    }
    if (wrapped_.contains(from)) {
      wrapped_.insert(to);
    }
  }

  void Check(const std::string& index, const std::string& size) {
    const auto load = loads_.find(index);
    if (load == loads_.end()) {
      wraps_others_ = wraps_others_ || wrapped_.contains(index);
      return;
    }
    const auto parameter =
        std::find(parameters_.begin(), parameters_.end(), load->second.parameter);
    Lookup lookup{static_cast<size_t>(parameter - parameters_.begin()), 0, load->second.elements,
                  load->second.count, wrapped_.contains(index)};
    if (absl::SimpleAtoi(size, &lookup.size)) {
      lookups_.push_back(std::move(lookup));
    }
  }

  std::string name_;
  std::vector<std::string> parameters_;
  Loops loops_;
  std::string defined_;                      // most recent definition
  std::map<std::string, Load> loads_;        // values that were loaded from an argument
  std::map<std::string, std::string> sums_;  // first operand of sums
  std::set<std::string> wrapped_;            // values after wrapping of negative indices
  std::vector<Lookup> lookups_;
  bool wraps_others_ = false;
};

// Inputs that a call of a kernel passes, by position of the argument.
using Call = std::map<size_t, size_t>;

// Source of wrapper.cpp, which calls the kernels.
class Wrapper {
 public:
  explicit Wrapper(absl::string_view source) : source_(source) {
    static const re2::RE2 kInput(R"(auto (\w+) = std::move\(inputs\[(\d+)\]\);)");
    re2::StringPiece text = Piece(source);
    std::string name;
    size_t index = 0;
    while (RE2::FindAndConsume(&text, kInput, &name, &index)) {
      inputs_[name] = index;
    }
  }

  // Returns the inputs that the package may modify. Their values may differ from the request's.
  std::set<size_t> Mutated() const {
    // Non-const pointers, and the first argument of operators.
    static const re2::RE2 kTaken(
        R"((?:\([\w:]+\*\)\(|aoti_torch_(\w+)\()(\w+)(?:\.data_ptr\(\)\)|, ))");
    std::set<size_t> mutated;
    re2::StringPiece text = Piece(source_);
    std::string what;
    std::string name;
    while (RE2::FindAndConsume(&text, kTaken, &what, &name)) {
      const auto input = inputs_.find(name);
      if (input != inputs_.end() && !absl::StartsWith(what, "get_")) {
        mutated.insert(input->second);
      }
    }
    return mutated;
  }

  std::vector<Call> CallsOf(const std::string& kernel) const {
    static const re2::RE2 kArgument(
        R"((?:\((?:const )?[\w:]+\*\)\((\w+)\.data_ptr\(\)\)|[^,()]+)(, )?)");
    const re2::RE2 begin(R"(\n\s*(?:kernels\.)?)" + kernel + R"(\()");
    std::vector<Call> calls;
    re2::StringPiece text = Piece(source_);
    while (RE2::FindAndConsume(&text, begin)) {
      Call call;
      std::string name;
      for (size_t a = 0; RE2::Consume(&text, kArgument, &name); ++a) {
        if (const auto input = inputs_.find(name); input != inputs_.end()) {
          call[a] = input->second;
        }
        name.clear();
      }
      calls.push_back(std::move(call));
    }
    return calls;
  }

 private:
  const absl::string_view source_;
  std::map<std::string, size_t> inputs_;
};

// True if `count` elements are all of `input`.
bool CoversAll(const Product& count, const PackageInput& input) {
  int64_t number = 1;
  size_t sizes = 0;
  for (const PackageDim& dim : input.dims) {
    number *= dim.fixed() ? dim.min : 1;
    sizes += dim.fixed() ? 0 : 1;
  }
  return count.number == number && count.sizes.size() == sizes;
}

// Returns the rows of the smallest embedding for which all of `input` is used as indices.
std::optional<int64_t> MinRows(const std::vector<Lookup>& lookups, size_t argument,
                               const PackageInput& input) {
  std::map<int64_t, std::map<std::string, Product>> counts;  // each element once
  for (const Lookup& lookup : lookups) {
    if (lookup.argument == argument && lookup.count) {
      counts[lookup.size].try_emplace(lookup.elements, *lookup.count);
    }
  }
  for (const auto& [size, parts] : counts) {
    Product sum = parts.begin()->second;
    sum.number = 0;
    for (const auto& [elements, count] : parts) {
      sum.number += count.sizes == sum.sizes ? count.number : 0;
    }
    if (CoversAll(sum, input)) {
      return size;
    }
  }
  return std::nullopt;
}

bool IsInteger(DataType type) { return !IsFloatingPoint(type) && type != DataType::kBool; }

}  // namespace

bool FindAotiEmbeddingRanges(absl::string_view wrapper_source, absl::string_view kernels,
                             std::vector<PackageInput>* inputs) {
  const Wrapper wrapper(wrapper_source);
  const std::set<size_t> mutated = wrapper.Mutated();
  std::vector<const PackageInput*> wrapped;  // nullptr: not an input
  for (const absl::string_view source : absl::StrSplit(kernels, "extern \"C\"")) {
    const Kernel kernel(source);
    if (kernel.wraps_others()) {
      wrapped.push_back(nullptr);
    }
    if (kernel.lookups().empty()) {
      continue;
    }
    for (const Call& call : wrapper.CallsOf(kernel.name())) {
      for (const Lookup& lookup : kernel.lookups()) {
        const auto place = call.find(lookup.argument);
        const bool is_input = place != call.end() && place->second < inputs->size() &&
                              !mutated.contains(place->second);
        PackageInput* const input = is_input ? &(*inputs)[place->second] : nullptr;
        if (lookup.wrapped) {
          wrapped.push_back(input);
        }
        if (input == nullptr || !IsInteger(input->type)) {
          continue;
        }
        if (const auto rows = MinRows(kernel.lookups(), lookup.argument, *input)) {
          const int64_t last = *rows - 1;
          input->range = ValueRange{0, input->range ? std::min(last, input->range->max) : last};
        }
      }
    }
  }
  return std::any_of(wrapped.begin(), wrapped.end(),
                     [](const PackageInput* input) { return input == nullptr || !input->range; });
}

}  // namespace braid
