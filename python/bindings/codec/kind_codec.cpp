#include "bindings/codec/kind_codec.h"

#include "platform/never_destroyed.h"

namespace shmtree::python {
namespace {

std::vector<SentClass>& sent_classes() {
  return platform::never_destroyed<std::vector<SentClass>>();
}

}  // namespace

KindCodec::KindCodec(std::initializer_list<KindDecoder> decoders, std::initializer_list<SentClass> sent) {
  for (const KindDecoder& each : decoders) detail::decoders[static_cast<std::uint8_t>(each.kind)] = each.decode;
  sent_classes().insert(sent_classes().end(), sent.begin(), sent.end());
}

bool SentClass::encodes(PyTypeObject* type, std::string_view name) const {
  if (!name_.empty()) return name_ == name && is_found_by_name(type_object(type), name);
  PyTypeObject* wanted = type_ ? type_ : type_function_();
  return wanted == type || (subclasses_ == Subclasses::kIncluded && PyType_IsSubtype(type, wanted));
}

const SentClass* find_sent_class(PyTypeObject* type, std::string_view name) {
  for (const SentClass& sent : sent_classes()) {
    if (sent.encodes(type, name)) return &sent;
    if (PyErr_Occurred()) return nullptr;
  }
  return nullptr;
}

}  // namespace shmtree::python
