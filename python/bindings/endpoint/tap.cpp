// _core.Tap: observes the messages of a channel without taking them.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/bind.h"
#include "bindings/cpython/gil.h"
#include "bindings/cpython/unwrap.h"
#include "bindings/cpython/wait_hooks.h"
#include "channel/channel.h"
#include "endpoint/frames.h"

namespace shmtree::python {

namespace py = pybind11;
using namespace py::literals;
using channel::Channel;

namespace {

constexpr std::int64_t kOpenWithinNs = 2'000'000'000;  // a stopped process may hold a lock of the channel

// Not thread-safe: used by the thread of the recorder that made it.
class Tap {
 public:
  Tap(const std::shared_ptr<Channel>& channel, bool times_only) : arena_(channel->arena()) {
    GilHooks hooks;
    const auto wants = times_only ? channel::Tap::Wants::kTimes : channel::Tap::Wants::kMessages;
    tap_ = unwrap(channel->tap(wants, {platform::Deadline::after_ns(kOpenWithinNs), &hooks}));
  }

  // Returns (monotonic nanoseconds, ticket, frame) of each message. The frames are valid until release().
  py::list take(std::size_t most) {
    open();
    const std::vector<channel::Tap::Seen> seen = without_gil([&] { return tap_->take(most); });
    frames_.reserve(seen.size());
    py::list out;
    for (const channel::Tap::Seen& one : seen) {
      auto frame = endpoint::seen_frame(*arena_, one);
      if (!frame && frame.code() == Code::kOutOfSharedMemory) unwrap(std::move(frame));
      if (!frame) {
        ++damaged_;
        continue;
      }
      frames_.push_back(std::move(*frame));
      const auto bytes = frames_.back().bytes;
      auto* data = const_cast<char*>(reinterpret_cast<const char*>(bytes.data()));
      py::object view = own(PyMemoryView_FromMemory(data, static_cast<Py_ssize_t>(bytes.size()), PyBUF_READ));
      views_.append(view);
      out.append(py::make_tuple(one.put_ns, one.ticket, view));
    }
    return out;
  }
  // Returns (ticket, put_ns, pid, thread, got_ns, pid, thread) of each message. Needs no release().
  py::list take_times(std::size_t most, bool also_queued) {
    open();
    const auto times = without_gil([&] {
      auto taken = tap_->take_times(most, also_queued);
      tap_->release();
      return taken;
    });
    py::list out;
    for (const channel::Tap::Times& one : times) {
      out.append(
          py::make_tuple(one.ticket, one.put_ns, one.put_pid, one.put_thread, one.got_ns, one.got_pid, one.got_thread));
    }
    return out;
  }
  void release() {
    for (const py::handle view : views_) view.attr("release")();
    views_ = py::list();
    frames_.clear();
    const WithoutGil unlocked;
    if (tap_) tap_->release();
  }
  std::uint64_t missed() const { return missed_before_ + damaged_ + (tap_ ? tap_->missed() : 0); }
  bool is_over() {
    open();
    GilHooks hooks;
    return tap_->is_over({platform::Deadline::never(), &hooks});
  }
  void stop() {
    open();
    GilHooks hooks;
    const Status stopped = tap_->stop({platform::Deadline::never(), &hooks});
    if (!stopped.ok()) {
      raise(stopped.error());
      throw py::error_already_set();
    }
  }
  void close() {
    if (!tap_) return;
    release();
    missed_before_ = tap_->missed();
    const WithoutGil unlocked;
    tap_.reset();
  }

 private:
  void open() const {
    if (!tap_) throw py::value_error("the tap was closed");
  }
  std::shared_ptr<memory::Arena> arena_;
  std::shared_ptr<channel::Tap> tap_;
  std::vector<endpoint::RawFrame> frames_;
  py::list views_;
  std::uint64_t damaged_ = 0, missed_before_ = 0;
};

}  // namespace

void bind_tap(py::module_& module) {
  py::class_<Tap>(module, "Tap", plain_class(), py::is_final())
      .def(py::init<const std::shared_ptr<Channel>&, bool>(), "channel"_a, "times_only"_a = false)
      .def("take", &Tap::take, "most"_a)
      .def("take_times", &Tap::take_times, "most"_a, "also_queued"_a)
      .def("release", &Tap::release)
      .def_property_readonly("missed", &Tap::missed)
      .def_property_readonly("is_over", &Tap::is_over)
      .def("stop", &Tap::stop)
      .def("close", &Tap::close);
}

}  // namespace shmtree::python
