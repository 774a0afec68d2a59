// What is larger than a message, cut into messages of at most a mebibyte.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "braid/v1/training.pb.h"
#include "server/training/trainer/operation.h"

namespace braid {

// A file, for DownloadModel.
class FilePieces {
 public:
  using Content = std::string;
  using Piece = braid::v1::DownloadModelResponse;

  explicit FilePieces(std::string file) : file_(std::move(file)) {}

  bool Next(Piece* piece);

 private:
  std::string file_;
  size_t offset_ = 0;
};

// The tensors of a state_dict, for GetStateDict: a piece is of one.
class StatePieces {
 public:
  using Content = std::vector<StateTensor>;
  using Piece = braid::v1::GetStateDictResponse;

  explicit StatePieces(std::vector<StateTensor> state) : state_(std::move(state)) {}

  bool Next(Piece* piece);

 private:
  std::vector<StateTensor> state_;
  size_t tensor_ = 0;
  size_t offset_ = 0;
};

}  // namespace braid
