#include "server/models/inference_only/aoti_ranges.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gtest/gtest.h"

namespace braid {
namespace {

constexpr char kWrapper[] = R"(
extern "C" void cpp_fused_embedding_0(const int64_t* in_ptr0,
                       const float* in_ptr1,
                       float* out_ptr0,
                       const int64_t ks0);
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(arg4_1, &arg4_1_dtype));
    auto arg4_1 = std::move(inputs[0]);
    [[maybe_unused]] auto& e_weight = constants_->at(0);
    cpp_fused_embedding_0((const int64_t*)(arg4_1.data_ptr()), (const float*)(e_weight.data_ptr()), (float*)(buf0.data_ptr()), s77);
)";

// Returns a kernel in the format of PyTorch's code generator, with `body` in its loops.
std::string Kernel(const std::string& rows, const std::string& body) {
  return absl::StrCat(R"(
extern "C"  void  cpp_fused_embedding_0(const int64_t* in_ptr0,
                       const float* in_ptr1,
                       float* out_ptr0,
                       const int64_t ks0)
{
        for(int64_t x0=static_cast<int64_t>(0L); x0<static_cast<int64_t>()",
                      rows, R"(); x0+=static_cast<int64_t>(1L))
        {
            for(int64_t x1=static_cast<int64_t>(0L); x1<static_cast<int64_t>(3L); x1+=static_cast<int64_t>(1L))
            {
)",
                      body, "\n}\n}\n}\n");
}

// Returns code that looks up an element in an embedding of `size` rows. Values are numbered from
// `first`.
std::string Lookup(const std::string& element, int size, int first = 0) {
  const auto tmp = [first](int n) { return absl::StrCat("tmp", first + n); };
  return absl::StrReplaceAll(R"(
                        auto T0 = in_ptr0[static_cast<int64_t>(ELEMENT)];
                        auto T1 = SIZE;
                        auto T2 = c10::convert<int64_t>(T1);
                        auto T3 = int64_t(T0 + T2);
                        auto T4 = T0 < 0;
                        auto T5 = T4 ? T3 : T0;
                        auto T6 = T5;
                        auto T7 = c10::convert<int64_t>(T6);
                        AOTI_TORCH_CHECK((0 <= T7) & (T7 < SIZE), "index out of bounds: 0 <= T7 < SIZE");
                        auto T9 = in_ptr1[static_cast<int64_t>(x1 + 3L*T5)];
)",
                             {{"ELEMENT", element},
                              {"SIZE", absl::StrCat(size, "L")},
                              {"T0", tmp(0)},
                              {"T1", tmp(1)},
                              {"T2", tmp(2)},
                              {"T3", tmp(3)},
                              {"T4", tmp(4)},
                              {"T5", tmp(5)},
                              {"T6", tmp(6)},
                              {"T7", tmp(7)},
                              {"T9", tmp(9)}});
}

PackageDim Any() { return {2, 1000}; }
PackageDim Of(int64_t size) { return {size, size}; }

// Returns the maximum index of an input of `dims`, and true if negative ones are accepted.
std::pair<std::optional<int64_t>, bool> Found(const std::vector<PackageDim>& dims,
                                              const std::string& kernels,
                                              const std::string& wrapper = kWrapper,
                                              DataType type = DataType::kInt64) {
  std::vector<PackageInput> inputs = {{"words", type, dims}};
  const bool unchecked = FindAotiEmbeddingRanges(wrapper, kernels, &inputs);
  const auto& range = inputs[0].range;
  EXPECT_EQ(range ? range->min : 0, 0);
  return {range ? std::optional(range->max) : std::nullopt, unchecked};
}

using Result = std::pair<std::optional<int64_t>, bool>;
const Result kUnchecked = {std::nullopt, true};

TEST(AotiRangesTest, FindsRangeOfInputThatIsUsedWhole) {
  EXPECT_EQ(Found({Any(), Of(5)}, Kernel("5L*ks0", Lookup("x0", 20))), Result(19, false));
  EXPECT_EQ(Found({Any()}, Kernel("ks0", Lookup("x0", 20))), Result(19, false));
  EXPECT_EQ(Found({Any(), Any()}, Kernel("ks0*ks1", Lookup("x0", 20))), Result(19, false));
  EXPECT_EQ(Found({Of(4)}, Kernel("4L", Lookup("x0", 20))), Result(19, false));
  EXPECT_EQ(Found({Any(), Of(3)}, Kernel("ks0", Lookup("x1 + 3L*x0", 20))), Result(19, false));
  // The loop over columns is unrolled.
  EXPECT_EQ(
      Found({Any(), Of(2)}, Kernel("ks0", Lookup("2L*x0", 20) + Lookup("1L + 2L*x0", 20, 10))),
      Result(19, false));
}

TEST(AotiRangesTest, UsesTheSmallestEmbedding) {
  EXPECT_EQ(Found({Any()}, Kernel("ks0", Lookup("x0", 20) + Lookup("x0", 7, 10))),
            Result(6, false));
  // A slice is used with a smaller embedding, which the kernel itself checks.
  EXPECT_EQ(Found({Any(), Of(2)}, Kernel("ks0", Lookup("2L*x0", 5) + Lookup("2L*x0", 20, 10) +
                                                    Lookup("1L + 2L*x0", 20, 20))),
            Result(19, false));
}

TEST(AotiRangesTest, IgnoresSlices) {
  EXPECT_EQ(Found({Any(), Of(5)}, Kernel("ks0", Lookup("5L*x0", 20))), kUnchecked);
  EXPECT_EQ(Found({Any(), Of(5)}, Kernel("ks0", Lookup("x1 + 5L*x0", 20))), kUnchecked);
  EXPECT_EQ(
      Found({Any(), Of(2)}, Kernel("ks0", Lookup("2L*x0", 20) + Lookup("1L + 2L*x0", 30, 10))),
      kUnchecked);
  EXPECT_EQ(Found({Any(), Of(5)}, Kernel("5L*ks0", Lookup("x0 + x1", 20))), kUnchecked);
  EXPECT_EQ(Found({Any(), Any()}, Kernel("ks0", Lookup("x0", 20))), kUnchecked);
}

TEST(AotiRangesTest, IgnoresComputedIndices) {
  const std::string padded = absl::StrReplaceAll(
      Lookup("x0", 20), {{"auto tmp3 = int64_t(tmp0 + tmp2);",
                          "auto tmp30 = tmp0 == tmp1;\nauto tmp0 = tmp30 ? tmp1 : tmp0;\n"
                          "auto tmp3 = int64_t(tmp0 + tmp2);"}});
  EXPECT_EQ(Found({Any()}, Kernel("ks0", padded)).first, std::nullopt);
}

TEST(AotiRangesTest, IgnoresModifiedInputs) {
  const std::string written =
      absl::StrCat(kWrapper, "    cpp_fused_eq_1((int64_t*)(arg4_1.data_ptr()), s77);\n");
  EXPECT_EQ(Found({Any()}, Kernel("ks0", Lookup("x0", 20)), written), kUnchecked);
  const std::string by_operator =
      absl::StrCat(kWrapper, "    aoti_torch_cpu_index_put_out(arg4_1, buf1, buf2);\n");
  EXPECT_EQ(Found({Any()}, Kernel("ks0", Lookup("x0", 20)), by_operator), kUnchecked);
}

TEST(AotiRangesTest, AllowsNegativeIndicesOutsideOfEmbeddings) {
  const auto other = [](const std::string& source) {
    return absl::StrReplaceAll(source, {{"cpp_fused_embedding_0", "cpp_fused_index_0"}});
  };
  EXPECT_EQ(Found({Any()}, other(Kernel("ks0", Lookup("x0", 20))), other(kWrapper)),
            Result(std::nullopt, false));
}

TEST(AotiRangesTest, FollowsConversionsOfIntegers) {
  const std::string converted =
      absl::StrReplaceAll(Lookup("x0", 20), {{"auto tmp0 = in_ptr0[static_cast<int64_t>(x0)];",
                                              "auto tmp40 = in_ptr0[static_cast<int64_t>(x0)];\n"
                                              "auto tmp0 = c10::convert<int64_t>(tmp40);"}});
  const std::string wrapper =
      absl::StrReplaceAll(kWrapper, {{"(const int64_t*)(arg", "(const int32_t*)(arg"}});
  EXPECT_EQ(Found({Any()}, Kernel("ks0", converted), wrapper, DataType::kInt32), Result(19, false));
}

// 16 indices at once, as for an embedding with one column.
TEST(AotiRangesTest, FollowsVectorizedIndices) {
  constexpr char kVectors[] = R"(
                    auto tmp0 = at::vec::VectorizedN<int64_t,2>::loadu(in_ptr0 + static_cast<int64_t>(x0), static_cast<int64_t>(16));
                    auto tmp1 = 50L;
                    auto tmp2 = c10::convert<int64_t>(tmp1);
                    auto tmp3 = at::vec::VectorizedN<int64_t,2>(tmp2);
                    auto tmp4 = tmp0 + tmp3;
                    auto tmp7 = at::vec::VecMask<int64_t,2>(tmp0 < tmp6);
                    auto tmp8 = decltype(tmp4)::blendv(tmp0, tmp4, tmp7.template cast<int64_t,2>());
                    auto tmp9 =
                    [&]
                    {
                        __at_align__ std::array<int64_t, 16> tmpbuf;
                        tmp8.store(tmpbuf.data(), static_cast<int64_t>(16));
                        return tmpbuf;
                    }
                    ()
                    ;
                    auto tmp10 =
                    [&]
                    {
                        __at_align__ std::array<int64_t, 16> tmpbuf;
                        for (long x0_inner = 0; x0_inner < static_cast<int64_t>(16); x0_inner++)
                        {
                            tmpbuf[x0_inner] = static_cast<int64_t>(tmp9[x0_inner]);
                        }
                        return at::vec::VectorizedN<int64_t,2>::loadu(tmpbuf.data(), static_cast<int64_t>(16));
                    }
                    ()
                    ;
                    AOTI_TORCH_CHECK((at::vec::VecMask<int64_t,2>((at::vec::VectorizedN<int64_t,2>(0) <= tmp10) & (tmp10 < at::vec::VectorizedN<int64_t,2>(50L)))).all_masked(), "index out of bounds: 0 <= tmp10 < 50L");
)";
  EXPECT_EQ(Found({Any(), Of(5)}, Kernel("5L*ks0", kVectors)), Result(49, false));
}

// Code that braid.export generates for embeddings.
TEST(AotiRangesTest, ReportsOnlyWrappedIndicesAsUnchecked) {
  constexpr char kPlain[] = R"(
                        auto tmp0 = in_ptr0[static_cast<int64_t>(5L*x0)];
                        auto tmp1 = tmp0;
                        auto tmp2 = c10::convert<int64_t>(tmp1);
                        AOTI_TORCH_CHECK((0 <= tmp2) & (tmp2 < 20L), "index out of bounds: 0 <= tmp2 < 20L");
)";
  EXPECT_EQ(Found({Any(), Of(5)}, Kernel("ks0", kPlain)), Result(std::nullopt, false));
}

TEST(AotiRangesTest, IgnoresOtherText) {
  for (const char* text : {"", "extern \"C\"", "extern \"C\" void cpp_fused_embedding_0(",
                           "extern \"C\" void cpp_fused_embedding_0()\n\"index out of bounds: 0 <= "
                           "tmp1 < 3L\""}) {
    EXPECT_EQ(Found({Any()}, text), Result(std::nullopt, false)) << text;
  }
}

}  // namespace
}  // namespace braid
