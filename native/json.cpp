// Lines of JSON (RFC 8259) to a tape of values, validated in the same pass; and tapes to columns.
//
// A tape holds the scalars, objects and arrays of many records in the order of the text. Each value names its node: its path
// in the record (`a`, `a.b`, the elements of `a.c`). The nodes are a trie of keys, which grows as keys are met.
//
// Beyond the RFC, NaN, Infinity and -Infinity are numbers, since Python's json module writes them. Control characters,
// unknown escapes and lone surrogates in strings are faults, because no UTF-8 text has the same meaning.
#include <charconv>

#include "feature_parser.h"
#include "numbers.h"

namespace rm {
namespace {

int32_t node_of(const JsonValue &value) { return value.head >> 4; }
JsonKind detect_input_kind(const JsonValue &value) { return static_cast<JsonKind>(value.head & 15); }

RM_INLINE int64_t skip_space(ByteSpan data, int64_t at) {
  while (at < data.size && (data[at] == ' ' || data[at] == '\t' || data[at] == '\r')) at++;
  return at;
}

// Returns whether a position is at the end of its line.
RM_INLINE bool at_end(ByteSpan data, int64_t at) { return at >= data.size || data[at] == '\n'; }

// Returns whether a byte of a string stands for itself.
RM_INLINE bool is_plain(uint8_t byte) { return byte >= 0x20 && byte != '"' && byte != '\\'; }

constexpr int STRIDE = sizeof(Lanes);

// Returns the number of plain bytes at the start of `bytes`, up to STRIDE. Reads STRIDE bytes.
RM_INLINE int count_plain(const uint8_t *bytes) {
  const Lanes lanes = load<Lanes>(bytes), controls = (lanes & int8_t{-0x20}) == 0;
  const uint64_t special = high_bits(controls | (lanes == int8_t{'"'}) | (lanes == int8_t{'\\'}));
  return first_bit(special | uint64_t{1} << STRIDE);  // the bit added makes the result STRIDE if all are plain
}

// Returns the number that four hexadecimal digits make, or -1.
int read_hex4(ByteSpan data, int64_t at) {
  if (!data.holds(at, 4)) return -1;
  const char *const first = reinterpret_cast<const char *>(data.data + at);
  unsigned value = 0;
  return std::from_chars(first, first + 4, value, 16).ptr == first + 4 ? static_cast<int>(value) : -1;
}

struct Escape {
  int64_t length;       // in bytes; a surrogate pair is one escape
  uint32_t code_point;
  JsonFault fault;
};

// Reads the escape that begins with the backslash at `at`.
Escape read_escape(ByteSpan data, int64_t at) {
  if (at + 1 >= data.size) return {1, 0, JsonFault::CUT_OFF};
  constexpr char NAMES[] = "\"\\/bfnrt", MEANT[] = "\"\\/\b\f\n\r\t";
  for (int i = 0; i < 8; i++)
    if (data[at + 1] == NAMES[i]) return {2, static_cast<uint8_t>(MEANT[i]), JsonFault::NONE};
  if (data[at + 1] != 'u') return {1, 0, JsonFault::UNKNOWN_ESCAPE};
  const int first = read_hex4(data, at + 2);
  if (first < 0) return {1, 0, JsonFault::UNKNOWN_ESCAPE};
  if (first < 0xD800 || first > 0xDFFF) return {6, static_cast<uint32_t>(first), JsonFault::NONE};
  if (first > 0xDBFF || at + 7 >= data.size || data[at + 6] != '\\' || data[at + 7] != 'u')
    return {1, 0, JsonFault::LONE_SURROGATE};
  const int second = read_hex4(data, at + 8);
  if (second < 0xDC00 || second > 0xDFFF) return {1, 0, JsonFault::LONE_SURROGATE};
  return {12, static_cast<uint32_t>(0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00)), JsonFault::NONE};
}

// Resolves the escapes of a valid string. Returns the length of the text, which is never longer than the string.
int64_t unescape(ByteSpan data, int64_t start, int64_t stop, uint8_t *into) {
  const ByteSpan text = {data.data, stop};
  uint8_t *out = into;
  while (start < stop) {
    if (data[start] != '\\') {
      *out++ = data[start++];
      continue;
    }
    const Escape escape = read_escape(text, start);
    const uint32_t point = escape.code_point;
    start += escape.length;
    if (point < 0x80) {
      *out++ = static_cast<uint8_t>(point);
      continue;
    }
    const int extra = point < 0x800 ? 1 : point < 0x10000 ? 2 : 3;
    *out++ = static_cast<uint8_t>((extra == 1 ? 0xC0 : extra == 2 ? 0xE0 : 0xF0) | (point >> (6 * extra)));
    for (int left = extra - 1; left >= 0; left--) *out++ = static_cast<uint8_t>(0x80 | ((point >> (6 * left)) & 0x3F));
  }
  return out - into;
}

struct Token {
  int64_t end;  // of a string its closing quote, of others the byte after them; if there is a fault, its position
  JsonKind kind;
  JsonFault fault;
};

RM_INLINE bool has_fault(JsonFault fault) { return fault != JsonFault::NONE; }

// Reads the string whose first byte, after the quote, is at `at`.
RM_INLINE Token read_string(ByteSpan data, int64_t at) {
  JsonKind kind = JsonKind::STRING;
  for (;;) {
    if (RM_LIKELY(data.size - at >= STRIDE)) {
      const int plain = count_plain(data.data + at);
      at += plain;
      if (plain == STRIDE) continue;
    } else {
      while (at < data.size && is_plain(data[at])) at++;
      if (at >= data.size) return {at, kind, JsonFault::CUT_OFF};
    }
    if (RM_LIKELY(data[at] == '"')) return {at, kind, JsonFault::NONE};
    if (data[at] != '\\') return {at, kind, data[at] == '\n' ? JsonFault::CUT_OFF : JsonFault::CONTROL_CHARACTER};
    kind = JsonKind::ESCAPED_STRING;
    const Escape escape = read_escape(data, at);
    if (has_fault(escape.fault)) return {at, kind, escape.fault};
    at += escape.length;
  }
}

RM_INLINE int64_t skip_digits(ByteSpan data, int64_t at) {
  while (at < data.size && is_digit(data[at])) at++;
  return at;
}

RM_INLINE Token read_literal(ByteSpan data, int64_t at) {
  Token token = {at, JsonKind::NULL_VALUE, data[at] == '\n' ? JsonFault::CUT_OFF : JsonFault::SYNTAX};
  const auto matches = [&](const auto &word, JsonKind kind) {
    const int64_t size = sizeof word - 1;
    const bool is_match = data.holds(at, size) && memcmp(data.data + at, word, size) == 0;
    if (is_match) token = {at + size, kind, JsonFault::NONE};
    return is_match;
  };
  matches("true", JsonKind::TRUE_VALUE) || matches("false", JsonKind::FALSE_VALUE) || matches("null", JsonKind::NULL_VALUE) || matches("NaN", JsonKind::FLOAT) ||
      matches("Infinity", JsonKind::FLOAT);
  return token;
}

RM_INLINE Token read_number(ByteSpan data, int64_t at) {
  at += data[at] == '-';
  if (at >= data.size) return {at, JsonKind::INT, JsonFault::CUT_OFF};
  if (data[at] == 'I') return read_literal(data, at);
  int64_t first = at;
  at = skip_digits(data, at);
  if (at == first || (data[first] == '0' && at > first + 1)) return {first, JsonKind::INT, JsonFault::BAD_NUMBER};
  JsonKind kind = JsonKind::INT;
  if (at < data.size && data[at] == '.') {
    kind = JsonKind::FLOAT;
    first = at + 1;
    at = skip_digits(data, first);
  }
  if (at > first && at < data.size && (data[at] | 0x20) == 'e') {
    kind = JsonKind::FLOAT;
    first = at + 1;
    first += first < data.size && (data[first] == '+' || data[first] == '-');
    at = skip_digits(data, first);
  }
  return {at, kind, at == first ? JsonFault::BAD_NUMBER : JsonFault::NONE};
}

// The nodes: slots of a table of names, and what is known of each. Node 0 is the record itself.
struct Trie {
  Names names;  // the part of a key is the node around it. The elements of array a are the name "" of part -1 - a
  Span<JsonNode> nodes;

