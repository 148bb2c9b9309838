// The structure of a row in Python: a pytree of dicts, lists and tuples. Its leaves have a fixed dtype and shape. It is
// compiled once, so that splitting a row into its leaves reads only the row itself.
//
// All calls need the GIL.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "bindings/cpython/python_api.h"
#include "replay/rows/writer.h"

namespace shmtree::python {

enum class RowForm : std::uint8_t {
  kOne,   // an array or a number for each leaf
  kMany,  // arrays with an additional first dimension
};

// The columns of one row or several, for replay::GivenRows. They are valid until clear() or the destructor.
class LeafColumns {
 public:
  // Returns a column for each leaf, null for leaves that the rows lack, and one more. Empty if nothing was read.
  std::span<replay::Column> all() noexcept { return at_; }
  std::size_t rows() const noexcept { return rows_; }
  void clear() noexcept {
    at_.clear();
    kept_.clear();
  }

  template <class Number>
  void stage(std::size_t leaf, Number number) noexcept {
    static_assert(sizeof(Number) <= sizeof(Staged));
    at_[leaf] = new (&staged_[leaf]) Number(number);
  }

 private:
  friend class Nest;
  struct alignas(16) Staged {
    std::byte bytes[32];  // size of NumPy's largest number
  };

  std::vector<replay::Column> at_;
  std::vector<Staged> staged_;
  std::vector<Ref> kept_;
  std::size_t rows_ = 0;
  std::optional<std::size_t> first_;  // leaf that determined rows_
};

class Nest {
 public:
  struct Leaf {
    Ref dtype;
    std::vector<npy_intp> shape;
    std::size_t bytes = 0;
    int type_number = 0;
    bool is_plain = false;  // the type number describes the dtype completely
    Ref path;               // path from the root, for error messages

    PyArray_Descr* descr() const noexcept { return reinterpret_cast<PyArray_Descr*>(dtype.get()); }
  };

  // `skeleton`: the pytree, with each leaf replaced by its number. `leaves`: a (dtype, shape) for each leaf. `names`:
  // names of one row and of several in error messages. `convert(value, leaf, path, is_many)` returns the value as an
  // array of the leaf's dtype and shape, or raises. `refuse(path, expected, value)` raises. Returns null with a Python
  // error set.
  static std::shared_ptr<Nest> make(PyObject* skeleton, PyObject* leaves, PyObject* names, PyObject* convert,
                                    PyObject* refuse);

  std::span<const Leaf> leaves() const noexcept { return leaves_; }
  // Gets the leaves of a row, or of several rows in arrays of one length. Returns false with a Python error
  // set: ValueError or TypeError if they have another structure.
  bool read(PyObject* rows, RowForm form, LeafColumns& out) const;
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
  // Read a part of the rows. Return false with a Python error set.
  bool read(const Part& part, PyObject* value, RowForm form, LeafColumns& out) const;
  bool read_dict(const Part& part, PyObject* dict, RowForm form, LeafColumns& out) const;
  bool read_sequence(const Part& part, PyObject* sequence, RowForm form, LeafColumns& out) const;
  bool read_leaf(std::size_t number, PyObject* value, RowForm form, LeafColumns& out) const;
  bool stage(std::size_t number, PyObject* value, LeafColumns& out) const;
  Ref convert(std::size_t number, PyObject* value, RowForm form) const;
  Ref full_path(const Ref& path, RowForm form) const;
  bool refuse(const Part& part, PyObject* value, RowForm form) const;
  static Ref build(const Part& part, std::span<const Ref> leaves);

  std::vector<Leaf> leaves_;
  Part root_;
  Ref convert_, refuse_;
  Ref names_[2];  // of each RowForm
};

// Adds _core.ReplayNest.
void bind_replay_nest(pybind11::module_& module);

}  // namespace shmtree::python
