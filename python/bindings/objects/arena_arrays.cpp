#include "bindings/objects/arena_arrays.h"

#include <pybind11/pybind11.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <utility>

#include "bindings/cpython/errors.h"
#include "bindings/cpython/exclusive.h"
#include "bindings/cpython/gil.h"
#include "bindings/cpython/wait_hooks.h"
#include "platform/copy.h"
#include "platform/never_destroyed.h"
#include "shared_array/versions.h"

namespace shmtree::python {
namespace {

// This deleter distinguishes the holds of this file from all others.
struct DeleteHeld {
  void operator()(HeldBlock* held) const noexcept { delete held; }
};

std::atomic<PyObject*> pin_callback{nullptr};

// Returns false with a Python error set.
bool note_pinned(const memory::Lease& block) {
  memory::Arena& arena = *block.arena();
  PyObject* callback = pin_callback.load(std::memory_order_acquire);
  if (!callback || !arena.participants().is_pinned_here()) return true;
  const auto* uuid = reinterpret_cast<const char*>(arena.uuid());
  const auto address = static_cast<unsigned long long>(reinterpret_cast<std::uintptr_t>(block.data()));
  const auto available = static_cast<unsigned long long>(arena.blocks().capacity_of(block.ref().id));
  Ref done(without_unwinding(
      [=] { return PyObject_CallFunction(callback, "y#KK", uuid, Py_ssize_t{16}, address, available); }));
  return static_cast<bool>(done);
}

// Protects own_blocks(): the blocks of new_empty(), by address.
Mutex own_blocks_mutex;
std::map<const std::byte*, ViewOwner*>& own_blocks() {
  return platform::never_destroyed<std::map<const std::byte*, ViewOwner*>>();
}

// Visits the array, and each array along its `base` chain up to the owner.
template <class Visit>
void for_each_base(PyArrayObject* array, Visit visit) {
  for (PyObject* at = reinterpret_cast<PyObject*>(array); at && PyArray_Check(at); at = PyArray_BASE(as_array(at))) {
    visit(as_array(at));
  }
}

struct Plan {
  Ref descr{};
  int ndim = 0;
  npy_intp shape[NPY_MAXDIMS]{};
  std::size_t bytes = 0;
  bool fortran = false;
};

bool plan_array(PyObject* shape, PyObject* dtype, std::string_view order, Plan& plan) {
  PyArray_Descr* descr = nullptr;
  if (PyArray_DescrConverter(dtype, &descr) != NPY_SUCCEED) return false;
  plan.descr = Ref(reinterpret_cast<PyObject*>(descr));
  if (PyDataType_REFCHK(descr)) {
    PyErr_Format(PyExc_TypeError, "dtype %R contains Python objects, which other processes cannot read",
                 plan.descr.get());
    return false;
  }
  if (order != "C" && order != "F") {
    Ref text(PyUnicode_FromStringAndSize(order.data(), static_cast<Py_ssize_t>(order.size())));
    if (text) PyErr_Format(PyExc_ValueError, "order is %R; it must be 'C' or 'F'", text.get());
    return false;
  }
  plan.fortran = order == "F";
  PyArray_Dims dims{nullptr, 0};
  if (PyArray_IntpConverter(shape, &dims) != NPY_SUCCEED) return false;
  plan.ndim = dims.len;
  std::copy_n(dims.ptr, dims.len, plan.shape);
  PyDimMem_FREE(dims.ptr);
  std::size_t bytes = static_cast<std::size_t>(PyDataType_ELSIZE(descr));
  bool too_many = false, empty = false;
  for (int i = 0; i < plan.ndim; ++i) {
    if (plan.shape[i] < 0) {
      PyErr_SetString(PyExc_ValueError, "negative dimensions are not allowed");
      return false;
    }
    empty = empty || plan.shape[i] == 0;
    too_many = __builtin_mul_overflow(bytes, static_cast<std::size_t>(plan.shape[i]), &bytes) || too_many;
  }
  if (too_many && !empty) bytes = SIZE_MAX / 2;  // larger than any budget
  plan.bytes = empty ? 0 : bytes;
  return true;
}

PyObject* make_array(Plan& plan, void* data) {
  const int flags = data ? NPY_ARRAY_WRITEABLE | (plan.fortran ? NPY_ARRAY_F_CONTIGUOUS : 0)
                         : (plan.fortran ? NPY_ARRAY_F_CONTIGUOUS : 0);
  return PyArray_NewFromDescr(&PyArray_Type, reinterpret_cast<PyArray_Descr*>(plan.descr.release()), plan.ndim,
                              plan.shape, nullptr, data, flags, nullptr);
}

// Allocates a block of `bytes` for a planned array, which starts at its beginning.
Result<memory::Lease> new_lease(memory::Arena& arena, const Plan& plan, std::uint64_t bytes, bool zeroed,
                                platform::WaitHooks& hooks) {
  auto block = arena.allocate(bytes, memory::BlockKind::kArray, {platform::Deadline::never(), &hooks});
  if (!block) return std::move(block).error();
  auto lease = arena.hold_new(std::move(*block));
  if (lease && zeroed) {
    const WithoutGil unlocked(plan.bytes > platform::kLongCopyBytes);
    std::memset(lease->data(), 0, plan.bytes);
  }
  return lease;
}

PyObject* array_on_lease(Plan& plan, memory::Lease block, bool shared, bool gift) {
  const std::size_t bytes = plan.bytes;
  std::byte* data = block.data();
  Ref owner(new_block_owner(std::move(block), false, bytes, shared));
  if (!owner) return nullptr;
  held_block(*as_view_owner(owner.get()))->gift = gift;
  Ref array(make_array(plan, data));
  if (!array || PyArray_SetBaseObject(as_array(array.get()), owner.release()) != 0) return nullptr;
  return array.release();
}

}  // namespace

HeldBlock::~HeldBlock() {
  if (!known_at) return;
  const std::lock_guard guard(own_blocks_mutex);
  own_blocks().erase(known_at);
}

void set_pin_callback(PyObject* callback) {
  pin_callback = Py_XNewRef(callback);
}

PyObject* new_block_owner(memory::Lease block, bool received, std::size_t array_bytes, bool shared) {
  if (!note_pinned(block)) return nullptr;
  std::byte* data = block.data();
  const std::size_t bytes = block.bytes();
  auto held = std::unique_ptr<HeldBlock>(new HeldBlock{std::move(block), received, shared, array_bytes});
  HeldBlock* raw = held.get();
  Ref owner(new_view_owner(std::shared_ptr<void>(held.release(), DeleteHeld{}), data, bytes, true));
  if (owner && !received && !shared) {
    const std::lock_guard guard(own_blocks_mutex);
    own_blocks()[data] = as_view_owner(owner.get());
    raw->known_at = data;
  }
  return owner.release();
}

PyObject* new_received_owner(memory::Lease block, MayBeNacked may_be_nacked) {
  Ref owner(new_block_owner(std::move(block), true, 0));
  if (owner) held_block(*as_view_owner(owner.get()))->may_be_nacked = std::move(may_be_nacked);
  return owner.release();
}

HeldBlock* held_block(const ViewOwner& owner) noexcept {
  // The type of the deleter identifies a HeldBlock: only this file uses it.
  const auto* mine = owner.hold ? std::get_deleter<DeleteHeld>(owner.hold) : nullptr;
  return mine ? static_cast<HeldBlock*>(owner.hold.get()) : nullptr;
}

// The caller has memory in the block and so keeps its owner, which makes the result safe to use.
ViewOwner* find_view_owner(const void* address) noexcept {
  const std::lock_guard guard(own_blocks_mutex);
  const auto& blocks = own_blocks();
  auto next = blocks.upper_bound(static_cast<const std::byte*>(address));
  if (next == blocks.begin()) return nullptr;
  ViewOwner* owner = std::prev(next)->second;
  return static_cast<const std::byte*>(address) < owner->data + owner->size_bytes ? owner : nullptr;
}

PyObject* new_array(const std::shared_ptr<memory::Arena>& arena, const ArrayRequest& request,
                    platform::WaitHooks& hooks) {
  Plan plan;
  if (!plan_array(request.shape, request.dtype, request.order, plan)) return nullptr;
  if (plan.bytes == 0) return make_array(plan, nullptr);
  auto lease = new_lease(*arena, plan, plan.bytes, request.zeroed, hooks);
  if (!lease) return raise(lease.error());
  return array_on_lease(plan, std::move(*lease), false, request.gift);
}

PyObject* new_shared_array(const std::shared_ptr<memory::Arena>& arena, PyObject* shape, PyObject* dtype,
                           platform::WaitHooks& hooks) {
  Plan plan;
  if (!plan_array(shape, dtype, "C", plan)) return nullptr;
  if (plan.bytes == 0) return make_array(plan, nullptr);
  auto lease = new_lease(*arena, plan, shared_array::Versions::block_bytes(plan.bytes), true, hooks);
  if (!lease) return raise(lease.error());
  shared_array::Versions::init(lease->data(), plan.bytes);
  return array_on_lease(plan, std::move(*lease), true, false);
}

bool show(PyArrayObject* array) {
  ViewOwner* owner = view_owner_of(array);
  HeldBlock* held = owner ? held_block(*owner) : nullptr;
  if (!held || held->received || held->shared) return false;
  const CriticalSection alone(reinterpret_cast<PyObject*>(owner));
  if (held->claims.are_given(nullptr)) return false;
  held->shown = true;
  return true;
}

PyObject* array_on(memory::Lease block, PyObject* shape, PyObject* dtype, std::string_view order) {
  Plan plan;
  if (!plan_array(shape, dtype, order, plan)) return nullptr;
  if (plan.bytes > block.bytes()) {
    PyErr_Format(PyExc_ValueError, "an array of %zu bytes does not fit the block of %llu bytes", plan.bytes,
                 static_cast<unsigned long long>(block.bytes()));
    return nullptr;
  }
  return array_on_lease(plan, std::move(block), true, false);
}

LoanBook::~LoanBook() {
  start_over();
}

void LoanBook::start_over() {
  blocks_.clear();
  if (lent_.empty()) return;
  for (const Lent& lent : lent_) {
    const CriticalSection alone(reinterpret_cast<PyObject*>(lent.owner));
    held_block(*lent.owner)->claims.withdraw(this);
  }
  // Dropping the last reference to an array may run any Python code.
  const std::vector<Lent> ended = std::exchange(lent_, {});
  for (const Lent& lent : ended) Py_DECREF(lent.array);
}

Ref LoanBook::home() const {
  return Ref(PyBytes_FromStringAndSize(reinterpret_cast<const char*>(arena_.uuid()), 16));
}

std::uint32_t LoanBook::reference_to(memory::BlockRef block) {
  const auto found = std::find(blocks_.begin(), blocks_.end(), block);
  const auto index = static_cast<std::uint32_t>(found - blocks_.begin());
  if (found == blocks_.end()) blocks_.push_back(block);
  return index;
}

bool LoanBook::resolve(PyArrayObject* array, const void* data, std::size_t size_bytes, Loan* out) {
  ViewOwner* owner = array ? view_owner_of(array) : find_view_owner(data);
  HeldBlock* held = owner ? held_block(*owner) : nullptr;
  if (!held) return false;
  const CriticalSection alone(reinterpret_cast<PyObject*>(owner));
  if (held->shared || held->block.arena().get() != &arena_) return false;
  if (!held->claims.are_ours()) return false;
  const auto* begin = static_cast<const std::byte*>(data);
  if (begin < owner->data || size_bytes > owner->size_bytes) return false;
  const endpoint::ByteRange range{static_cast<std::size_t>(begin - owner->data),
                                  static_cast<std::size_t>(begin - owner->data) + size_bytes};
  if (range.end > owner->size_bytes) return false;
  const bool writable = !held->shown && (!array || PyArray_ISWRITEABLE(array));
  const bool may_be_nacked = held->may_be_nacked && held->may_be_nacked->load(std::memory_order_acquire);
  if (writable && (may_be_nacked || held->block.is_inherited())) return false;
  if (!held->claims.are_free(range, this, writable)) return false;
  const bool whole = !held->received && range.begin == 0 && size_bytes == held->array_bytes &&
                     (!array || static_cast<std::size_t>(PyArray_NBYTES(array)) == held->array_bytes);
  // A received array is never frozen: the owner of another view may make it writable again.
  bool frozen = !held->received && !writable;
  if (frozen && !held->shown)
    for_each_base(array, [&](PyArrayObject* at) { frozen = frozen && !PyArray_ISWRITEABLE(at); });
  if (!endpoint::is_lent(lending_, {held->received, held->gift, whole, writable, frozen, held->shown})) return false;
  out->reference = reference_to(held->block.ref());
  out->offset = range.begin;
  out->shown = held->shown;
  PyObject* kept = array ? reinterpret_cast<PyObject*>(array) : reinterpret_cast<PyObject*>(owner);
  lent_.push_back(Lent{kept, owner, writable, whole});
  Py_INCREF(kept);
  held->claims.promise(range, this, writable);
  return true;
}

// Checking one loan is enough, because all loans belonged to this process when they were lent.
bool LoanBook::are_ours() const noexcept {
  return lent_.empty() || held_block(*lent_.front().owner)->claims.are_ours();
}

void LoanBook::settle() noexcept {
  for (const Lent& lent : lent_) {
    const CriticalSection alone(reinterpret_cast<PyObject*>(lent.owner));
    if (!lent.given) {
      lent.owner->writable = false;  // prevents the owner from making it writable while other processes read it
      continue;
    }
    lent.owner->given = true;
    held_block(*lent.owner)->claims.settle(this);
    if (!PyArray_Check(lent.array)) continue;
    PyArray_CLEARFLAGS(as_array(lent.array), NPY_ARRAY_WRITEABLE);
    if (lent.whole) {
      for_each_base(as_array(lent.array), [](PyArrayObject* at) { PyArray_CLEARFLAGS(at, NPY_ARRAY_WRITEABLE); });
    }
  }
}

}  // namespace shmtree::python