  // Returns the node of a key, which is added if it is new; -1 if there is no room for it.
  int32_t find(const Key &key) {
    const int64_t known = names.used(), node = names.add(key);
    if (node >= known) {
      nodes[node] = {-1, -1, -1, 0, -1, 1};
      for (int64_t i = 0; i < key.size; i++) nodes[node].is_plain &= is_plain(key.begin[i]);
    }
    return static_cast<int32_t>(node);
  }

  // Returns the node of an array's elements; -1 if there is no room for it.
  RM_INLINE int32_t element(int32_t node) {
    int32_t &element = nodes[node].element;
    if (RM_UNLIKELY(element < 0)) {
      const uint8_t *const empty = names.free_text().data;
      element = find(Key({empty, empty}, -1 - node, empty));
    }
    return element;
  }

  // Returns whether the arrays of the caller fit together, and all indices in the nodes are inside them.
  bool fits() {
    if (!names.fits() || names.slots() > nodes.size || nodes.size > INT32_MAX >> 4) return false;
    const auto is_node = [&](int32_t node) { return node == -1 || (node > 0 && node < names.used()); };
    for (int64_t i = 0; i < names.used(); i++)
      if (!is_node(nodes[i].element) || !is_node(nodes[i].first_member) || !is_node(nodes[i].next_member)) return false;
    return true;
  }
};

struct KeyToken {
  int64_t end;  // the position of the value; if there is a fault, its position
  int32_t node;
  JsonFault fault;
};

// Reads a key with the colon and the space after it. In most lines it is the key that came here last time, and one memcmp
// confirms that.
//   parent: the node of the object.
//   previous: the node of the member before it in the object, or -1.
RM_INLINE KeyToken read_key(ByteSpan data, int64_t at, Trie &trie, int32_t parent, int32_t previous) {
  if (at_end(data, at) || data[at] != '"') return {at, 0, at_end(data, at) ? JsonFault::CUT_OFF : JsonFault::SYNTAX};
  const int64_t start = at + 1;
  int32_t &guess = previous < 0 ? trie.nodes[parent].first_member : trie.nodes[previous].next_member;
  if (RM_LIKELY(guess >= 0 && trie.nodes[guess].is_plain == 1)) {
    const ByteSpan expected = trie.names.text(guess);
    const int64_t end = start + expected.size;
    const bool is_key = end + 1 < data.size && data[end] == '"' && data[end + 1] == ':';
    if (RM_LIKELY(is_key && !memcmp(data.data + start, expected.data, static_cast<size_t>(expected.size))))
      return {skip_space(data, end + 2), guess, JsonFault::NONE};
  }
  const Token key = read_string(data, start);
  if (has_fault(key.fault)) return {key.end, 0, key.fault};
  at = skip_space(data, key.end + 1);
  if (at_end(data, at) || data[at] != ':') return {at, 0, at_end(data, at) ? JsonFault::CUT_OFF : JsonFault::SYNTAX};
  at = skip_space(data, at + 1);
  ByteRange text{data.data + start, data.data + key.end};
  if (key.kind == JsonKind::ESCAPED_STRING) {
    const Span<uint8_t> free = trie.names.free_text();
    if (text.size() > free.size) return {at, 0, JsonFault::NO_ROOM};
    text = {free.data, free.data + unescape(data, start, key.end, free.data)};
  }
  const int32_t node = trie.find(Key(text, parent, text.end));
  if (node < 0) return {at, 0, JsonFault::NO_ROOM};
  guess = node;
  return {at, node, JsonFault::NONE};
}

// An object or array that is being read.
struct Container {
  int32_t node;
  int32_t ordinal;  // among the values of its node; of the record itself among all records
  int32_t value;    // index on the tape
  bool is_array;
};

struct Tape {
  Span<JsonValue> values;
  int64_t size;   // values on it
  int64_t limit;  // its size at which the line has too many values
};

struct LineEnd {
  int64_t position;  // of the end of the line, or of the fault
  JsonFault fault;
};

// Reads a line that holds one object.
LineEnd scan_record(ByteSpan data, int64_t at, int32_t record, Trie &trie, Tape &tape) {
  const auto fault = [](int64_t position, JsonFault fault) { return LineEnd{position, fault}; };
  if (data[at] != '{') return fault(at, data[at] == JSON_UNREADABLE_BYTE ? JsonFault::NOT_UTF8 : JsonFault::NOT_AN_OBJECT);
  Container stack[JSON_MAX_DEPTH];
  Container *top = stack;
  *top = {0, record, -1, false};
  int32_t previous = -1;  // node of the member before in the innermost object
  bool is_first = true;   // nothing was read yet in the innermost object or array
  at = skip_space(data, at + 1);
  for (;;) {
    if (RM_UNLIKELY(at_end(data, at))) return fault(at, JsonFault::CUT_OFF);
    if (data[at] == (top->is_array ? ']' : '}')) {
      const int64_t stop = at + 1;
      at = skip_space(data, stop);
      if (top == stack) return fault(at, at_end(data, at) ? JsonFault::NONE : JsonFault::TRAILING_DATA);
      tape.values[top->value].stop = static_cast<int32_t>(stop);
      previous = top->node;
      top--;
      is_first = false;
      continue;
    }
    if (!is_first) {
      if (RM_UNLIKELY(data[at] != ',')) return fault(at, JsonFault::SYNTAX);
      at = skip_space(data, at + 1);
    }
    int32_t node;
    if (top->is_array) {
      node = trie.element(top->node);
      if (RM_UNLIKELY(node < 0)) return fault(at, JsonFault::NO_ROOM);
    } else {
      const KeyToken key = read_key(data, at, trie, top->node, is_first ? -1 : previous);
      at = key.end;
      node = key.node;
      if (RM_UNLIKELY(has_fault(key.fault))) return fault(at, key.fault);
      if (RM_UNLIKELY(trie.nodes[node].last_parent == top->ordinal)) return fault(at, JsonFault::DUPLICATE_KEY);
    }
    if (RM_UNLIKELY(tape.size >= tape.limit)) return fault(at, JsonFault::TOO_MANY_VALUES);
    if (RM_UNLIKELY(tape.size >= tape.values.size)) return fault(at, JsonFault::NO_ROOM);
    if (RM_UNLIKELY(at >= data.size)) return fault(at, JsonFault::CUT_OFF);
    const uint8_t byte = data[at];
    Token token = {at, byte == '{' ? JsonKind::OBJECT : JsonKind::ARRAY, JsonFault::NONE};
    int64_t start = at;
    if (byte == '"') token = read_string(data, ++start);
    else if (byte == '-' || is_digit(byte)) token = read_number(data, at);
    else if (byte != '{' && byte != '[') token = read_literal(data, at);
    if (RM_UNLIKELY(has_fault(token.fault))) return fault(token.end, token.fault);
    at = skip_space(data, token.end + (token.kind >= JsonKind::STRING));  // after the quote or bracket
    const int32_t first = static_cast<int32_t>(start), stop = static_cast<int32_t>(token.end);
    tape.values[tape.size++] = {node << 4 | static_cast<int32_t>(token.kind), top->ordinal, first, stop};
    const int32_t ordinal = trie.nodes[node].count++;
    // Set only now that the value is on the tape: a line with a fault is undone by taking its values back.
    trie.nodes[node].last_parent = top->ordinal;
    previous = node;
    is_first = token.kind >= JsonKind::OBJECT;
    if (!is_first) continue;
    if (++top == stack + JSON_MAX_DEPTH) return fault(at, JsonFault::TOO_DEEP);
    *top = {node, ordinal, static_cast<int32_t>(tape.size - 1), token.kind == JsonKind::ARRAY};
  }
}

}  // namespace

