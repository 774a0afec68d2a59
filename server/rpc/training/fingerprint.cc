#include "server/rpc/training/fingerprint.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <memory>
#include <string>

#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"

namespace braid {
namespace {

// Output stream that hashes serialized bytes instead of storing them.
class HashingOutput final : public google::protobuf::io::CopyingOutputStream {
 public:
  explicit HashingOutput(XXH3_state_t* state) : state_(state) {}
  bool Write(const void* buffer, int size) override {
    return XXH3_128bits_update(state_, buffer, static_cast<size_t>(size)) == XXH_OK;
  }

 private:
  XXH3_state_t* const state_;
};

}  // namespace

Fingerprint FingerprintOf(const google::protobuf::Message& request) {
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(),
                                                                       &XXH3_freeState);
  XXH3_128bits_reset(state.get());
  const std::string& type = request.GetDescriptor()->full_name();
  XXH3_128bits_update(state.get(), type.data(), type.size());
  {
    HashingOutput hash(state.get());
    google::protobuf::io::CopyingOutputStreamAdaptor adaptor(&hash);
    google::protobuf::io::CodedOutputStream stream(&adaptor);
    stream.SetSerializationDeterministic(true);
    request.SerializeToCodedStream(&stream);
  }
  const XXH128_hash_t digest = XXH3_128bits_digest(state.get());
  return {digest.low64, digest.high64};
}

}  // namespace braid
