// _core.ServiceClients: the clients of a server. _core.ServiceClient: one of them, with its reply channel.
#include <pybind11/stl.h>

#include "bindings/bind.h"
#include "bindings/cpython/errors.h"
#include "bindings/cpython/unwrap.h"
#include "bindings/cpython/wait_hooks.h"
#include "bindings/endpoint/endpoint.h"
#include "bindings/endpoint/incoming.h"
#include "bindings/objects/deaths.h"
#include "service/clients.h"
#include "service/wire.h"

namespace shmtree::python {

namespace py = pybind11;
using namespace py::literals;
using channel::End;

namespace {

// The reply channel of a client: a Sender.
struct ReplySender {
  Status check_receivers() const {
    Endpoint* const self = as_endpoint(end.ptr());
    const endpoint::Call call(self->port);
    if (self->port.closed(End::kSending)) return Error{Code::kClosed, "this server has closed the reply channel"};
    notice_deaths(*self->port.channel().arena(), kLongPollIntervalNs);
    return self->port.channel().sending().check_receivers();
  }
  py::object end;
};

using Client = service::Client<ReplySender>;
using Clients = service::Clients<ReplySender>;

// Returns the Status for a Python call. Exceptions other than these stay set.
Status status_of(bool succeeded) {
  if (succeeded) return success();
  const std::pair<PyObject*, Code> codes[] = {{package().peer_died, Code::kPeerDied},
                                              {package().channel_closed, Code::kClosed},
                                              {package().queue_full, Code::kFull}};
  for (const auto& [type, code] : codes) {
    if (PyErr_ExceptionMatches(type)) return PyErr_Clear(), Error{code, "see the code"};
  }
  return Error{Code::kInvalid, "a Python exception is set"};
}

// Returns true if the client got the message.
bool send(Client& client, const py::object& message, const py::object& timeout, bool move) {
  std::optional<std::chrono::nanoseconds> wait;
  check(parse_timeout(timeout.ptr(), &wait));
  const Status sent = client.send(wait, [&](const auto& left) {
    const Ref ticket(
        put_object(as_endpoint(client.sender.end.ptr()), message.ptr(), platform::Deadline::after(left), move));
    return status_of(static_cast<bool>(ticket));
  });
  check(!PyErr_Occurred());
  return sent.ok();
}

// Returns (client, number, deadline) of the request. None: the message is not a request, or its client waits no longer.
// open(handle) returns the Sender of a client, or None if the client is gone.
py::object find(Clients& clients, const py::object& delivery, const py::object& open) {
  const auto header = service::request_header(frame_of_delivery(delivery.ptr()));
  if (!header || service::has_expired(header->deadline)) return py::none();
  const auto client = clients.find(header->handle, [&](const std::string& handle) -> Result<ReplySender> {
    Ref sender(PyObject_CallOneArg(open.ptr(), py::bytes(handle).ptr()));
    if (!sender) return Error{Code::kInvalid, "a Python exception is set"};
    if (sender.get() == Py_None) return Error{Code::kClosed, "the client is gone"};
    return ReplySender{own(sender.release())};
  });
  if (PyErr_Occurred()) {  // The server continues with the other clients.
    check(PyErr_ExceptionMatches(PyExc_Exception));
    PyErr_Clear();
  }
  return client == nullptr ? py::object(py::none()) : py::make_tuple(client, header->number, header->deadline);
}

}  // namespace

void bind_service_clients(py::module_& module) {
  py::class_<Client, std::shared_ptr<Client>>(module, "ServiceClient", plain_class())
      .def(py::init([](py::object sender) { return std::make_shared<Client>(ReplySender{std::move(sender)}); }),
           "sender"_a)
      .def_property_readonly("sender", [](const Client& client) { return client.sender.end; })
      .def_property_readonly("is_there", [](Client& client) { return service::check_client(client.sender).ok(); })
      .def("send", &send, "message"_a, "timeout"_a, "move"_a = false);
  py::class_<Clients>(module, "ServiceClients", plain_class())
      .def(py::init())
      .def("find", &find, "delivery"_a, "open"_a)
      .def("clear", &Clients::clear);
}

}  // namespace shmtree::python
