// Runs the code of an exported program.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "ATen/core/Tensor.h"
#include "ATen/core/ivalue.h"
#include "c10/core/Device.h"
#include "server/graph/program.h"

namespace braid {

// One replica's registers for one program. Used by one thread at a time; the program is shared.
//
// Operators are called through LibTorch's dispatcher, below autograd, so that kernels that the
// thread has installed take part. Each value is freed by the instruction that reads it last.
class Executor {
 public:
  // `bound`: one per input of the program, on `device` or where the program wants it; undefined
  // for those that Run() is given.
  Executor(std::shared_ptr<const Program> program, std::vector<at::Tensor> bound,
           c10::Device device);
  ~Executor();

  // Called with an output as soon as it is final, in the order of the program's instructions.
  using OnOutput = std::function<void(size_t output, const c10::IValue& value)>;

  // `inputs`: the program's inputs of kind kUser, in their order; those that only this call holds
  // are freed when they are read last. A number may be given as a tensor of one element. Returns
  // the program's outputs: tensors that may be written to and may require gradients, numbers, or
  // None. Throws c10::Error that says which operator failed, on what shapes and at which line of
  // the model; for memory that cannot be had, c10::OutOfMemoryError or std::bad_alloc.
  std::vector<c10::IValue> Run(std::vector<c10::IValue> inputs, const OnOutput& on_output = {});

  // Run() for a program whose inputs and outputs are all tensors; None is an undefined one.
  std::vector<at::Tensor> RunTensors(std::vector<at::Tensor> inputs);

  const Program& program() const { return *program_; }

 private:
  class Frame;

  const std::shared_ptr<const Program> program_;
  const std::vector<at::Tensor> bound_;
  const c10::Device device_;
  const std::unique_ptr<Frame> frame_;
};

}  // namespace braid
