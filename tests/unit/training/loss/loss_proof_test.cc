#include "server/training/loss/loss_proof.h"

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "c10/core/GradMode.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/devices/random.h"
#include "tests/fakes/status_matchers.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Function = std::function<at::Tensor(const at::Tensor& output, const at::Tensor& target)>;

constexpr auto kFailed = absl::StatusCode::kFailedPrecondition;

at::Tensor Normal(at::IntArrayRef shape) {
  const RandomSeedGuard random(c10::kCPU, 3);
  return at::randn(shape, at::kDouble);
}

absl::Status Prove(const Function& loss, const at::Tensor& outputs, const at::Tensor& targets,
                   Reduction reduction = Reduction::kMean) {
  return ProveParts(
      [&](const at::Tensor& output, const at::Tensor& target) -> absl::StatusOr<at::Tensor> {
        return loss(output, target);
      },
      outputs, targets, reduction, /*gradients=*/true);
}

at::Tensor Indices() { return at::arange(9, at::kLong).remainder(4); }

at::Tensor CrossEntropy(const at::Tensor& output, const at::Tensor& target) {
  return at::cross_entropy_loss(output, target);
}

at::Tensor Dice(const at::Tensor& output, const at::Tensor& target) {
  const at::Tensor p = output.sigmoid();
  return 1 - (2 * (p * target).sum() + 1) / (p.sum() + target.sum() + 1);
}

at::Tensor MaskedMean(const at::Tensor& output, const at::Tensor& target) {
  const at::Tensor mask = target.gt(0).to(at::kDouble);
  return ((output - target).square() * mask).sum() / mask.sum();
}

at::Tensor Sum(const at::Tensor& output, const at::Tensor& target) {
  return (output - target).square().sum();
}

TEST(ProvePartsTest, AcceptsMeansOverRows) {
  const at::Tensor x = Normal({5, 3});
  const at::Tensor y = Normal({9, 3});
  EXPECT_THAT(Prove([](const auto& o, const auto& t) { return at::mse_loss(o, t); }, x, y), IsOk());
  EXPECT_THAT(Prove([](const auto& o, const auto& t) { return at::huber_loss(o, t); }, x, y),
              IsOk());
  EXPECT_THAT(Prove(CrossEntropy, Normal({5, 4}), Indices()), IsOk());
  // Segmentation: indices [rows, 2, 2] of outputs [rows, 3, 2, 2].
  EXPECT_THAT(Prove(CrossEntropy, Normal({5, 3, 2, 2}),
                    at::arange(36, at::kLong).remainder(3).view({9, 2, 2})),
              IsOk());
  const auto probabilities = [](const at::Tensor& o, const at::Tensor& t) {
    return at::binary_cross_entropy(o, t);
  };
  EXPECT_THAT(Prove(probabilities, x.sigmoid(), y.gt(0).to(at::kDouble)), IsOk());
  // Dice of each row by itself.
  const auto by_row = [](const at::Tensor& o, const at::Tensor& t) {
    return (1 - 2 * (o.sigmoid() * t).sum(1) / (o.sigmoid().sum(1) + t.sum(1) + 1)).mean();
  };
  EXPECT_THAT(Prove(by_row, x, y.gt(0).to(at::kDouble)), IsOk());
  EXPECT_THAT(
      Prove([](const auto& o, const auto& t) { return at::mse_loss(o, t); }, x[0].view({1, 3}), y),
      IsOk());
  EXPECT_THAT(Prove([](const auto& o,
                       const auto& t) { return at::mse_loss(o.to(at::kFloat), t.to(at::kFloat)); },
                    x, y),
              IsOk());
}

TEST(ProvePartsTest, TermsMayCancelEachOther) {
  const auto linear = [](const at::Tensor& o, const at::Tensor& t) { return (o * t).mean(); };
  EXPECT_THAT(Prove(linear, Normal({5, 300000}).to(at::kFloat), Normal({9, 300000}).to(at::kFloat)),
              IsOk());
}

TEST(ProvePartsTest, RefusesLossesThatLookAcrossRows) {
  const at::Tensor x = Normal({5, 3});
  const at::Tensor y = Normal({9, 3});
  const at::Tensor bits = y.gt(0).to(at::kDouble);
  const std::vector<Function> losses = {
      Dice,
      MaskedMean,
      Sum,
      [](const at::Tensor& o, const at::Tensor& t) { return at::mse_loss(o, t).sqrt(); },
      [](const at::Tensor& o, const at::Tensor& t) { return (o - t).square().max(); },
      [](const at::Tensor& o, const at::Tensor& t) {
        return at::mse_loss(o, t) + o.std(0, /*unbiased=*/false).sum();
      },
      // In-batch negatives.
      [](const at::Tensor& o, const at::Tensor& t) {
        return at::cross_entropy_loss(o.mm(t.t()), at::arange(o.size(0), at::kLong));
      },
      [](const at::Tensor& o, const at::Tensor& t) {
        return (o - t).square().sum() / static_cast<double>(o.size(0) - 1);
      },
      // Its value is a mean over rows, its gradient is not.
      [](const at::Tensor& o, const at::Tensor& t) {
        return at::mse_loss(o.detach(), t) + (o - o.detach()).sum();
      },
  };
  for (const Function& loss : losses) {
    EXPECT_THAT(
        Prove(loss, x, bits),
        StatusIs(kFailed, AllOf(HasSubstr(" rows make "), HasSubstr("expected a mean over rows"),
                                HasSubstr("use loss_mode central"))))
        << &loss - losses.data();
  }
}