int64_t rm_scan_json(ByteSpan data, Span<int64_t> table, Span<JsonNode> nodes, Span<JsonValue> tape,
                     Span<int32_t> record_lines, Span<int32_t> record_values, Span<JsonError> errors, JsonScan &scan) {
  Trie trie = {Names(table), nodes};
  if (!trie.fits() || data.size > INT32_MAX || scan.position < 0) return BOUNDS;
  for (int64_t i = 0; i < trie.names.used(); i++) nodes[i].count = 0, nodes[i].last_parent = -1;
  Tape values = {tape, 0, 0};
  const int64_t most_records = min(record_lines.size, record_values.size);
  scan.lines = scan.records = scan.errors = 0;
  JsonScanEnd scan_end = JsonScanEnd::DONE;
  while (scan.position < data.size && scan.records < most_records && scan.errors < errors.size) {
    const int64_t start = scan.position, first = values.size;
    int64_t at = skip_space(data, start);
    if (!at_end(data, at)) {
      values.limit = first + scan.max_line_values;
      const LineEnd line = scan_record(data, at, static_cast<int32_t>(scan.records), trie, values);
      at = line.position;
      if (line.fault == JsonFault::NONE) {
        record_lines[scan.records] = static_cast<int32_t>(scan.lines);
        record_values[scan.records++] = static_cast<int32_t>(first);
      } else {
        if (line.fault == JsonFault::NO_ROOM) scan_end = values.size == tape.size ? JsonScanEnd::TAPE_FULL : JsonScanEnd::NAMES_FULL;
        while (values.size > first) {  // takes the values of the line back; the nodes that it made stay
          JsonNode &node = nodes[node_of(tape[--values.size])];
          node.count--, node.last_parent = -1;
        }
        if (scan_end != JsonScanEnd::DONE) break;
        errors[scan.errors++] = {scan.lines, line.fault, at, start};
        while (!at_end(data, at)) at++;
      }
    }
    scan.position = at + 1;
    scan.lines++;
  }
  scan.values = values.size;
  scan.nodes = trie.names.used();
  return static_cast<int64_t>(scan_end);
}

