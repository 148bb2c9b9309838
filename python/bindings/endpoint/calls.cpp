#include "bindings/endpoint/calls.h"

#include <mutex>

#include "platform/fork.h"

namespace shmtree::python {

constinit thread_local std::uint32_t t_calls = 0;

namespace {

platform::ForkSafeMutex list_mutex;  // whole in children
Calls* first = nullptr;

}  // namespace

void Calls::list() noexcept {
  const std::lock_guard guard(list_mutex);
  if (listed_) return;
  listed_ = true;
  previous_ = nullptr;
  next_ = first;
  if (first != nullptr) first->previous_ = this;
  first = this;
}

void Calls::unlist() noexcept {
  const std::lock_guard guard(list_mutex);
  if (!listed_) return;
  listed_ = false;
  (previous_ != nullptr ? previous_->next_ : first) = next_;
  if (next_ != nullptr) next_->previous_ = previous_;
}

// There is no other thread, and the mutex may still be held for the fork.
void Calls::begin_again() noexcept {
  if (t_calls != 0) return;
  for (Calls* each = first; each != nullptr; each = each->next_) each->count_ = 0;
}

bool init_calls() {
  if (platform::call_in_children(&Calls::begin_again)) return true;
  PyErr_NoMemory();
  return false;
}

}  // namespace shmtree::python
