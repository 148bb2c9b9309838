// _core.ReplyLine: the requests of a Client that wait at one reply channel.
#include "service/reply_line.h"

#include <pybind11/stl.h>

#include <cmath>

#include "bindings/bind.h"
#include "bindings/cpython/errors.h"
#include "bindings/cpython/unwrap.h"

namespace shmtree::python {

namespace py = pybind11;
using namespace py::literals;
using channel::Channel;
using service::ReplyLine;

namespace {

py::object exception_of(const Error& error) {
  raise(error);
  return py::reinterpret_steal<py::object>(take_exception().release());
}

// Returns [(number, exception)]. `pids` and `exit_code` are those of the death that was reported, if there was one.
py::list with_errors(const std::vector<service::Lost>& lost, const std::optional<Error>& death) {
  py::list made;
  for (const service::Lost& each : lost) {
    made.append(py::make_tuple(each.number, exception_of(lost_error(death ? &*death : nullptr, each.loss))));
  }
  return made;
}

// Returns the Error of a PeerDied or WorkerFailed; none for None and for other exceptions.
std::optional<Error> death_of(const py::object& exception) {
  if (!py::hasattr(exception, "pids")) return std::nullopt;
  Error death{.code = Code::kPeerDied};
  for (const py::handle pid : exception.attr("pids")) death.pids.push_back(pid.cast<int>());
  if (py::hasattr(exception, "exit_code")) {
    const py::object code = exception.attr("exit_code");
    death.exit_code = code.is_none() ? -1 : code.cast<int>();
  }
  return death;
}

std::optional<std::int64_t> add_to_line(ReplyLine& line, double serve_by) {
  return line.add(std::isinf(serve_by) ? service::kForeverNs : static_cast<std::int64_t>(serve_by * 1e9));
}

py::tuple checked_line(ReplyLine& line) {
  const ReplyLine::Checked checked = line.check();
  return py::make_tuple(checked.is_over, with_errors(checked.lost, checked.death),
                        checked.death ? exception_of(*checked.death) : py::none());
}

}  // namespace

void bind_reply_line(py::module_& module) {
  py::class_<ReplyLine, std::shared_ptr<ReplyLine>>(module, "ReplyLine", plain_class())
      .def(py::init([](std::shared_ptr<Channel> requests, std::shared_ptr<Channel> replies, bool waits) {
             return std::make_shared<ReplyLine>(std::move(requests), std::move(replies),
                                                waits ? ReplyLine::Mode::kWaits : ReplyLine::Mode::kEnds);
           }),
           "requests"_a, "replies"_a, "waits"_a)
      .def("add", &add_to_line, "serve_by"_a)
      .def("remove", &ReplyLine::remove, "number"_a)
      .def("end", &ReplyLine::end)
      .def_property_readonly("ended", &ReplyLine::ended)
      .def_property_readonly("deaths", &ReplyLine::deaths)
      .def("count_death", &ReplyLine::count_death)
      .def(
          "note_sent",
          [](ReplyLine& line, std::int64_t number, std::uint64_t ticket, std::uint32_t deaths) {
            return with_errors(line.note_sent(number, ticket, deaths), std::nullopt);
          },
          "number"_a, "ticket"_a, "deaths"_a)
      .def(
          "lose_begun",
          [](ReplyLine& line, const py::object& death) { return with_errors(line.lose_begun(), death_of(death)); },
          "death"_a)
      .def(
          "lose_all",
          [](ReplyLine& line, const py::object& death) { return with_errors(line.lose_all(), death_of(death)); },
          "death"_a)
      .def("check", &checked_line);
}

}  // namespace shmtree::python
