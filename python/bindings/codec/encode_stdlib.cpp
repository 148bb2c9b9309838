// datetime, decimal, fractions, uuid, pathlib, zoneinfo.
#include "bindings/codec/datetime_api.h"
#include "bindings/codec/encoder.h"
#include "bindings/codec/zone_key.h"
#include "bindings/cpython/errors.h"
#include "bindings/cpython/gil.h"

namespace shmtree::python {
namespace {

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
  return !has_zone || (encoder.deeper() && encoder.child(zone) && encoder.leave());
}

Ref attribute(PyObject* object, const char* name) {
  return Ref(staying([=] { return PyObject_GetAttrString(object, name); }));
}

// The text of a str as kind `S`.
bool string(Encoder& encoder, PyObject* str) {
  Ref bytes(PyUnicode_AsEncodedString(str, "utf-8", "surrogatepass"));
  if (!bytes) return false;
  encoder.out.add_string(PyBytes_AS_STRING(bytes.get()), static_cast<std::size_t>(PyBytes_GET_SIZE(bytes.get())));
  return true;
}

bool path_of(Encoder& encoder, PyObject* value, std::uint64_t flavour) {
  Ref text(staying([=] { return PyObject_Str(value); }));
  if (!text) return false;
  encoder.out.begin_node(Kind::kPath, flavour);
  return string(encoder, text.get());
}

}  // namespace

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
  return !has_name || string(encoder, PyTuple_GET_ITEM(arguments.get(), 1));
}

namespace {

bool has_form_of_zone_key(PyObject* key) {
  if (!PyUnicode_CheckExact(key) || !make_ready(key) || !PyUnicode_IS_ASCII(key)) return false;
  return is_zone_key(
      {static_cast<const char*>(PyUnicode_DATA(key)), static_cast<std::size_t>(PyUnicode_GET_LENGTH(key))});
}

// Returns the key that leads to this zone. Null, without an error, for a zone that was read from a file or made without
// the cache, and for a key that receivers refuse: only pickle can send or refuse such a zone. Reads the zone's
// reduction, (function, (key, is_cached)).
Ref key_of_zone(PyObject* zone) {
  const Ref reduced(staying([=] { return PyObject_CallMethod(zone, "__reduce__", nullptr); }));
  if (!reduced) return clear_ordinary_exception(), Ref();
  const bool is_call = PyTuple_CheckExact(reduced.get()) && PyTuple_GET_SIZE(reduced.get()) == 2;
  PyObject* arguments = is_call ? PyTuple_GET_ITEM(reduced.get(), 1) : nullptr;
  if (!arguments || !PyTuple_CheckExact(arguments) || PyTuple_GET_SIZE(arguments) != 2) return Ref();
  PyObject* key = PyTuple_GET_ITEM(arguments, 0);
  const int is_cached = PyObject_IsTrue(PyTuple_GET_ITEM(arguments, 1));
  return is_cached == 1 && has_form_of_zone_key(key) ? Ref::borrow(key) : Ref();
}

}  // namespace

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

bool encode_decimal(Encoder& encoder, PyObject* value, const ClassInfo&) {
  Ref text(PyObject_Str(value));
  if (!text) return false;
  encoder.out.add_kind(Kind::kDecimal);
  return string(encoder, text.get());
}

bool encode_fraction(Encoder& encoder, PyObject* value, const ClassInfo&) {
  Ref numerator = attribute(value, "numerator");
  Ref denominator = numerator ? attribute(value, "denominator") : Ref();
  if (!denominator) return false;
  if (!PyLong_CheckExact(numerator.get()) || !PyLong_CheckExact(denominator.get())) return encoder.needs_pickle(value);
  encoder.out.add_kind(Kind::kFraction);
  return encoder.node(numerator.get()) && encoder.node(denominator.get());
}

bool encode_uuid(Encoder& encoder, PyObject* value, const ClassInfo&) {
  constexpr Py_ssize_t kUuidBytes = 16;
  Ref safety(PyObject_GetAttrString(value, "is_safe"));
  Ref safety_value(safety ? PyObject_GetAttrString(safety.get(), "value") : nullptr);
  if (!safety_value) return false;
  // SafeUUID.unknown, as every UUID but a freshly generated uuid1 has it.
  if (safety_value.get() != Py_None) return encoder.needs_pickle(value);
  Ref bytes = attribute(value, "bytes");
  if (!bytes) return false;
  if (!PyBytes_CheckExact(bytes.get()) || PyBytes_GET_SIZE(bytes.get()) != kUuidBytes) {
    return encoder.needs_pickle(value);
  }
  encoder.out.add_kind(Kind::kUuid);
  encoder.out.add_text(PyBytes_AS_STRING(bytes.get()), kUuidBytes);
  return true;
}

bool encode_path(Encoder& encoder, PyObject* value, const ClassInfo&) {
  return path_of(encoder, value, 0);
}

bool encode_pure_posix_path(Encoder& encoder, PyObject* value, const ClassInfo&) {
  return path_of(encoder, value, 1);
}

bool encode_pure_windows_path(Encoder& encoder, PyObject* value, const ClassInfo&) {
  return path_of(encoder, value, 2);
}

}  // namespace shmtree::python
