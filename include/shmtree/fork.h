/// @file
/// Limits the ends that a forked child inherits.
///
///     auto [sender, receiver] = shmtree::make_pair();
///     if (fork() == 0) {
///       shmtree::keep_only(receiver);  // the child is detached from all other ends
///       for (const shmtree::Item& item : receiver) use(item);
///       receiver.close();  // or peers treat the exit as a death
///       _exit(0);
///     }
///
/// If a process calls _exit() with an end open, its peers treat that as its death (kPeerDied). The parent in daemon(3)
/// calls _exit(), and so do the middle processes of programs that fork twice. Become a daemon first and make the ends
/// afterwards, or let the process that exits close its ends.
#pragma once

#include <span>
#include <vector>

#include "shmtree/pair.h"
#include "shmtree/queue.h"

namespace shmtree {

namespace detail {
/// Gives keep_only() the channel state of an end.
struct ForkAccess {
  template <class End>
  static const api::ChannelState* of(const End& end) noexcept {
    return &*end.state_;
  }
};
void keep_only(std::span<const api::ChannelState* const> kept);
template <class End>
void add_kept(std::vector<const api::ChannelState*>& kept, const End& end) {
  kept.push_back(ForkAccess::of(end));
}
inline void add_kept(std::vector<const api::ChannelState*>& kept, const Queue& queue) {
  add_kept(kept, queue.sender());
  add_kept(kept, queue.receiver());
}
}  // namespace detail

/// Detaches a forked child from every inherited end except these Senders, Receivers and Queues (copies of a handle are
/// one end). The others become passive: they keep neither their stream nor its name alive, and peers get no kPeerDied
/// if this process dies. The first use of a passive end attaches it again. For a Sender, that use returns kClosed if
/// the stream has ended in the meantime. Ends that this process has made or opened, and ends that one of its threads is
/// using, stay attached. In a process that was not forked this does nothing. Throws std::bad_alloc.
template <class... Ends>
void keep_only(const Ends&... ends) {
  std::vector<const api::ChannelState*> kept;
  (detail::add_kept(kept, ends), ...);
  detail::keep_only(kept);
}

}  // namespace shmtree
