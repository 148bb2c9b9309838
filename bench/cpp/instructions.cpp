// Runs pieces of work for callgrind. Each piece runs a few times, to allocate memory and fill caches, and once more
// inside measured(). Prints the compiler and library versions, then the name of each piece, in order.
// bench/instructions.py runs it and compares the counts with the recorded ones. With a name as argument, counts only
// that piece, which shows where its instructions go:
//   valgrind --tool=callgrind --collect-atstart=no --toggle-collect=measured bench_instructions "decode scalars"
#include <gnu/libc-version.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "samples.h"
#include "shmtree/shmtree.h"
#include "value/codec.h"
#include "value/plain_dict.h"

using namespace shmtree;

// Callgrind counts between the entry and the exit of this function, so the compiler must not inline or analyse it.
extern "C" {
[[gnu::noipa]] void measured(void (*work)(void*), void* state) {
  work(state);
  asm volatile("" ::: "memory");  // prevents a tail call, which would exit before the work
}
}

namespace {

std::string wanted;  // empty for all

template <class Work>
void count(const std::string& name, Work work) {
  if (!wanted.empty() && name != wanted) return;
  for (int i = 0; i < 20; ++i) work();
  measured([](void* state) { (*static_cast<Work*>(state))(); }, &work);
  std::puts(name.c_str());
}

// Counts everything except the copies of the arrays' bytes. They are memcpy's work and would hide the rest.
void count_codec(const bench::Sample& sample) {
  const Value value = sample.make();
  format::FrameBuilder builder;
  value::encode(value, builder).value();
  auto frame = std::make_shared<std::vector<std::uint64_t>>(builder.total_bytes() / 8 + 1);
  auto* bytes = reinterpret_cast<std::byte*>(frame->data());
  builder.write(bytes);
  count(std::string("encode ") + sample.name, [&] {  // as put() does
    if (const auto plain = value::PlainDict::of(value)) return plain->write(bytes);
    value::encode(value, builder).value();
    builder.write_metadata(bytes);
  });
  count(std::string("decode ") + sample.name, [&, size = builder.total_bytes()] {
    value::decode({bytes, size}, frame).value();
  });
}

// Counts a put and a get in one process.
void count_message(const char* name, const Value& value) {
  auto [sender, receiver] = make_pair({.capacity = 8});
  const auto patience = std::chrono::seconds(60);
  count(std::string("put ") + name + " and get it", [&] {
    sender.put(value, patience).value();
    receiver.get(patience).value();
  });
}

// Counts a put and a get of bytes without a tree.
void count_bytes() {
  auto [sender, receiver] = make_pair({.capacity = 8});
  const std::uint64_t number = 17;
  count("put 8 bytes and get them", [&] {
    sender.put_bytes(std::as_bytes(std::span(&number, 1))).value();
    receiver.get_struct<std::uint64_t>().value();
  });
}

// Counts 32 structs of 8 bytes, put and received together.
void count_structs() {
  auto [sender, receiver] = make_pair({.capacity = 64});
  std::uint64_t numbers[32] = {};
  count("put 32 structs and get them", [&] {
    sender.put_structs<std::uint64_t>(numbers).value();
    if (receiver.get_structs<std::uint64_t>(numbers).value() != 32) std::abort();
  });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) wanted = argv[1];
  std::printf("gcc %d, glibc %s, %s\n", __GNUC__, gnu_get_libc_version(),
#if defined(__x86_64__)
              "x86-64"
#else
              "another architecture"
#endif
  );
  for (const bench::Sample& sample : bench::kSamples) count_codec(sample);
  count_message("scalars", bench::five_scalars());
  count_message("1 KB", bench::plain_bytes(1024));
  count_bytes();
  count_structs();
}
