// The clients of a server: the reply channel of each, opened once, and what to do with those that do not read. Each
// language supplies `Sender`, which keeps a reply channel open and attached, with
//   check_receivers()   polls for deaths, and returns the Status of channel::Sending::check_receivers().
//
// A server opens the reply channel before it acks the request. From then on, the client detects the server's death.
//
// Thread safety: any thread may call every function.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "platform/fork.h"
#include "shmtree/base/result.h"

namespace shmtree::service {

// Calls act() on a client's channel. kClosed: the client is gone. The channel reports each death of a process that
// shared it, such as a forked child of the client; the next call finds out if the client is still there.
template <class Act>
auto unless_gone(Act act) -> decltype(act()) {
  constexpr int kMaxDeaths = 16;
  for (int deaths = 1;; ++deaths) {
    auto done = act();
    if (done || done.code() != Code::kPeerDied) return done;
    if (deaths == kMaxDeaths) return Error{Code::kClosed, "the client of this request is gone"};
  }
}

// Returns kClosed if the client of this reply channel is not attached any more.
template <class Sender>
Status check_client(const Sender& sender) {
  return unless_gone([&] { return sender.check_receivers(); });
}

template <class Sender>
class Client {
 public:
  explicit Client(Sender of) : sender(std::move(of)) {}

  // Calls put(timeout), which puts a reply, while the client is there. If a reply has waited for space in vain, later
  // ones do not wait as long again. Otherwise one stopped client would delay the server for each of its requests, and
  // with it all other clients. Errors: those of put(), and kClosed if the client is gone.
  template <class Put>
  auto send(std::optional<std::chrono::nanoseconds> timeout, Put put) -> decltype(put(timeout)) {
    Status there = check_client(sender);
    if (!there) return std::move(there).error();
    if (timeout && timeout->count() <= unread_ns_.load(std::memory_order_relaxed)) timeout = timeout->zero();
    auto sent = unless_gone([&] { return put(timeout); });
    if (sent) {
      unread_ns_.store(0, std::memory_order_relaxed);
    } else if (sent.code() == Code::kFull && timeout && timeout->count() > 0) {
      unread_ns_.store(timeout->count(), std::memory_order_relaxed);
    }
    return sent;
  }

  Sender sender;

 private:
  std::atomic<std::int64_t> unread_ns_{0};  // Time that a reply has waited in vain for space.
};

template <class Sender>
class Clients {
 public:
  using Known = std::shared_ptr<Client<Sender>>;

  // Returns the client with that handle, which open(handle) opens at its first request: a Result<Sender>. Returns null
  // if the client is gone, or if its channel cannot be opened here. May throw std::bad_alloc.
  template <class Open>
  Known find(const std::string& handle, Open open) {
    std::optional<Known> known;
    {
      const std::lock_guard guard(mutex_);
      const auto at = clients_.find(handle);
      if (at != clients_.end()) known = at->second;
    }
    if (known) return *known == nullptr ? nullptr : checked(handle, *known);
    forget_gone();
    auto opened = open(handle);
    if (!opened) {
      // Remembers a client that is gone, so that its later requests do not try again.
      if (opened.code() == Code::kNotFound || opened.code() == Code::kClosed) keep(handle, nullptr);
      return nullptr;
    }
    return checked(handle, std::make_shared<Client<Sender>>(std::move(*opened)));
  }

  void clear() {
    std::unordered_map<std::string, Known> cleared;  // Destroyed outside the mutex.
    const std::lock_guard guard(mutex_);
    cleared.swap(clients_);
  }

 private:
  static constexpr std::size_t kFew = 64;  // Number of clients from which on those that are gone are forgotten.

  Known checked(const std::string& handle, Known known) {
    if (!check_client(known->sender)) known = nullptr;
    keep(handle, known);
    return known;
  }
  void keep(const std::string& handle, Known known) {
    const std::lock_guard guard(mutex_);
    clients_[handle].swap(known);
  }
  void forget_gone() {
    std::vector<std::pair<std::string, Known>> all;
    {
      const std::lock_guard guard(mutex_);
      if (clients_.size() < few_) return;
      all.assign(clients_.begin(), clients_.end());
    }
    std::erase_if(all,
                  [](const auto& each) { return each.second != nullptr && check_client(each.second->sender).ok(); });
    const std::lock_guard guard(mutex_);
    for (const auto& [handle, known] : all) {
      const auto at = clients_.find(handle);
      if (at != clients_.end() && at->second == known) clients_.erase(at);  // `all` still has it
    }
    few_ = std::max(kFew, 2 * clients_.size());
  }

  platform::ForkSafeMutex mutex_;
  std::unordered_map<std::string, Known> clients_;  // By handle; null: the client is gone. Under mutex_, like few_.
  std::size_t few_ = kFew;
};

}  // namespace shmtree::service
