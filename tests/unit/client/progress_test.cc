#include "client/cli/progress.h"

#include <cmath>
#include <string>

#include "gtest/gtest.h"

namespace braid::cli {
namespace {

const Progress kHalfway{.epoch = 2,
                        .epochs = 5,
                        .step = 50,
                        .steps = 100,
                        .loss = 0.43214,
                        .samples_per_second = 1234.4};

TEST(ProgressTest, Line) {
  EXPECT_EQ(FormatLine(kHalfway), "epoch 2/5  step  50/100  loss 0.4321  1234 samples/s");
}

TEST(ProgressTest, BarFillsTheWidthUpToFortyColumns) {
  EXPECT_EQ(FormatBar(kHalfway, 59), "epoch 2/5 [=====>    ]  50/100  loss 0.4321  1234 samples/s");
  EXPECT_EQ(FormatBar(kHalfway, 200), "epoch 2/5 [" + std::string(20, '=') + ">" +
                                          std::string(19, ' ') +
                                          "]  50/100  loss 0.4321  1234 samples/s");
}

TEST(ProgressTest, BarBeginsEmptyAndEndsFull) {
  Progress progress = kHalfway;
  progress.step = 0;
  EXPECT_EQ(FormatBar(progress, 59), "epoch 2/5 [>         ]   0/100  loss 0.4321  1234 samples/s");
  progress.step = 100;
  EXPECT_EQ(FormatBar(progress, 59), "epoch 2/5 [==========] 100/100  loss 0.4321  1234 samples/s");
}

TEST(ProgressTest, NarrowTerminalsLoseTheBarAndThenText) {
  EXPECT_EQ(FormatBar(kHalfway, 50), "epoch 2/5   50/100  loss 0.4321  1234 samples/s");
  EXPECT_EQ(FormatBar(kHalfway, 13), "epoch 2/5   5");
  EXPECT_EQ(FormatBar(kHalfway, 0), "");
  for (int width = 0; width < 120; ++width) {
    EXPECT_LE(FormatBar(kHalfway, width).size(), static_cast<size_t>(width));
  }
}

TEST(ProgressTest, Losses) {
  EXPECT_EQ(FormatLoss(2.302585), "2.3026");
  EXPECT_EQ(FormatLoss(0), "0.0000");
  EXPECT_EQ(FormatLoss(-0.5), "-0.5000");
  EXPECT_EQ(FormatLoss(1.234e-6), "1.234e-06");
  EXPECT_EQ(FormatLoss(123456), "1.235e+05");
  EXPECT_EQ(FormatLoss(NAN), "nan");
  EXPECT_EQ(FormatLoss(INFINITY), "inf");
}

TEST(ProgressTest, Rates) {
  EXPECT_EQ(FormatRate(0), "0.0");
  EXPECT_EQ(FormatRate(5.62), "5.6");
  EXPECT_EQ(FormatRate(98765.4), "98765");
}

}  // namespace
}  // namespace braid::cli
