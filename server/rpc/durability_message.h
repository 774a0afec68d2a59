// Conversion of the state of a version's files.
#pragma once

#include "braid/v1/model.pb.h"
#include "server/base/durability.h"

namespace braid {

inline braid::v1::Durability ToMessage(Durability durability) {
  switch (durability) {
    case Durability::kNone:
      return braid::v1::DURABILITY_NONE;
    case Durability::kPending:
      return braid::v1::DURABILITY_PENDING;
    case Durability::kDurable:
      return braid::v1::DURABILITY_DURABLE;
    case Durability::kSuperseded:
      return braid::v1::DURABILITY_SUPERSEDED;
    case Durability::kFailed:
      return braid::v1::DURABILITY_FAILED;
  }
  return braid::v1::DURABILITY_UNSPECIFIED;
}

}  // namespace braid
