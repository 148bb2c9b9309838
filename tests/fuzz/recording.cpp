// Coverage-guided search for a file that crashes the reader of recordings.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "cost.h"
#include "recording/recording_reader.h"
#include "support/recordings.h"
#include "value/codec.h"

using namespace shmtree;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const fuzz::Cost cost;
  // The magic is added before the input, so that the search does not waste time on it.
  const std::string bytes = std::string(test::kMagic).append(reinterpret_cast<const char*>(data), size);
  const auto reader = recording::Reader::map(test::FileInMemory(bytes).fd(), "input");
  if (!reader.ok()) return 0;
  recording::Cursor cursor(**reader);
  recording::Entry entry;
  std::uint64_t messages = 0;
  while (cursor.next(entry).value()) {
    if (entry.channel >= (*reader)->channels().size()) std::abort();
    const auto item = value::decode(entry.frame, *reader);
    if (item.ok()) {
      for (const Item& part : *item) (void)part.try_as<std::string>().ok();
    }
    ++messages;
  }
  if (messages != (*reader)->size()) std::abort();
  return 0;
}
