// The structure of a row in Python: a pytree of dicts, lists and tuples. Its leaves have a fixed dtype and shape. It is
// compiled once, so that splitting a row into its leaves reads only the row itself.
//
// All calls need the GIL.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "bindings/cpython/python_api.h"

namespace shmtree::python {

// The address of each leaf's bytes in one row. The addresses are valid until clear() or the destructor.
class LeafAddresses {
 public:
  void prepare(std::size_t leaves) {
    at_.resize(leaves);
    staged_.resize(leaves);
  }
  void clear() noexcept { kept_.clear(); }

  std::span<const void* const> all() const noexcept { return at_; }
  void set(std::size_t leaf, const void* data, PyObject* owner) {
    kept_.push_back(Ref::borrow(owner));
    at_[leaf] = data;
  }
  void append(const void* data) { at_.push_back(data); }
  template <class Number>
  void stage(std::size_t leaf, Number number) noexcept {
    static_assert(sizeof(Number) <= sizeof(Staged));
    new (&staged_[leaf]) Number(number);
    at_[leaf] = &staged_[leaf];
  }
  void* staged(std::size_t leaf) noexcept { return at_[leaf] = &staged_[leaf], &staged_[leaf]; }

 private:
  struct alignas(16) Staged {
    std::byte bytes[32];  // size of NumPy's largest number
  };
  std::vector<const void*> at_;
  std::vector<Staged> staged_;
  std::vector<Ref> kept_;
};

// For each leaf of several rows: the address in the first row, and the distance in bytes to the next row.
class LeafColumns {
 public:
  struct Column {
    const std::byte* first = nullptr;
    std::size_t stride = 0;
  };

  std::span<const Column> all() const noexcept { return at_; }
  std::size_t rows() const noexcept { return rows_; }

 private:
  friend class Nest;

  std::vector<Column> at_;
  std::vector<Ref> kept_;
  std::size_t rows_ = 0;
  bool has_rows_ = false;  // rows_ is known, from leaf first_
  std::size_t first_ = 0;
};

class Nest {
 public:
  struct Leaf {
    Ref dtype;
    std::vector<npy_intp> shape;
    std::size_t bytes = 0;
    int type_number = 0;
    bool is_plain = false;  // the type number describes the dtype completely
    Ref path;               // the leaf's name in error messages

    PyArray_Descr* descr() const noexcept { return reinterpret_cast<PyArray_Descr*>(dtype.get()); }
  };

  // `skeleton`: the pytree, with each leaf replaced by its number. `leaves`: a (dtype, shape) for each leaf. `root`:
  // name of the whole row in error messages. `convert(value, leaf)` returns the value as an array of the leaf's dtype
  // and shape, or raises. `refuse(path, expected, value)` raises. Returns null with a Python error set.
  static std::shared_ptr<Nest> make(PyObject* skeleton, PyObject* leaves, PyObject* root, PyObject* convert,
                                    PyObject* refuse);

  std::span<const Leaf> leaves() const noexcept { return leaves_; }
  // Gets the leaves of a row. Returns false with a Python error set: ValueError or TypeError if it has another
  // structure.
  bool read(PyObject* row, LeafAddresses& out) const;
  // Does the same for a pytree of arrays, one per leaf, with an additional first dimension. All have the same length.
  // `convert` is called for arrays of this form too.
  bool read_columns(PyObject* rows, LeafColumns& out) const;
  // Builds a pytree with these leaves. Returns null with a Python error set.
  Ref build(std::span<const Ref> leaves) const { return build(root_, leaves); }

  ~Nest();

 private:
  enum class Form : std::uint8_t { kLeaf, kDict, kList, kTuple };
  struct Part {
    Form form = Form::kLeaf;
    std::size_t leaf = 0;
    std::vector<Ref> keys{};  // for a dict
    std::vector<Part> parts{};
    Ref skeleton{};
    Ref path{};
  };

  Nest() = default;
  bool add_leaf(PyObject* leaf);
  bool compile(PyObject* skeleton, Ref path, Part& out);
  bool add_part(PyObject* skeleton, PyObject* key, PyObject* path, Part& out);
  // Calls take(leaf, value) for each leaf. Returns false if take() does, or if the value has another structure.
  template <class Take>
  bool walk(const Part& part, PyObject* value, const Take& take) const;
  template <class Take>
  bool walk_dict(const Part& part, PyObject* dict, const Take& take) const;
  template <class Take>
  bool walk_sequence(const Part& part, PyObject* sequence, const Take& take) const;
  bool read_leaf(std::size_t number, PyObject* value, LeafAddresses& out) const;
  bool stage(std::size_t number, PyObject* value, LeafAddresses& out) const;
  bool read_column(std::size_t number, PyObject* value, LeafColumns& out) const;
  Ref convert(std::size_t number, PyObject* value) const;
  bool refuse(const Part& part, PyObject* value) const;
  static Ref build(const Part& part, std::span<const Ref> leaves);

  std::vector<Leaf> leaves_;
  Part root_;
  Ref convert_, refuse_;
};

// Adds _core.ReplayNest.
void bind_replay_nest(pybind11::module_& module);

}  // namespace shmtree::python
