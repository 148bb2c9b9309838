// C++ and Python accept the same texts. C++ refuses any other text when it is put.
#include "platform/text.h"

#include <string>
#include <string_view>

#include "shmtree/base/kind.h"
#include "support/catch2.h"
#include "value/codec.h"

using namespace shmtree;
using platform::is_text;
using platform::utf8_prefix;
using namespace std::string_view_literals;

namespace {

Status encoded(const Value& value) {
  format::FrameBuilder builder;
  return value::encode(value, builder);
}

}  // namespace

TEST_CASE("valid code points and surrogates are accepted as text") {
  for (const std::string_view text :
       {""sv, "\0"sv, "\x7f"sv, "\xc2\x80"sv, "\xdf\xbf"sv, "\xe0\xa0\x80"sv, "\xed\x9f\xbf"sv, "\xed\xa0\x80"sv,
        "\xed\xbf\xbf"sv, "\xef\xbf\xbf"sv, "\xf0\x90\x80\x80"sv, "\xf4\x8f\xbf\xbf"sv, "gr\xc3\xbc\xc3\x9f"sv}) {
    for (std::size_t before = 0; before < 18; ++before) {
      INFO("after " << before << " letters: " << text);
      CHECK(is_text(std::string(before, 'a').append(text).append("z")));
    }
  }
}

TEST_CASE("invalid UTF-8 is detected with its position") {
  for (const std::string_view bytes :
       {"\x80"sv, "\xbf"sv, "\xc0\x80"sv, "\xc1\xbf"sv, "\xc3"sv, "\xc3("sv, "\xe0\x9f\xbf"sv, "\xe2\x82"sv,
        "\xe2(\xa1"sv, "\xe2\x82("sv, "\xf0\x8f\xbf\xbf"sv, "\xf0\x90\x80"sv, "\xf4\x90\x80\x80"sv,
        "\xf5\x80\x80\x80"sv, "\xff"sv}) {
    for (std::size_t before = 0; before < 18; ++before) {
      for (const std::string_view after : {""sv, "zzzzzzzzz"sv}) {
        const std::string text = std::string(before, 'a').append(bytes).append(after);
        CHECK_FALSE(is_text(text));
        CHECK(utf8_prefix(text) == before);
      }
    }
  }
}

TEST_CASE("a text or key that is not UTF-8 is refused with the byte") {
  const std::string longest(kMaxNameBytes, 'k');
  CHECK(encoded(Dict{{"note", "gr\xc3\xbc\xc3\x9f"}, {longest + "\xc3\xbc", 1}}).ok());

  for (const Value& value : {Value("caf\xe9"), Value(Dict{{"caf\xe9", 1}}), Value(Dict{{longest + "\xe9", 1}}),
                             Value(List{1, Dict{{"note", std::string(10'000, 'x') + "\xe9"}}})}) {
    CHECK(encoded(value).code() == Code::kInvalid);
  }
  const Status refused = encoded(Dict{{"note", "caf\xe9\n"}});
  CHECK(refused.error().message ==
        "A text to send is not UTF-8 from byte 3 of its 5 on: \"caf\\xe9\\x0a\". Send binary data as shmtree::Bytes.");
}
