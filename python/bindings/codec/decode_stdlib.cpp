#include <climits>

#include "bindings/codec/datetime_api.h"
#include "bindings/codec/decoder.h"
#include "bindings/codec/standard_classes.h"
#include "bindings/codec/zone_key.h"
#include "bindings/cpython/gil.h"

namespace shmtree::python {
namespace {

constexpr std::int64_t kDayMicroseconds = 86'400'000'000;

struct Day {
  int year, month, day;
};

struct TimeOfDay {
  int hour, minute, second, microsecond;
};

// Whether such a day exists, datetime decides.
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

// The time zone (None when there is none) after a time, and its fold. Null on failure.
Ref next_zone(Decoder& decoder, int* fold) {
  const std::uint64_t flags = decoder.in.next_length();
  if (flags > 3) decoder.in.fail("a time has unknown flags");
  if (decoder.in.failed()) return Ref();
  *fold = static_cast<int>(flags & 1);
  if (!(flags & 2)) return Ref::borrow(Py_None);
  Ref zone(decoder.node());
  if (zone && !PyTZInfo_Check(zone.get())) return decoder.in.fail("a time zone is none"), Ref();
  return zone;
}

PyObject* call_with_text(Decoder& decoder, StandardClass which, std::string_view text, const char* what) {
  const Ref argument(decode_str(decoder, text));
  return argument ? decoder.corrupt_unless(call_python(standard_class(which), argument.get()), what) : nullptr;
}

// Fractions with larger parts are not reduced: the time to find a common divisor grows with the square of their size.
constexpr std::uint64_t kReducedBits = 8192;

// 1, 0, or -1 with an error.
int is_reduced_here(PyObject* integer) {
  Ref bits(PyObject_CallMethod(integer, "bit_length", nullptr));
  if (!bits) return -1;
  return PyLong_AsUnsignedLongLong(bits.get()) <= kReducedBits;
}

// Returns the Fraction with these parts, not reduced. The denominator must be positive. Null on failure.
PyObject* fraction_of(Decoder& decoder, PyObject* cls, PyObject* numerator, PyObject* denominator) {
  Ref zero(PyLong_FromLong(0));
  const int positive = zero ? PyObject_RichCompareBool(denominator, zero.get(), Py_GT) : -1;
  if (positive < 0) return nullptr;
  if (positive == 0) return decoder.in.fail("a fraction has a denominator that is not positive"), nullptr;
  Ref nothing(PyTuple_New(0));
  Ref made(nothing ? PyBaseObject_Type.tp_new(reinterpret_cast<PyTypeObject*>(cls), nothing.get(), nullptr) : nullptr);
  if (!made || PyObject_SetAttrString(made.get(), "_numerator", numerator) != 0 ||
      PyObject_SetAttrString(made.get(), "_denominator", denominator) != 0) {
    return nullptr;
  }
  return made.release();
}

PyObject* next_integer(Decoder& decoder) {
  const Kind kind = decoder.in.peek_kind();
  if (kind != Kind::kInt && kind != Kind::kBigInt) return decoder.in.fail("a fraction is not made of ints"), nullptr;
  return decoder.node();
}

}  // namespace

PyObject* decode_date(Decoder& decoder) {
  if (!have_datetime()) return nullptr;
  const Day day = next_day(decoder);
  if (decoder.in.failed()) return nullptr;
  return decoder.corrupt_unless(PyDate_FromDate(day.year, day.month, day.day), "there is no such date");
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
      "there is no such date");
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
  PyObject* zone = argument ? call_python(standard_class(StandardClass::kZoneInfo), argument.get()) : nullptr;
  if (zone || !argument) return zone;
  if (!PyErr_ExceptionMatches(PyExc_KeyError)) return decoder.corrupt_unless(nullptr, "a time zone has an invalid key");
  PyErr_Clear();
  return decoder.incompatible(decoder.in.position(),
                              Ref(PyUnicode_FromFormat("The time zone %R is not installed here; the package tzdata "
                                                       "has all zones",
                                                       argument.get())));
}

PyObject* decode_decimal(Decoder& decoder) {
  const std::string_view text = decoder.in.next_string();
  if (decoder.in.failed()) return nullptr;
  return call_with_text(decoder, StandardClass::kDecimal, text, "a decimal is not a number");
}

PyObject* decode_fraction(Decoder& decoder) {
  Ref numerator(next_integer(decoder));
  Ref denominator(numerator ? next_integer(decoder) : nullptr);
  if (!denominator) return nullptr;
  PyObject* cls = standard_class(StandardClass::kFraction);
  const int small = is_reduced_here(numerator.get()), also_small = is_reduced_here(denominator.get());
  if (small < 0 || also_small < 0) return nullptr;
  if (small == 0 || also_small == 0) return fraction_of(decoder, cls, numerator.get(), denominator.get());
  return decoder.corrupt_unless(call_python(cls, numerator.get(), denominator.get()), "a fraction has no denominator");
}

PyObject* decode_uuid(Decoder& decoder) {
  constexpr std::uint64_t kUuidBytes = 16;
  const std::string_view bytes = decoder.in.next_text(kUuidBytes);
  if (decoder.in.failed()) return nullptr;
  return PyObject_CallFunction(standard_class(StandardClass::kUuid), "Oy#", Py_None, bytes.data(),
                               static_cast<Py_ssize_t>(bytes.size()));
}

PyObject* decode_path(Decoder& decoder) {
  constexpr StandardClass kFlavours[] = {StandardClass::kPath, StandardClass::kPurePosixPath,
                                         StandardClass::kPureWindowsPath};
  const std::uint64_t flavour = decoder.in.next_length();
  const std::string_view text = decoder.in.next_string();
  if (flavour > 2) decoder.in.fail("a path has an unknown flavour");
  if (decoder.in.failed()) return nullptr;
  return call_with_text(decoder, kFlavours[flavour], text, "a path is none");
}

}  // namespace shmtree::python
