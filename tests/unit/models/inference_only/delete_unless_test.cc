#include "server/models/inference_only/delete_unless.h"

#include <memory>

#include "gtest/gtest.h"

namespace braid {
namespace {

// Stands for compiled code, whose destructor may call CUDA.
class Compiled {
 public:
  explicit Compiled(int* destroyed) : destroyed_(destroyed) {}
  ~Compiled() { ++*destroyed_; }
  Compiled(const Compiled&) = delete;
  Compiled& operator=(const Compiled&) = delete;

 private:
  int* const destroyed_;
};

TEST(DeleteUnlessTest, DeletesObject) {
  int destroyed = 0;
  {
    const std::unique_ptr<Compiled, DeleteUnless<Compiled>> owner(
        new Compiled(&destroyed), DeleteUnless<Compiled>{[] { return false; }});
  }
  EXPECT_EQ(destroyed, 1);
}

TEST(DeleteUnlessTest, KeepsObjectOfLostDevice) {
  int destroyed = 0;
  auto* const compiled = new Compiled(&destroyed);
  bool lost = false;
  {
    const std::unique_ptr<Compiled, DeleteUnless<Compiled>> owner(
        compiled, DeleteUnless<Compiled>{[&] { return lost; }});
    lost = true;
  }
  EXPECT_EQ(destroyed, 0);
  delete compiled;
}

}  // namespace
}  // namespace braid
