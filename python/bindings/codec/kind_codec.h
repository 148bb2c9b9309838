// Registers the functions that encode and decode a kind. Each kind's functions and registration are in one file.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <vector>

#include "bindings/codec/class_registry.h"
#include "shmtree/base/kind.h"

namespace shmtree::python {

class Decoder;

// Decodes a node after its kind has been read. Decoder explains what null means.
using DecodeHandler = PyObject*(Decoder& decoder);

enum class Subclasses : bool { kExcluded, kIncluded };

// A class with instances that are sent as a kind.
class SentClass {
 public:
  using TypeFunction = PyTypeObject*();
  // A type of CPython or of an extension module, which programs cannot replace. Pass a function if the type is only
  // known after all modules are loaded.
  SentClass(PyTypeObject* type, EncodeHandler* handler, Kind of = Kind::kInvalid) noexcept
      : encode(handler), kind(of), type_(type) {}
  SentClass(TypeFunction* type, EncodeHandler* handler, Subclasses subclasses = Subclasses::kExcluded) noexcept
      : encode(handler), type_function_(type), subclasses_(subclasses) {}
  // `name`: "module:qualname" of a class that may be imported later or never.
  SentClass(std::string_view name, EncodeHandler* handler) noexcept : encode(handler), name_(name) {}

  // True if this handler encodes instances of `type`, which has that name. Also returns false if a Python error is set.
  bool encodes(PyTypeObject* type, std::string_view name) const;

  EncodeHandler* encode;
  Kind kind = Kind::kInvalid;  // tells a handler for several kinds which one to encode

 private:
  PyTypeObject* type_ = nullptr;
  TypeFunction* type_function_ = nullptr;
  Subclasses subclasses_ = Subclasses::kExcluded;
  std::string_view name_{};
};

// Registers a kind, or a few related ones. Declare it as a constant in the file that defines their functions.
class KindCodec {
 public:
  struct KindDecoder {
    Kind kind;
    DecodeHandler* decode;
  };
  KindCodec(std::initializer_list<KindDecoder> decoders, std::initializer_list<SentClass> sent);
};

namespace detail {
inline DecodeHandler* decoders[256];
}

// Returns null for a kind that Decoder itself decodes, and for numbers without a kind.
inline DecodeHandler* decoder_of(Kind kind) noexcept {
  return detail::decoders[static_cast<std::uint8_t>(kind)];
}

// Returns null if no handler is registered for the class, or if a Python error is set.
const SentClass* find_sent_class(PyTypeObject* type, std::string_view name);

// Registers a kind with values that Python code splits and rebuilds; nodes follow the kind's rule (format/grammar.h).
//
// `parts(object)` returns a tuple with a value for each letter of the rule, and a tuple for the repeated part. It
// returns None if only pickle can send the object. `build(*parts, trusted)` returns the object; `trusted` means that
// the message may import modules and run code. `copied_bytes(*parts)` returns how many bytes of an untrusted message's
// memory `build` copies; null if it copies none. Returns false with a Python error set.
bool add_kind(std::string_view kind, PyObject* cls, PyObject* parts, PyObject* build, PyObject* copied_bytes);

}  // namespace shmtree::python
