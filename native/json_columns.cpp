// Tapes of JSON values to columns: the values of each node, their texts, and what kinds of value were seen there.
#include "json.h"
#include "numbers.h"

namespace rm {
namespace {

constexpr int EXACT_BYTES = 7;  // every whole number of up to 7 bytes (6 digits and a sign) is exact as float32

}  // namespace

int64_t rm_sort_json_values(Span<const JsonValue> tape, Span<int64_t> places, Span<int64_t> found, Span<int32_t> order,
                            Span<uint8_t> kinds, Span<int32_t> around, Span<int32_t> starts, Span<int32_t> sizes) {
  const int64_t room = min(min(order.size, kinds.size), min(around.size, min(starts.size, sizes.size)));
  if (found.size != places.size) return BOUNDS;
  for (int64_t i = 0; i < tape.size; i++) {
    const JsonValue &value = tape[i];
    const int32_t node = node_of(value);
    if (!places.holds(node) || places[node] < 0 || places[node] >= room) return BOUNDS;
    const int64_t at = places[node]++;
    order[at] = static_cast<int32_t>(i);
    kinds[at] = static_cast<uint8_t>(kind_of(value));
    around[at] = value.around;
    starts[at] = value.start;
    sizes[at] = value.stop - value.start;
    found[node] |= int64_t{1} << kind_of(value);
  }
  return 0;
}

int64_t rm_join_json_texts(ByteSpan data, Span<const int32_t> starts, Span<const int32_t> sizes, ByteSpan kinds,
                           ByteSpan missing, Span<uint8_t> texts, Span<int64_t> offsets) {
  const int64_t count = starts.size;
  if (sizes.size != count || kinds.size != count || offsets.size != count + 1 || (missing && missing.size != count))
    return BOUNDS;
  int64_t at = offsets[0] = 0;
  for (int64_t i = 0; i < count; i++) {
    if (!missing || !missing[i]) {
      const int64_t start = starts[i], size = sizes[i];
      if (!data.holds(start, size) || size > texts.size - at) return BOUNDS;
      if (kinds[i] == JSON_ESCAPED) {
        at += unescape(data, start, start + size, texts.data + at);
      } else {
        copy_text(texts, at, data, start, size);
        at += size;
      }
    }
    offsets[i + 1] = at;
  }
  return at;
}

int64_t rm_count_json_values(ByteSpan data, Span<const JsonValue> tape, Span<int64_t> counts, Span<int64_t> first,
                             Span<int64_t> losses, Span<int64_t> classes) {
  const int64_t nodes = classes.size;
  if (counts.size != nodes * JSON_KINDS || first.size != counts.size || losses.size != nodes * LOSSES)
    return BOUNDS;
  for (int64_t entry = 0; entry < tape.size; entry++) {
    const JsonValue &value = tape[entry];
    const int64_t node = node_of(value), kind = kind_of(value);
    if (!classes.holds(node) || kind >= JSON_KINDS) return BOUNDS;
    const int64_t place = node * JSON_KINDS + kind;
    if (counts[place]++ == 0) first[place] = entry;
    const bool may_lose = kind == JSON_FLOAT || (kind == JSON_INT && value.stop - value.start > EXACT_BYTES);
    const bool may_be_time = kind == JSON_STRING && !(classes[node] & TEXT_CLASS);
    if (!may_lose && !may_be_time) continue;
    if (!data.holds(value.start, int64_t{value.stop} - value.start)) return BOUNDS;
    const Text text = {data.data, value.start, value.stop};
    if (may_be_time) {
      const int64_t time = scan_timestamp(text).classes();
      classes[node] |= time ? time : int64_t{TEXT_CLASS};
    } else if (const int loss = class_of(scan_number(text)).loss) {
      losses[node * LOSSES + loss]++;
    }
  }
  return 0;
}

}  // namespace rm
