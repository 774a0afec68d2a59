#include "server/graph/liveness.h"

#include <algorithm>
#include <map>
#include <utility>

namespace braid {
namespace {

// Registers that later instructions read.
class ReadLater {
 public:
  explicit ReadLater(Slot registers) : read_(registers, false) {}

  bool operator[](Slot slot) const { return slot != kNowhere && read_[slot]; }

  // Adds the registers that `operands` read, in order.
  void Add(std::vector<Operand>* operands) {
    for (size_t i = operands->size(); i-- > 0;) {
      Operand& operand = (*operands)[i];
      if (operand.slot != kNowhere) {
        operand.last_use = !read_[operand.slot];
        read_[operand.slot] = true;
      }
      Add(&operand.items);
    }
  }

 private:
  std::vector<bool> read_;
};

bool ReadsAny(const std::vector<Result>& results, const ReadLater& read) {
  return std::any_of(results.begin(), results.end(), [&](const Result& result) {
    return read[result.slot] || std::any_of(result.items.begin(), result.items.end(),
                                            [&](Slot item) { return read[item]; });
  });
}

void DropUnread(const ReadLater& read, Slot* slot) {
  if (!read[*slot]) {
    *slot = kNowhere;
  }
}

void MarkFinalOutputs(Code* code) {
  std::multimap<Slot, size_t> outputs;
  for (size_t o = 0; o < code->outputs.size(); ++o) {
    if (code->outputs[o].slot != kNowhere) {
      outputs.emplace(code->outputs[o].slot, o);
    }
  }
  code->given_outputs.clear();
  for (const Slot input : code->inputs) {
    const auto [begin, end] = outputs.equal_range(input);
    for (auto output = begin; output != end; ++output) {
      code->given_outputs.push_back(output->second);
    }
  }
  const bool writes = std::any_of(code->instructions.begin(), code->instructions.end(),
                                  [](const Instruction& each) { return each.writes; });
  for (Instruction& instruction : code->instructions) {
    Instruction& last = writes ? code->instructions.back() : instruction;
    for (const Result& result : instruction.results) {
      std::vector<Slot> slots = result.items;
      slots.push_back(result.slot);
      for (const Slot slot : slots) {
        const auto [begin, end] = outputs.equal_range(slot);
        for (auto output = begin; output != end; ++output) {
          last.final_outputs.push_back(output->second);
        }
      }
    }
  }
}

}  // namespace

void MarkLastUses(Code* code) {
  for (Instruction& instruction : code->instructions) {
    instruction.final_outputs.clear();
  }
  ReadLater read(code->registers);
  read.Add(&code->outputs);
  for (size_t i = code->instructions.size(); i-- > 0;) {
    Instruction& instruction = code->instructions[i];
    for (Result& result : instruction.results) {
      DropUnread(read, &result.slot);
      for (Slot& item : result.items) {
        DropUnread(read, &item);
      }
    }
    read.Add(&instruction.operands);
  }
  for (Slot& input : code->inputs) {
    DropUnread(read, &input);
  }
  MarkFinalOutputs(code);
}

void RemoveOutputs(const std::vector<bool>& wanted, Code* code) {
  for (size_t o = 0; o < code->outputs.size(); ++o) {
    if (!wanted[o]) {
      code->outputs[o] = Operand();
    }
  }
  ReadLater read(code->registers);
  read.Add(&code->outputs);
  std::vector<Instruction> needed;
  for (size_t i = code->instructions.size(); i-- > 0;) {
    Instruction& instruction = code->instructions[i];
    if (instruction.has_effects || ReadsAny(instruction.results, read)) {
      read.Add(&instruction.operands);
      needed.push_back(std::move(instruction));
    }
  }
  std::reverse(needed.begin(), needed.end());
  code->instructions = std::move(needed);
  MarkLastUses(code);
}

}  // namespace braid
