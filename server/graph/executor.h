// Interpreter for the code of an exported program.
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

// Runs one program for one replica. Thread-compatible; the program is shared between executors.
//
// Calls operators through LibTorch's dispatcher, below autograd, so that the thread's kernels
// (devices/thread_kernels.h) apply. Each value is freed after its last use.
class Executor {
 public:
  // bound: one tensor per input of the program, on `device` or on the device that the program
  // requires; undefined for the arguments of Run().
  Executor(std::shared_ptr<const Program> program, std::vector<at::Tensor> bound,
           c10::Device device);
  ~Executor();

  // Called with each output as soon as it is final, in the order of the instructions.
  using OnOutput = std::function<void(size_t output, const c10::IValue& value)>;

  // Runs the program. inputs: its inputs of kind kUser, in order; an input without other owners is
  // freed after its last use. A number may be passed as a tensor with one element. Returns the
  // program's outputs: numbers, None, and tensors that may be modified and may require gradients.
  // Throws c10::Error naming operator, shapes and source line; c10::OutOfMemoryError or
  // std::bad_alloc if memory is exhausted.
  std::vector<c10::IValue> Run(std::vector<c10::IValue> inputs, const OnOutput& on_output = {});

  // Runs a program whose inputs and outputs are all tensors. None is an undefined tensor.
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