TEST(ProvePartsTest, AValueInOneRowOfManyIsTried) {
  const at::Tensor targets = at::arange(1000, at::kLong).remainder(4);
  const at::Tensor outputs = Normal({250, 4});
  EXPECT_THAT(Prove(CrossEntropy, outputs, targets), IsOk());
  targets[777] = -100;  // ignored
  EXPECT_THAT(Prove(CrossEntropy, outputs, targets),
              StatusIs(kFailed, HasSubstr("mean over rows")));
}

TEST(ProvePartsTest, RowsThatHaveMasksAlikeDoNotHideAMaskedMean) {
  at::Tensor targets = at::ones({8, 4}, at::kDouble);
  targets.select(1, 3).fill_(0);
  EXPECT_THAT(Prove(MaskedMean, Normal({4, 4}), targets), StatusIs(kFailed, HasSubstr("rows")));
  EXPECT_THAT(Prove(MaskedMean, Normal({4, 4}), at::ones({8, 4}, at::kDouble)),
              StatusIs(kFailed, HasSubstr("rows")));
}

TEST(ProvePartsTest, ASumIsOneOfSums) {
  const at::Tensor x = Normal({5, 3});
  const at::Tensor y = Normal({9, 3});
  EXPECT_THAT(Prove(Sum, x, y, Reduction::kSum), IsOk());
  EXPECT_THAT(Prove(Sum, x, y),
              StatusIs(kFailed, HasSubstr("or reduction sum for a sum over rows")));
  EXPECT_THAT(
      Prove([](const auto& o, const auto& t) { return at::mse_loss(o, t); }, x, y, Reduction::kSum),
      StatusIs(kFailed, HasSubstr("expected a sum over rows")));
}

TEST(ProvePartsTest, ARandomLossIsNotCompared) {
  const auto noisy = [](const at::Tensor& o, const at::Tensor& t) {
    return at::mse_loss(o + at::randn_like(o), t);
  };
  EXPECT_THAT(Prove(noisy, Normal({5, 3}), Normal({9, 3})), IsOk());
}

TEST(ProvePartsTest, WhatIsNotFiniteProvesNothing) {
  const auto nan = [](const at::Tensor& o, const at::Tensor& t) {
    return (o - t).sum() * std::numeric_limits<double>::quiet_NaN();
  };
  EXPECT_THAT(Prove(nan, Normal({5, 3}), Normal({9, 3})), IsOk());
  // Rows of NaN are no reason to refuse a mean.
  const at::Tensor targets = Normal({9, 3});
  targets[4].fill_(std::numeric_limits<double>::quiet_NaN());
  EXPECT_THAT(Prove([](const auto& o, const auto& t) { return at::mse_loss(o, t); }, Normal({5, 3}),
                    targets),
              IsOk());
}

TEST(ProvePartsTest, AnErrorOnTheFirstRowsIsTheLosses) {
  const auto fails = [](const at::Tensor&, const at::Tensor&) -> absl::StatusOr<at::Tensor> {
    return absl::InvalidArgumentError("too few rows");
  };
  EXPECT_THAT(ProveParts(fails, Normal({5, 3}), Normal({9, 3}), Reduction::kMean, true),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("too few rows")));
}

TEST(ProvePartsTest, HalfPrecisionIsNoDifference) {
  for (const at::ScalarType type : {at::kHalf, at::kBFloat16}) {
    const auto mse = [](const at::Tensor& o, const at::Tensor& t) {
      return at::mse_loss(o.to(at::kFloat), t.to(at::kFloat)).to(o.scalar_type());
    };
    EXPECT_THAT(Prove(mse, Normal({40, 30}).to(type), Normal({90, 30}).to(type)), IsOk()) << type;
    EXPECT_THAT(Prove([&](const auto& o, const auto& t) { return mse(o, t) * o.size(0); },
                      Normal({40, 30}).to(type), Normal({90, 30}).to(type)),
                StatusIs(kFailed, HasSubstr("rows")));
  }
}

TEST(ProvePartsTest, BooleanAndEmptyTargets) {
  const auto bce = [](const at::Tensor& o, const at::Tensor& t) {
    return at::binary_cross_entropy_with_logits(o, t.to(o.scalar_type()));
  };
  EXPECT_THAT(Prove(bce, Normal({5, 3}), Normal({9, 3}).gt(0)), IsOk());
  EXPECT_THAT(Prove([](const auto& o, const auto& t) { return Dice(o, t.to(at::kDouble)); },
                    Normal({5, 3}), Normal({9, 3}).gt(0)),
              StatusIs(kFailed, HasSubstr("rows")));
  EXPECT_THAT(Prove(bce, Normal({5, 0}), Normal({9, 0})), IsOk());
}

}  // namespace
}  // namespace braid