int64_t rm_json_array_to_lines(Span<uint8_t> data, JsonArray &array) {
  for (int64_t at = 0; at < data.size; at++) {
    const uint8_t byte = data[at];
    if (array.in_string) {
      array.in_string = byte != '"' || array.is_escaped;
      array.is_escaped = byte == '\\' && !array.is_escaped;
      if (byte == '\n') data[at] = '\r';  // stays a control character, but does not end the line
    } else if (byte == '\n' || byte == '\r' || byte == '\t' || byte == ' ') {
      data[at] = ' ';
    } else if (array.depth < 0) {
      return static_cast<int64_t>(JsonArrayFault::DATA_AFTER_ARRAY);
    } else if (array.depth == 0) {  // the opening bracket of the array
      array.depth = 1;
      data[at] = ' ';
    } else if (array.depth == 1 && (byte == ',' || byte == ']')) {
      if (!array.element_has_begun && (byte == ',' || array.elements > 0)) return static_cast<int64_t>(JsonArrayFault::NO_ELEMENT);
      array.elements++;
      array.element_has_begun = 0;
      array.depth = byte == ']' ? -1 : 1;
      array.stop = at + 1;
      data[at] = '\n';
    } else {
      array.element_has_begun = 1;
      array.in_string = byte == '"';
      array.depth += (byte == '{' || byte == '[') - (byte == '}' || byte == ']');
      if (array.depth < 1) return static_cast<int64_t>(JsonArrayFault::NO_ELEMENT);
    }
  }
  return 0;
}

