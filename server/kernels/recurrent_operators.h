// Operators for one direction of a recurrent layer over all time steps, and their gradients.
//
// A graph of an exported pair calls them where it would need an operator per time step and gate.
// The exporter of the Python client defines them with the same schemas and results. Sizes: T steps
// (at least 1), B rows, H units, G gates, and P numbers in the hidden state, which are H without a
// projection. Steps are dim 0 of sequences, in the order of the input.
//
//   steps         [T, B, G*H]: input times the input weight, plus biases. Gates are in PyTorch's
//                 order: 4 of an LSTM, 3 of a GRU, 1 of a simple recurrent layer
//   hidden, cell  [B, P], [B, H]: initial states
//   weight        [G*H, P]: weight of the hidden state, of the dtype of `steps`
//   bias          [G*H]: bias of the hidden state of a GRU, or None
//   projection    [P, H]: of an LSTM's hidden state, or None
//   lengths       int64 [B]: number of steps of each row, or None if all rows have T. Later steps
//                 do not change the row's states
//   reverse       runs from the last step to the first
//   output        [T, B, P]: hidden state after each step
//   gates         [T, B, 4*H], cells [T, B, H]: values for the backward operator
//
// Output and states have the promoted dtype of `steps` and the initial state. Products of matrices
// use the dtype of `steps`. Everything else is computed in float32 if that is bfloat16 or float16;
// `gates` and `cells` have the computed dtype. A gradient that is None is zero. Gradients have the
// dtypes of what they belong to.
//
// The kernels run LibTorch's operators, on any device. They raise c10::Error for wrong shapes.
#pragma once

namespace braid {

// Registers the operators with LibTorch's dispatcher, once per process. Thread-safe.
void RegisterRecurrentOperators();

}  // namespace braid
