// Reads calls on the ends of a channel from standard input, one a line, and prints the result of each. The cases of
// `tests/python/ipc/test_end_cases.py` run with this program and with the ends of Python.
#include <algorithm>
#include <iostream>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "shmtree/shmtree.h"

using namespace std::chrono_literals;
using namespace shmtree;

namespace {

constexpr std::int64_t kCount = 4'096;  // elements of an array

class Ends {
 public:
  std::string call(const std::string& line) {
    std::istringstream words(line);
    std::string name, argument;
    words >> name;
    std::getline(words >> std::ws, argument);
    return (this->*kCalls.at(name))(argument);
  }

 private:
  using Call = std::string (Ends::*)(const std::string&);
  static const std::map<std::string, Call> kCalls;

  template <class T>
  static std::string said(const Result<T>& result) {
    return result ? "ok" : std::string(name_of(result.code()));
  }

  std::string pair(const std::string& text) {
    PairOptions options;
    options.arena = Arena::create({.max_bytes = 16 << 20}).value();
    std::istringstream words(text);
    for (std::string word; words >> word;) {
      const std::string key = word.substr(0, word.find('='));
      if (key == "drop_oldest") options.on_full = OnFull::kDropOldest;
      if (key == "keep_open") options.keep_open = true;
      if (key == word) continue;
      const auto value = std::stoull(word.substr(key.size() + 1));
      if (key == "capacity") options.capacity = value;
      if (key == "max_bytes") options.max_bytes = value;
      if (key == "max_unacked") options.max_unacked = value;
      if (key == "max_attempts") options.max_attempts = value;
    }
    auto [sender, receiver] = make_pair(options);
    sender_ = std::move(sender);
    receiver_ = std::move(receiver);
    return "ok";
  }

  // A number, or an array by its name, or a part of it.
  Value value_of(const std::string& text) const {
    if (text.starts_with("part ")) {
      ArrayRef part = arrays_.at(text.substr(5));
      part.shape = {kCount / 2};
      return part;
    }
    if (text.starts_with("big ")) return std::string(std::stoull(text.substr(4)), 'x');
    if (const auto array = arrays_.find(text); array != arrays_.end()) return array->second;
    return std::stoll(text);
  }
  std::string shown(const Item& item) const {
    if (item.kind() == Kind::kStr) return "big";
    if (!item.is_array()) return std::to_string(item.as<std::int64_t>());
    const auto is_it = [&](const auto& each) { return each.second.data == item.span<std::int64_t>().data(); };
    return std::any_of(arrays_.begin(), arrays_.end(), is_it) ? "given" : "copied";
  }
  std::string shown(const Result<Item>& item) const { return item ? shown(*item) : said(item); }
  std::string taken(Result<TakenItem> item) {
    if (!item) return said(item);
    deliveries_.push_back(std::move(*item));
    return shown(deliveries_.back().item()) + " attempt " + std::to_string(deliveries_.back().attempts());
  }

  std::string put(const std::string& text) {
    const auto ticket = sender_->put(value_of(text), 0s);
    return ticket ? "ticket " + std::to_string(*ticket) : said(ticket);
  }
  std::string get(const std::string&) { return shown(receiver_->get(0s)); }
  std::string get_many(const std::string& most) {
    const auto items = receiver_->get_many(std::stoull(most), 0s);
    if (!items) return said(items);
    std::string text;
    for (const Item& item : *items) text += (text.empty() ? "" : " ") + shown(item);
    return text;
  }
  std::string take(const std::string&) { return taken(receiver_->take(0s)); }
  std::string dead_letters(const std::string&) {
    auto found = receiver_->dead_letters();
    if (!found) return said(found);
    for (TakenItem& each : *found) deliveries_.push_back(std::move(each));
    return std::to_string(found->size());
  }
  // `which` is the number of the delivery, in the order in which they were taken.
  std::string ack(const std::string& which) { return said(deliveries_.at(std::stoull(which)).ack()); }
  std::string nack(const std::string& which) { return said(deliveries_.at(std::stoull(which)).nack()); }
  std::string requeue(const std::string& which) { return said(deliveries_.at(std::stoull(which)).requeue()); }
  std::string drop(const std::string&) {
    deliveries_.clear();
    return "ok";
  }
  std::string new_array(const std::string& name) {
    arrays_[name] = sender_->new_array(DType::kInt64, {kCount}).value();
    return "ok";
  }
  std::string size(const std::string&) { return std::to_string(receiver_->size()); }
  std::string space(const std::string&) { return sender_->has_space() ? "yes" : "no"; }
  std::string dropped(const std::string&) { return std::to_string(sender_->dropped()); }
  std::string pending(const std::string&) { return std::to_string(sender_->pending_acks()); }
  std::string acked(const std::string& ticket) {
    return said(ticket.empty() ? sender_->wait_for_all_ack(0s) : sender_->wait_for_ack(std::stoull(ticket), 0s));
  }
  std::string stats(const std::string& name) {
    const auto stats = receiver_->stats();
    if (!stats) return said(stats);
    if (name == "taken") return std::to_string(stats->taken);
    if (name == "dropped") return std::to_string(stats->dropped);
    if (name == "senders") return std::to_string(stats->senders);
    return std::to_string(name == "put" ? stats->put : stats->received);
  }
  std::string close(const std::string& end) {
    end == "sender" ? sender_->close() : receiver_->close();
    return "ok";
  }
  std::string closed(const std::string& end) {
    return (end == "sender" ? sender_->closed() : receiver_->closed()) ? "yes" : "no";
  }
  // A call that waits, in a thread.
  std::string start(const std::string& what) {
    waiting_ = std::thread([this, what, to = *sender_, from = *receiver_] {
      if (what == "get") outcome_ = shown(from.get());
      if (what == "take") outcome_ = said(from.take());
      if (what == "put") outcome_ = said(to.put(1));
      if (what == "acks") outcome_ = said(to.wait_for_all_ack());
    });
    return "ok";
  }
  std::string join(const std::string&) {
    waiting_.join();
    return outcome_;
  }

  std::optional<Sender> sender_;
  std::optional<Receiver> receiver_;
  std::map<std::string, ArrayRef> arrays_;
  std::vector<TakenItem> deliveries_;
  std::thread waiting_;
  std::string outcome_;
};

const std::map<std::string, Ends::Call> Ends::kCalls = {
    {"pair", &Ends::pair},         {"put", &Ends::put},         {"get", &Ends::get},
    {"get_many", &Ends::get_many}, {"take", &Ends::take},       {"ack", &Ends::ack},
    {"nack", &Ends::nack},         {"requeue", &Ends::requeue}, {"dead_letters", &Ends::dead_letters},
    {"drop", &Ends::drop},         {"size", &Ends::size},       {"new_array", &Ends::new_array},
    {"space", &Ends::space},       {"pending", &Ends::pending}, {"acked", &Ends::acked},
    {"stats", &Ends::stats},       {"close", &Ends::close},     {"closed", &Ends::closed},
    {"start", &Ends::start},       {"join", &Ends::join},       {"dropped", &Ends::dropped},
};

}  // namespace

int main() {
  Ends ends;
  for (std::string line; std::getline(std::cin, line);) std::cout << ends.call(line) << std::endl;
}
