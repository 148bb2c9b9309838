/// @file
/// Requests and replies between processes, in C++ and Python.
///
///     // the server
///     auto service = shmtree::Service::create({.name = "doubles"}).value();
///     for (;;) {
///       shmtree::Request request = service.get().value();
///       request.reply(2 * request.value().as<double>()).value();
///     }
///
///     // a client
///     auto client = shmtree::Client::open("doubles", {.timeout = 10s}).value();
///     const double four = client.call(2.0, 1s).value().as<double>();
///
/// Any number of processes serve, and any number of clients ask. Each request goes to one server. While no server runs,
/// requests wait in the service, as long as any process has the service open.
///
/// Timeouts: as in pair.h. Ownership: Service, Client and Pending are handles, and copies refer to the same object. A
/// Request has one owner.
///
/// Thread safety: any thread may make any call, on any copy of a handle. The library starts no thread: one of the
/// threads that wait for replies of a Client receives the replies for all of them.
///
/// Fork: a forked child that uses an inherited Client gets replies of its own. The requests in flight, and the Requests
/// that the parent received, belong to the parent.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shmtree/arena.h"
#include "shmtree/base/result.h"
#include "shmtree/item.h"
#include "shmtree/pair.h"
#include "shmtree/value.h"

namespace shmtree {

namespace channel {
class Delivery;
}
namespace api {
class ReplyReceiver;
}

/// Options of Service::create().
struct ServiceOptions {
  std::uint64_t capacity = 1024;  ///< Maximum number of waiting requests, at which clients block. 0: unlimited.
  std::uint64_t max_bytes = 0;    ///< Maximum bytes of the waiting requests, at which clients block. 0: unlimited.
  /// Name under which other processes of this user open the service; empty: none.
  std::string name{};
  /// Arena of the requests. By default an arena of its own if `name` is set, otherwise Arena::shared().
  std::optional<Arena> arena{};
  std::optional<bool> allow_pickle{};  ///< See PairOptions; applies to requests and replies.
  bool exist_ok = true;                ///< Joins the service if `name` is in use, as a restarted server does.
  /// kReceivers: servers wait for new clients. kBoth: clients also wait for the next server. A request that no server
  /// has begun then waits until its timeout, whether the last server was killed or exited.
  KeepOpen keep_open = KeepOpen::kReceivers;
};

/// Options of Client::open().
struct ClientOptions {
  Timeout timeout = std::chrono::nanoseconds(0);  ///< Time to wait for a process to create the name.
  std::optional<Arena> arena{};                   ///< Arena of the replies; by default a new one.
};

/// One request of a Service. Any thread answers it, once.
///
/// If it is destroyed without an answer, the client gets kRemoteError with `dropped` set. If its process dies, the
/// client gets kPeerDied.
class Request {
 public:
  /// A moved-from request is answered.
  Request(Request&& other) noexcept;
  /// Drops the previous request of this object.
  Request& operator=(Request&& other) noexcept;
  /// Fails the request at the client unless it was answered.
  ~Request();

  /// Returns the value that the client sent.
  const Item& value() const& noexcept;
  /// Returns a copy, since the Request is a temporary.
  Item value() && { return value(); }

  /// Sends the reply. Waits up to `timeout` for space at the client. If a reply timed out because the client had no
  /// space, a later reply to that client with the same or a shorter timeout does not wait. This holds until a reply to
  /// that client has succeeded.
  /// - kClosed: the client has closed or exited, or a failure was sent to it before.
  /// - kFull: the client had no space for the reply for `timeout`. The reply is dropped.
  /// - kInvalid: the request was answered before.
  /// - Other errors are those of Sender::put(). They fail the request: the client gets kRemoteError with this error.
  Status reply(Value value, Timeout timeout = std::chrono::seconds(10));
  /// Fails the request: the client gets kRemoteError with this text, and `kind`, for example the class of an exception.
  /// If an earlier reply() failed the request, returns success and sends nothing.
  /// - kClosed, kFull: as for reply(). The next fail(), or the destructor, tries again.
  /// - kInvalid: a reply was sent, or a text is not UTF-8.
  Status fail(std::string_view text, std::string_view kind = {}, Timeout timeout = std::chrono::seconds(10));
  /// Sends one of several results. Then send the last one by reply(), or call end(). Client.stream() of Python returns
  /// each of them; other calls return only the last one. Waits up to `timeout` while the client has not read the parts
  /// before it. Errors are those of reply(), but the request stays unanswered.
  Status stream(Value part, Timeout timeout = std::chrono::seconds(10));
  /// Answers a request of which all results were sent by stream(). Errors are those of reply().
  Status end(Timeout timeout = std::chrono::seconds(10));
  /// Returns true if the client does not wait for the answer any more: its timeout has passed, it has closed its Client
  /// or the stream, or it has exited. A Pending that was dropped does not count.
  bool cancelled() const;

