// What rows are made of, as Python has them: a nest of dicts, lists and tuples, with leaves of a fixed dtype and shape.
// Made once; then a row is taken apart without a look at anything but itself.
//
// All calls need the GIL.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "bindings/cpython/python_api.h"

namespace shmtree::python {

// Of each leaf of one row: where its bytes are, for as long as this is kept and not cleared.
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
    std::byte bytes[32];  // the largest number that NumPy has
  };
  std::vector<const void*> at_;
  std::vector<Staged> staged_;
  std::vector<Ref> kept_;
};

// Of each leaf of several rows: where that of the first is, and how far it is to the next one's.
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
  bool has_rows_ = false;  // some leaf said how many:
  std::size_t first_ = 0;
};

class Nest {
 public:
  struct Leaf {
    Ref dtype;
    std::vector<npy_intp> shape;
    std::size_t bytes = 0;
    int type_number = 0;
    bool is_plain = false;  // its type number says all of it
    Ref path;               // as texts name it

    PyArray_Descr* descr() const noexcept { return reinterpret_cast<PyArray_Descr*>(dtype.get()); }
  };

  // `skeleton`: the nest with the number of each leaf in its place. `leaves`: a (dtype, shape) each. `root`: what texts
  // call the whole. `convert(value, leaf)` gives what is no such array as one, or raises; `refuse(path, expected,
  // value)` raises. Null with a Python error set.
  static std::shared_ptr<Nest> make(PyObject* skeleton, PyObject* leaves, PyObject* root, PyObject* convert,
                                    PyObject* refuse);

  std::span<const Leaf> leaves() const noexcept { return leaves_; }
  // False with a Python error set, ValueError or TypeError for what is no such row.
  bool read(PyObject* row, LeafAddresses& out) const;
  // The same of a nest of arrays, each with one dimension more than its leaf, in front; all of one length. `convert`
  // gives such arrays then.
  bool read_columns(PyObject* rows, LeafColumns& out) const;
  // A nest of these, one for each leaf. Null with a Python error set.
  Ref build(std::span<const Ref> leaves) const { return build(root_, leaves); }

  ~Nest();

 private:
  enum class Form : std::uint8_t { kLeaf, kDict, kList, kTuple };
  struct Part {
    Form form = Form::kLeaf;
    std::size_t leaf = 0;
    std::vector<Ref> keys{};  // of a dict
    std::vector<Part> parts{};
    Ref skeleton{};
    Ref path{};
  };

  Nest() = default;
  bool add_leaf(PyObject* leaf);
  bool compile(PyObject* skeleton, Ref path, Part& out);
  bool add_part(PyObject* skeleton, PyObject* key, PyObject* path, Part& out);
  // Calls take(leaf, value) for each of them; false when that is, or for another nest.
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

}  // namespace shmtree::python