int64_t rm_find_json_member(ByteSpan data, int64_t start, ByteSpan name, JsonMember &member) {
  if (start < 0 || start > data.size) return BOUNDS;
  for (int64_t at = start; at < data.size && member.depth >= 0; at++) {
    const uint8_t byte = data[at];
    if (member.in_string) {
      const bool ends = byte == '"' && !member.is_escaped;
      if (member.in_key) {
        if (ends) member.has_name = member.matched == name.size, member.in_key = 0;
        else if (member.matched >= 0) member.matched = member.matched < name.size && name[member.matched] == byte ? member.matched + 1 : -1;
      }
      member.is_escaped = byte == '\\' && !member.is_escaped;
      member.in_string = !ends;
    } else if (byte == '\n' || byte == '\r' || byte == '\t' || byte == ' ') {
      continue;
    } else if (member.depth == 0) {
      if (byte != '{') return -1;
      member.depth = member.expects_key = 1;
    } else if (member.depth == 1 && member.expects_value) {
      member.expects_value = 0;
      if (member.has_name) return at;
      at--;  // the value is passed over
    } else if (member.depth == 1 && (byte == ':' || byte == ',')) {
      member.expects_value = byte == ':';
      member.expects_key = byte == ',';
    } else {
      if (byte == '"') {
        member.in_string = 1;
        member.in_key = member.depth == 1 && member.expects_key;
        member.matched = member.expects_key = 0;
      }
      member.depth += (byte == '{' || byte == '[') - (byte == '}' || byte == ']');
      if (member.depth == 0) member.depth = -1;
    }
  }
  return data.size;
}

