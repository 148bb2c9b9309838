#include "shmtree/value.h"

namespace shmtree {

List::List(std::initializer_list<Value> items) : items_(items) {}
List::List(std::vector<Value> items) noexcept : items_(std::move(items)) {}
void List::push_back(Value item) {
  items_.push_back(std::move(item));
}
void List::reserve(std::size_t count) {
  items_.reserve(count);
}
std::size_t List::size() const noexcept {
  return items_.size();
}

Tuple::Tuple(std::initializer_list<Value> items) : items_(items) {}
Tuple::Tuple(std::vector<Value> items) noexcept : items_(std::move(items)) {}
std::size_t Tuple::size() const noexcept {
  return items_.size();
}

Dict::Dict() noexcept = default;
Dict::Dict(const Dict& other) = default;
Dict::Dict(Dict&& other) noexcept = default;
Dict& Dict::operator=(const Dict& other) = default;
Dict& Dict::operator=(Dict&& other) noexcept = default;
Dict::~Dict() = default;

Dict::Dict(std::initializer_list<Entry> entries) {
  entries_.reserve(entries.size());
  for (const Entry& entry : entries) {
    if (Value* there = find(entry.key)) {
      *there = entry.value;
    } else {
      entries_.push_back(entry);
    }
  }
}

Value* Dict::find(const std::string& key) noexcept {
  for (Entry& entry : entries_) {
    if (entry.key == key) return &entry.value;
  }
  return nullptr;
}

void Dict::set(std::string key, Value value) {
  if (Value* there = find(key)) {
    *there = std::move(value);
  } else {
    add(std::move(key), std::move(value));
  }
}

void Dict::add(std::string key, Value value) {
  entries_.push_back({std::move(key), std::move(value)});
}
void Dict::reserve(std::size_t count) {
  entries_.reserve(count);
}
std::size_t Dict::size() const noexcept {
  return entries_.size();
}

}  // namespace shmtree
