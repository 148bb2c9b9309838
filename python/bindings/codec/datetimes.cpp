// Codecs for the classes of `datetime` and `zoneinfo`.
#include <climits>

#include "bindings/codec/datetime_api.h"
#include "bindings/codec/decoder.h"
#include "bindings/codec/encoder.h"
#include "bindings/codec/kind_codec.h"
#include "bindings/codec/standard_class.h"
#include "bindings/codec/zone_key.h"
#include "bindings/cpython/errors.h"
#include "bindings/cpython/gil.h"

namespace shmtree::python {
namespace {

StandardClass zoneinfo_class("zoneinfo", "ZoneInfo");

std::int64_t day_number(PyObject* date) {
  return std::int64_t{PyDateTime_GET_YEAR(date)} << 9 | std::int64_t{PyDateTime_GET_MONTH(date)} << 5 |
         std::int64_t{PyDateTime_GET_DAY(date)};
}

std::int64_t microseconds(int hour, int minute, int second, int microsecond) {
  return ((std::int64_t{hour} * 60 + minute) * 60 + second) * 1'000'000 + microsecond;
}

bool fold_and_zone(Encoder& encoder, int fold, PyObject* zone) {
  const bool has_zone = zone != Py_None;
  encoder.out.add_length(static_cast<std::uint64_t>(fold | has_zone << 1));
  return !has_zone || (encoder.enter() && encoder.child(zone) && encoder.leave());
}

bool encode_date(Encoder& encoder, PyObject* value, const ClassInfo&) {
  encoder.out.add_kind(Kind::kDate);
  encoder.out.add_int(day_number(value));
  return true;
}

bool encode_time(Encoder& encoder, PyObject* value, const ClassInfo&) {
  if (!have_datetime()) return false;
  encoder.out.add_kind(Kind::kTime);
  encoder.out.add_int(microseconds(PyDateTime_TIME_GET_HOUR(value), PyDateTime_TIME_GET_MINUTE(value),
                                   PyDateTime_TIME_GET_SECOND(value), PyDateTime_TIME_GET_MICROSECOND(value)));
  return fold_and_zone(encoder, PyDateTime_TIME_GET_FOLD(value), PyDateTime_TIME_GET_TZINFO(value));
}

bool encode_datetime(Encoder& encoder, PyObject* value, const ClassInfo&) {
  if (!have_datetime()) return false;
  encoder.out.add_kind(Kind::kDateTime);
  encoder.out.add_int(day_number(value));
  encoder.out.add_int(microseconds(PyDateTime_DATE_GET_HOUR(value), PyDateTime_DATE_GET_MINUTE(value),
                                   PyDateTime_DATE_GET_SECOND(value), PyDateTime_DATE_GET_MICROSECOND(value)));
  return fold_and_zone(encoder, PyDateTime_DATE_GET_FOLD(value), PyDateTime_DATE_GET_TZINFO(value));
}

bool encode_timedelta(Encoder& encoder, PyObject* value, const ClassInfo&) {
  encoder.out.add_kind(Kind::kTimeDelta);
  encoder.out.add_int(PyDateTime_DELTA_GET_DAYS(value));
  encoder.out.add_int(std::int64_t{PyDateTime_DELTA_GET_SECONDS(value)} * 1'000'000 +
                      PyDateTime_DELTA_GET_MICROSECONDS(value));
  return true;
}

bool encode_timezone(Encoder& encoder, PyObject* value, const ClassInfo&) {
  if (!have_datetime()) return false;
  if (value == PyDateTime_TimeZone_UTC) return encoder.out.add_kind(Kind::kTimezoneUtc), true;
  Ref arguments(PyObject_CallMethod(value, "__getinitargs__", nullptr));
  if (!arguments) return false;
  PyObject* offset = PyTuple_GetItem(arguments.get(), 0);
  if (!offset) return false;
  encoder.out.add_kind(Kind::kTimezone);
  encoder.out.add_int(
      (std::int64_t{PyDateTime_DELTA_GET_DAYS(offset)} * 86'400 + PyDateTime_DELTA_GET_SECONDS(offset)) * 1'000'000 +
      PyDateTime_DELTA_GET_MICROSECONDS(offset));
  const bool has_name = PyTuple_GET_SIZE(arguments.get()) > 1;
  encoder.out.add_length(has_name);
  return !has_name || encoder.string(PyTuple_GET_ITEM(arguments.get(), 1));
}

bool has_form_of_zone_key(PyObject* key) {
  if (!PyUnicode_CheckExact(key) || !make_ready(key) || !PyUnicode_IS_ASCII(key)) return false;
  return is_zone_key(
      {static_cast<const char*>(PyUnicode_DATA(key)), static_cast<std::size_t>(PyUnicode_GET_LENGTH(key))});
}

// Returns the key of the zone, from its reduction (function, (key, is_cached)). Returns null, without an error, if the
// zone must be pickled: it was read from a file or made without the cache, or receivers would refuse its key.
Ref key_of_zone(PyObject* zone) {
  const Ref reduced(without_unwinding([=] { return PyObject_CallMethod(zone, "__reduce__", nullptr); }));
  if (!reduced) return clear_ordinary_exception(), Ref();
  const bool is_call = PyTuple_CheckExact(reduced.get()) && PyTuple_GET_SIZE(reduced.get()) == 2;
  PyObject* arguments = is_call ? PyTuple_GET_ITEM(reduced.get(), 1) : nullptr;
  if (!arguments || !PyTuple_CheckExact(arguments) || PyTuple_GET_SIZE(arguments) != 2) return Ref();
  PyObject* key = PyTuple_GET_ITEM(arguments, 0);
  const int is_cached = PyObject_IsTrue(PyTuple_GET_ITEM(arguments, 1));
  return is_cached == 1 && has_form_of_zone_key(key) ? Ref::borrow(key) : Ref();
}

bool encode_zoneinfo(Encoder& encoder, PyObject* value, const ClassInfo&) {
  Ref key = Ref::borrow(encoder.session().known_zone_key(value));
  if (!key) {
    key = key_of_zone(value);
    if (!key) return !PyErr_Occurred() && encoder.needs_pickle(value);
    encoder.session().set_known_zone(value, key.get());
  }
  encoder.out.add_kind(Kind::kZoneInfo);
  return encoder.try_name(key.get()) || (!PyErr_Occurred() && encoder.needs_pickle(value));
}

constexpr std::int64_t kDayMicroseconds = 86'400'000'000;

struct Day {
  int year, month, day;
};

struct TimeOfDay {
  int hour, minute, second, microsecond;
};

// Does not check that the day exists; datetime does.
Day next_day(Decoder& decoder) {
  const std::int64_t packed = decoder.in.next_int();
  if (packed < 0 || packed >> 9 > 9999) return decoder.in.fail("a date is out of range"), Day{};
  return {static_cast<int>(packed >> 9), static_cast<int>(packed >> 5 & 15), static_cast<int>(packed & 31)};
}

TimeOfDay next_time(Decoder& decoder) {
  std::int64_t left = decoder.in.next_int();
  if (left < 0 || left >= kDayMicroseconds) return decoder.in.fail("a time is out of range"), TimeOfDay{};
  TimeOfDay time{};
  time.microsecond = static_cast<int>(left % 1'000'000);
  left /= 1'000'000;
  time.second = static_cast<int>(left % 60);
  time.minute = static_cast<int>(left / 60 % 60);
  time.hour = static_cast<int>(left / 3600);
  return time;
}

// Reads the fold and the time zone that follow a time. Returns None if there is no zone, and null on failure.
Ref next_zone(Decoder& decoder, int* fold) {
  const std::uint64_t flags = decoder.in.next_flags(3);
  if (decoder.in.failed()) return Ref();
  *fold = static_cast<int>(flags & 1);
  if (!(flags & 2)) return Ref::borrow(Py_None);
  Ref zone(decoder.node());
  if (zone && !PyTZInfo_Check(zone.get())) return decoder.in.fail("a time zone is not a tzinfo"), Ref();
  return zone;
}

PyObject* decode_date(Decoder& decoder) {
  if (!have_datetime()) return nullptr;
  const Day day = next_day(decoder);
  if (decoder.in.failed()) return nullptr;
  return decoder.corrupt_unless(PyDate_FromDate(day.year, day.month, day.day), "a date does not exist");
}

PyObject* decode_time(Decoder& decoder) {
  if (!have_datetime()) return nullptr;
  const TimeOfDay time = next_time(decoder);
  int fold = 0;
  Ref zone = next_zone(decoder, &fold);
  if (!zone) return nullptr;
  return PyDateTimeAPI->Time_FromTimeAndFold(time.hour, time.minute, time.second, time.microsecond, zone.get(), fold,
                                             PyDateTimeAPI->TimeType);
}

PyObject* decode_datetime(Decoder& decoder) {
  if (!have_datetime()) return nullptr;
  const Day day = next_day(decoder);
  const TimeOfDay time = next_time(decoder);
  int fold = 0;
  Ref zone = next_zone(decoder, &fold);
  if (!zone) return nullptr;
  return decoder.corrupt_unless(
      PyDateTimeAPI->DateTime_FromDateAndTimeAndFold(day.year, day.month, day.day, time.hour, time.minute, time.second,
                                                     time.microsecond, zone.get(), fold, PyDateTimeAPI->DateTimeType),
      "a date does not exist");
}

PyObject* decode_timedelta(Decoder& decoder) {
  if (!have_datetime()) return nullptr;
  const std::int64_t days = decoder.in.next_int();
  const std::int64_t rest = decoder.in.next_int();
  if (days < INT_MIN || days > INT_MAX || rest < 0 || rest >= kDayMicroseconds) {
    return decoder.in.fail("a timedelta is out of range"), nullptr;
  }
  return decoder.corrupt_unless(
      PyDelta_FromDSU(static_cast<int>(days), static_cast<int>(rest / 1'000'000), static_cast<int>(rest % 1'000'000)),
      "a timedelta is out of range");
}

PyObject* decode_timezone_utc(Decoder&) {
  return have_datetime() ? Py_NewRef(PyDateTime_TimeZone_UTC) : nullptr;
}

PyObject* decode_timezone(Decoder& decoder) {
  if (!have_datetime()) return nullptr;
  const std::int64_t offset = decoder.in.next_int();
  const std::uint64_t has_name = decoder.in.next_length();
  if (offset <= -kDayMicroseconds || offset >= kDayMicroseconds || has_name > 1) {
    return decoder.in.fail("a time zone is out of range"), nullptr;
  }
  Ref delta(PyDelta_FromDSU(0, static_cast<int>(offset / 1'000'000), static_cast<int>(offset % 1'000'000)));
  Ref name(delta && has_name ? decode_str(decoder, decoder.in.next_string()) : nullptr);
  if (!delta || (has_name && !name)) return nullptr;
  return decoder.corrupt_unless(PyDateTimeAPI->TimeZone_FromTimeZone(delta.get(), name.get()),
                                "a time zone is out of range");
}

PyObject* decode_zoneinfo(Decoder& decoder) {
  const std::string_view key = decoder.in.next_name().text;
  if (decoder.in.failed()) return nullptr;
  if (!is_zone_key(key)) return decoder.in.fail("the key of a time zone is malformed"), nullptr;
  const Ref argument(decode_str(decoder, key));
  PyObject* zone = argument ? call_python(zoneinfo_class.get(), argument.get()) : nullptr;
  if (zone || !argument) return zone;
  if (!PyErr_ExceptionMatches(PyExc_KeyError)) return decoder.corrupt_unless(nullptr, "a time zone has an invalid key");
  PyErr_Clear();
  return decoder.incompatible(decoder.in.position(),
                              Ref(PyUnicode_FromFormat("The time zone %R is not installed here; the package tzdata "
                                                       "has all zones",
                                                       argument.get())));
}

// The types are looked up late, after datetime is loaded.
const KindCodec date_codec({{Kind::kDate, decode_date}}, {{[] { return PyDateTimeAPI->DateType; }, encode_date}});
const KindCodec time_codec({{Kind::kTime, decode_time}}, {{[] { return PyDateTimeAPI->TimeType; }, encode_time}});
const KindCodec datetime_codec({{Kind::kDateTime, decode_datetime}},
                               {{[] { return PyDateTimeAPI->DateTimeType; }, encode_datetime}});
const KindCodec timedelta_codec({{Kind::kTimeDelta, decode_timedelta}},
                                {{[] { return PyDateTimeAPI->DeltaType; }, encode_timedelta}});
const KindCodec timezone_codec({{Kind::kTimezoneUtc, decode_timezone_utc}, {Kind::kTimezone, decode_timezone}},
                               {{[] { return Py_TYPE(PyDateTimeAPI->TimeZone_UTC); }, encode_timezone}});
const KindCodec zoneinfo_codec({{Kind::kZoneInfo, decode_zoneinfo}}, {{"zoneinfo:ZoneInfo", encode_zoneinfo}});

}  // namespace

}  // namespace shmtree::python