int64_t rm_sort_json_values(Span<const JsonValue> tape, Span<int64_t> positions, Span<int64_t> kind_bits,
                            Span<int32_t> order, Span<uint8_t> kinds, Span<int32_t> parents, Span<int32_t> starts,
                            Span<int32_t> sizes) {
  const int64_t room = min(min(order.size, kinds.size), min(parents.size, min(starts.size, sizes.size)));
  if (kind_bits.size != positions.size) return BOUNDS;
  for (int64_t i = 0; i < tape.size; i++) {
    const JsonValue &value = tape[i];
    const int32_t node = node_of(value);
    if (!positions.holds(node) || positions[node] < 0 || positions[node] >= room) return BOUNDS;
    const int64_t at = positions[node]++;
    order[at] = static_cast<int32_t>(i);
    kinds[at] = static_cast<uint8_t>(detect_input_kind(value));
    parents[at] = value.parent;
    starts[at] = value.start;
    sizes[at] = value.stop - value.start;
    kind_bits[node] |= int64_t{1} << static_cast<int>(detect_input_kind(value));
  }
  return 0;
}

int64_t rm_join_texts(ByteSpan data, Span<const int32_t> starts, Span<const int32_t> sizes, ByteSpan kinds,
                      ByteSpan is_missing, Span<uint8_t> texts, Span<int64_t> offsets) {
  const int64_t count = starts.size;
  if (sizes.size != count || offsets.size != count + 1) return BOUNDS;
  if ((kinds && kinds.size != count) || (is_missing && is_missing.size != count)) return BOUNDS;
  int64_t at = offsets[0] = 0;
  for (int64_t i = 0; i < count; i++) {
    if (!is_missing || !is_missing[i]) {
      const int64_t start = starts[i], size = sizes[i];
      if (!data.holds(start, size) || size > texts.size - at) return BOUNDS;
      if (kinds && kinds[i] == static_cast<uint8_t>(JsonKind::ESCAPED_STRING)) {
        at += unescape(data, start, start + size, texts.data + at);
      } else {
        copy_short(texts.data + at, data.data + start, size);
        at += size;
      }
    }
    offsets[i + 1] = at;
  }
  return at;
}

}  // namespace rm
