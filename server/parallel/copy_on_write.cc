#include "server/parallel/copy_on_write.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "ATen/ops/empty.h"
#include "ATen/ops/empty_like.h"
#include "c10/core/GradMode.h"
#include "c10/core/Storage.h"

namespace braid {
namespace {

struct Memory {
  explicit Memory(c10::DataPtr allocated) : data(std::move(allocated)) {}

  const c10::DataPtr data;
  std::atomic<int64_t> readers = 0;  // tensors of ShareMemory()
};

// Context of the storage of `whole`.
struct Owner {
  std::shared_ptr<Memory> current;
  std::shared_ptr<Memory> previous;  // nullptr before LeaveSharedMemory() has copied
};

// Context of the storage of a tensor of ShareMemory().
class Reader {
 public:
  explicit Reader(std::shared_ptr<Memory> memory) : memory_(std::move(memory)) {
    ++memory_->readers;
  }
  ~Reader() { --memory_->readers; }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

 private:
  const std::shared_ptr<Memory> memory_;
};

void DeleteOwner(void* owner) { delete static_cast<Owner*>(owner); }

void DeleteReader(void* reader) { delete static_cast<Reader*>(reader); }

Owner* FindOwner(const c10::Storage& storage) {
  return static_cast<Owner*>(storage.data_ptr().get_deleter() == &DeleteOwner
                                 ? storage.data_ptr().get_context()
                                 : nullptr);
}

// Lets `storage` use owner->current.
void Use(const c10::Storage& storage, Owner* owner) {
  const c10::DataPtr& data = owner->current->data;
  storage.set_data_ptr_noswap(c10::DataPtr(data.get(), owner, &DeleteOwner, data.device()));
}

Owner* MakeOwner(const c10::Storage& storage) {
  auto* owner = new Owner{std::make_shared<Memory>(storage.set_data_ptr(c10::DataPtr())), nullptr};
  Use(storage, owner);
  return owner;
}

bool IsRead(const std::shared_ptr<Memory>& memory) { return memory->readers > 0; }

}  // namespace

at::Tensor ShareMemory(const at::Tensor& whole, const at::Tensor& view) {
  Owner* owner = FindOwner(whole.storage());
  if (owner == nullptr) {
    owner = MakeOwner(whole.storage());
  }
  const c10::DataPtr& data = owner->current->data;
  c10::DataPtr memory(view.data_ptr(), new Reader(owner->current), &DeleteReader, data.device());
  c10::Storage storage(c10::Storage::use_byte_size_t(), view.nbytes(), std::move(memory),
                       /*allocator=*/nullptr, /*resizable=*/false);
  return at::empty({0}, view.options().requires_grad(false))
      .set_(storage, /*storage_offset=*/0, view.sizes(), view.strides());
}

void LeaveSharedMemory(const at::Tensor& whole) {
  const c10::Storage& storage = whole.storage();
  Owner* owner = FindOwner(storage);
  if (owner == nullptr || !IsRead(owner->current)) {
    return;
  }
  const c10::AutoGradMode no_grad(false);
  std::shared_ptr<Memory> next = owner->previous;
  if (next == nullptr || IsRead(next)) {
    const at::Tensor allocated = at::empty_like(whole);
    next = std::make_shared<Memory>(allocated.storage().set_data_ptr(c10::DataPtr()));
  }
  const at::Tensor values = ShareMemory(whole, whole);
  owner->previous = std::exchange(owner->current, std::move(next));
  storage.mutable_data_ptr().release_context();
  Use(storage, owner);
  whole.copy_(values);
}

}  // namespace braid
