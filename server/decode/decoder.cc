#include "server/decode/decoder.h"

#include <variant>

#include "server/decode/image/image_decoder.h"
#include "server/decode/text_decoder.h"

namespace braid {

absl::StatusOr<std::shared_ptr<const Decoder>> MakeDecoder(
    const DecodeSpec& spec, const std::vector<std::string>& directories, absl::string_view field) {
  if (const auto* image = std::get_if<ImageSpec>(&spec)) {
    return MakeImageDecoder(*image, field);
  }
  return MakeTextDecoder(std::get<TextSpec>(spec), directories, field);
}

}  // namespace braid