 private:
  friend class Service;
  struct State;
  explicit Request(std::unique_ptr<State> state) noexcept;
  Status answer(Value outcome, Value value, const Timeout& timeout);
  std::unique_ptr<State> state_;
};

/// The server's handle of a channel of requests.
class Service {
 public:
  /// Makes a service, or joins the one that has the name.
  /// - kExists: the name is in use, and `exist_ok` is false.
  /// - kInvalid: the service of that name has other options (the error lists the differences), or `keep_open` is kNo.
  /// - Other errors are those of make_pair().
  static Result<Service> create(const ServiceOptions& options = {});

  /// Receives the next request. A request that cannot be decoded fails at its client, and the call goes on.
  /// - kEmpty: there was no request in time.
  /// - kClosed: close() was called here.
  /// - kInterrupted: `stop` asked to stop.
  Result<Request> get(Timeout timeout = std::nullopt, const std::stop_token& stop = {}) const;

  /// Waits for the first request as get() does, and up to `within` for more, until it has `most`.
  Result<std::vector<Request>> get_many(std::size_t most, Timeout timeout = std::nullopt,
                                        std::chrono::nanoseconds within = {}, const std::stop_token& stop = {}) const;

  /// Returns a descriptor that is readable while get() would not block. See Receiver::fileno().
  Result<int> fileno() const;
  /// Returns the statistics of the requests; `receivers` is the number of server processes.
  Result<ChannelStats> stats() const;
  /// Returns a text with which another process of this user opens a client: Client::open_handle(). See
  /// Sender::handle().
  Result<std::string> handle() const;
  /// Stops serving in this process. Requests that it has received can still be answered. Idempotent.
  void close();
  /// True if close() was called, or this object was moved from.
  bool closed() const noexcept;

 private:
  friend class Client;
  struct State;
  explicit Service(std::shared_ptr<State> state) noexcept : state_(std::move(state)) {}
  Result<std::optional<Request>> begin(channel::Delivery& delivery) const;
  std::shared_ptr<State> state_;
};

/// The reply of one request that was sent by Client::submit(). Keeps the client open, unless close() is called.
class Pending {
 public:
  /// Waits for the reply. Later calls return it again. Errors are those of Client::call(), except kTimeout: the request
  /// stays in flight then.
  Result<Item> get(Timeout timeout = std::nullopt) const;
  /// Receives the replies that have arrived, and returns true if get() would not block.
  bool done() const;

 private:
  friend class Client;
  friend class api::ReplyReceiver;
  struct State;
  explicit Pending(std::shared_ptr<State> state) noexcept : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

/// Sends requests to a Service, of C++ or Python. Any number of requests may be in flight.
class Client {
 public:
  /// Opens the service of that name. Waits up to `options.timeout` for it.
  /// - kNotFound, kTimeout: the name does not exist.
  /// - kInvalid: the name is not that of a service.
  static Result<Client> open(const std::string& name, const ClientOptions& options = {});
  /// Opens a service of this process, which a forked child may have inherited. The client has a sender of its own.
  static Result<Client> open(const Service& service, const ClientOptions& options = {});
  /// Opens the service of a handle. Errors are those of Sender::open(). Also kInvalid: it is not that of a service.
  static Result<Client> open_handle(const std::string& handle, const ClientOptions& options = {});

  /// Sends a request and waits for the reply.
  ///
  /// `retry` is for requests that may be processed twice. For this time, the call waits for the next server if there is
  /// none. It also sends the request again if the server was killed, exited, or dropped the request. std::nullopt:
  /// until the timeout.
  /// - kTimeout: there was no reply in time. If no server has begun the request by then, none will.
  /// - kRemoteError: the server failed the request. `message` has its text, `kind` the class of its exception, and
  ///   `dropped` is true if it dropped the request or exited.
  /// - kPeerDied: no server is left, or with KeepOpen::kBoth, the server that had begun the request was killed. The
  ///   message says if a server may have handled the request.
  /// - kClosed: close() was called here.
  /// - Other errors are those of Sender::put().
  Result<Item> call(Value value, Timeout timeout = std::nullopt, Timeout retry = std::chrono::nanoseconds(0)) const;
  /// Sends a request. Waits up to `timeout` for space in the service.
  /// - kFull: the service had no space in time. Other errors are those of call().
  Result<Pending> submit(Value value, Timeout timeout = std::nullopt) const;

  /// Returns a descriptor that is readable when replies have arrived: then call Pending::done(). The death of the
  /// servers may replace it, so call this before each poll. Poll with a timeout of at most 1 s, since the exit of the
  /// last server does not always make it readable.
  Result<int> fileno() const;
  /// Returns the statistics of the service's requests; `receivers` is the number of server processes.
  Result<ChannelStats> stats() const;
  /// Fails the requests in flight with kClosed. Idempotent.
  void close();
  /// True if close() was called, or this object was moved from.
  bool closed() const noexcept;

 private:
  struct State;
  explicit Client(std::shared_ptr<State> state) noexcept : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

}  // namespace shmtree
