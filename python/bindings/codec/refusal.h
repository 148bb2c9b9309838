// Adds details to a PickleRefused: the path of the refused object, and the end or call that refused it (the refuser).
// They are computed after the refusal, so that successful messages pay nothing.
//
// Each function changes the current exception only if it is a PickleRefused without a path.
#pragma once

#include <cstddef>
#include <span>

#include "bindings/codec/encode.h"

namespace shmtree::python {

// For the object that `session` could not send because `refuser` takes no pickles: "... allow_pickle=False of
// <refuser>".
[[gnu::cold]] void explain_refused_object(EncodeSession& session, const char* refuser);

// For the node with that number in a walk over the frame. `cls`: PickleRefused, for which the caller adds the refuser
// with name_refuser(), or IncompatibleMessage.
[[gnu::cold]] void explain_node(PyObject* cls, std::span<const std::byte> frame, std::size_t number);
[[gnu::cold]] void name_refuser(const char* refuser);

}  // namespace shmtree::python
