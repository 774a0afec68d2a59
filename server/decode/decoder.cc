#include "server/decode/decoder.h"

#include <variant>

#include "server/base/status.h"
#include "server/decode/image/image_decoder.h"

namespace braid {

absl::StatusOr<std::shared_ptr<const Decoder>> MakeDecoder(
    const DecodeSpec& spec, const std::vector<std::string>& /*directories*/,
    absl::string_view field) {
  if (const auto* image = std::get_if<ImageSpec>(&spec)) {
    return MakeImageDecoder(*image, field);
  }
  return InvalidField(field, "this build decodes images only");
}

}  // namespace braid
