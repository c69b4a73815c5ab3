// Lines of JSON (RFC 8259) to a tape of values, checked in one pass; and tapes to columns.
//
// A tape holds the scalars, objects and arrays of many records in the order of the text. Each names its node: the place
// in a record where it stands (`a`, `a.b`, the elements of `a.c`), in a trie of keys that grows as keys are met.
//
// Beyond the RFC, NaN, Infinity and -Infinity are numbers, since Python's json module writes them. A control character,
// an unknown escape or half a surrogate pair in a string is a fault: none has a UTF-8 form that means the same.
#include <charconv>

#include "features.h"
#include "numbers.h"

namespace rm {
namespace {

constexpr int64_t DEPTH = JSON_MOST_DEPTH;

int32_t node_of(const JsonValue &value) { return value.head >> 4; }
int kind_of(const JsonValue &value) { return value.head & 15; }

RM_INLINE int64_t skip_space(ByteSpan data, int64_t at) {
  while (at < data.size && (data[at] == ' ' || data[at] == '\t' || data[at] == '\r')) at++;
  return at;
}

RM_INLINE bool at_end(ByteSpan data, int64_t at) { return at >= data.size || data[at] == '\n'; }

// Whether a byte stands for itself inside a string.
RM_INLINE bool is_plain(uint8_t byte) { return byte >= 0x20 && byte != '"' && byte != '\\'; }

constexpr int STRIDE = sizeof(Lanes);

// How many bytes from `at` on are plain, up to STRIDE; reads STRIDE bytes.
RM_INLINE int plain_bytes(const uint8_t *at) {
  const Lanes bytes = load<Lanes>(at), controls = (bytes & int8_t{-0x20}) == 0;
  const uint64_t found = high_bits(controls | (bytes == int8_t{'"'}) | (bytes == int8_t{'\\'}));
  return first_bit(found | uint64_t{1} << STRIDE);
}

int hex4(ByteSpan data, int64_t at) {
  if (!data.holds(at, 4)) return -1;
  const char *const first = reinterpret_cast<const char *>(data.data + at);
  unsigned value = 0;
  return std::from_chars(first, first + 4, value, 16).ptr == first + 4 ? static_cast<int>(value) : -1;
}

struct Escape {
  int64_t length;  // bytes; a surrogate pair is one escape
  uint32_t point;  // the code point
  int fault;
};

// The escape whose backslash is at `at`.
Escape read_escape(ByteSpan data, int64_t at) {
  if (at + 1 >= data.size) return {1, 0, JSON_CUT};
  constexpr char NAMES[] = "\"\\/bfnrt", MEANT[] = "\"\\/\b\f\n\r\t";
  for (int i = 0; i < 8; i++)
    if (data[at + 1] == NAMES[i]) return {2, static_cast<uint8_t>(MEANT[i]), JSON_OK};
  if (data[at + 1] != 'u') return {1, 0, JSON_ESCAPE};
  const int first = hex4(data, at + 2);
  if (first < 0) return {1, 0, JSON_ESCAPE};
  if (first < 0xD800 || first > 0xDFFF) return {6, static_cast<uint32_t>(first), JSON_OK};
  if (first > 0xDBFF || at + 7 >= data.size || data[at + 6] != '\\' || data[at + 7] != 'u')
    return {1, 0, JSON_SURROGATE};
  const int second = hex4(data, at + 8);
  if (second < 0xDC00 || second > 0xDFFF) return {1, 0, JSON_SURROGATE};
  return {12, static_cast<uint32_t>(0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00)), JSON_OK};
}

// Writes the text of a checked string as UTF-8, which is never longer than its escapes; returns its length.
int64_t unescape(ByteSpan data, int64_t start, int64_t stop, uint8_t *into) {
  const ByteSpan text = {data.data, stop};
  uint8_t *out = into;
  while (start < stop) {
    if (data[start] != '\\') {
      *out++ = data[start++];
      continue;
    }
    const Escape escape = read_escape(text, start);
    const uint32_t point = escape.point;
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
  int64_t end;  // a string's closing quote, the byte after others; where the fault is, if there is one
  int kind, fault;  // kind: of the value; of a key its node
};

// The string whose first byte is at `at`.
RM_INLINE Token string_end(ByteSpan data, int64_t at) {
  int kind = JSON_STRING;
  for (;;) {
    if (RM_LIKELY(data.size - at >= STRIDE)) {
      const int plain = plain_bytes(data.data + at);
      at += plain;
      if (plain == STRIDE) continue;
    } else {
      while (at < data.size && is_plain(data[at])) at++;
      if (at >= data.size) return {at, kind, JSON_CUT};
    }
    if (RM_LIKELY(data[at] == '"')) return {at, kind, JSON_OK};
    if (data[at] != '\\') return {at, kind, data[at] == '\n' ? JSON_CUT : JSON_CONTROL};
    kind = JSON_ESCAPED;
    const Escape escape = read_escape(data, at);
    if (escape.fault) return {at, kind, escape.fault};
    at += escape.length;
  }
}

RM_INLINE int64_t skip_digits(ByteSpan data, int64_t at) {
  while (at < data.size && is_digit(data[at])) at++;
  return at;
}

RM_INLINE Token literal_end(ByteSpan data, int64_t at) {
  Token token = {at, JSON_NULL, data[at] == '\n' ? JSON_CUT : JSON_SYNTAX};
  const auto is = [&](const auto &word, int kind) {
    const int64_t size = sizeof word - 1;
    const bool is_there = data.holds(at, size) && memcmp(data.data + at, word, size) == 0;
    if (is_there) token = {at + size, kind, JSON_OK};
    return is_there;
  };
  is("true", JSON_TRUE) || is("false", JSON_FALSE) || is("null", JSON_NULL) || is("NaN", JSON_FLOAT) ||
      is("Infinity", JSON_FLOAT);
  return token;
}

RM_INLINE Token number_end(ByteSpan data, int64_t at) {
  at += data[at] == '-';
  if (at >= data.size) return {at, JSON_INT, JSON_CUT};
  if (data[at] == 'I') return literal_end(data, at);
  int64_t first = at;
  at = skip_digits(data, at);
  if (at == first || (data[first] == '0' && at > first + 1)) return {first, JSON_INT, JSON_NUMBER};
  int kind = JSON_INT;
  if (at < data.size && data[at] == '.') {
    kind = JSON_FLOAT;
    first = at + 1;
    at = skip_digits(data, first);
  }
  if (at > first && at < data.size && (data[at] | 0x20) == 'e') {
    kind = JSON_FLOAT;
    first = at + 1;
    first += first < data.size && (data[first] == '+' || data[first] == '-');
    at = skip_digits(data, first);
  }
  return {at, kind, at == first ? JSON_NUMBER : JSON_OK};
}

// The places in records: slots of a table of names, of which 0 is the record itself, and what is known of each.
struct Trie {
  Names names;  // of the part that is the object around it; of an array's elements "", of the part -1 - the array
  Span<JsonNode> nodes;

  // The node of a name, added if it is new; -1 if there is no room for it.
  int32_t find(const Key &key) {
    const int64_t known = names.used(), node = names.add(key);
    if (node >= known) {
      nodes[node] = {-1, -1, -1, 0, -1, 1};
      for (int64_t i = 0; i < key.size; i++) nodes[node].is_plain &= is_plain(key.at[i]);
    }
    return static_cast<int32_t>(node);
  }

  // The node of an array's elements; -1 if there is no room for it.
  RM_INLINE int32_t element(int32_t node) {
    int32_t &element = nodes[node].element;
    if (RM_UNLIKELY(element < 0)) {
      const uint8_t *const empty = names.free().data;
      element = find(Key({empty, empty}, -1 - node, empty));
    }
    return element;
  }

  // Whether the caller's arrays fit together, and what the nodes say lies within them.
  bool fits() {
    if (!names.fits() || names.slots() > nodes.size || nodes.size > INT32_MAX >> 4) return false;
    const auto is_node = [&](int32_t node) { return node == -1 || (node > 0 && node < names.used()); };
    for (int64_t i = 0; i < names.used(); i++)
      if (!is_node(nodes[i].element) || !is_node(nodes[i].first) || !is_node(nodes[i].next)) return false;
    return true;
  }
};

// The key at `at` of an object at the node `parent`, with the colon and the space after it. before: the member before it
// in the object, or -1. Mostly the key is the one that followed last time.
RM_INLINE Token read_key(ByteSpan data, int64_t at, Trie &trie, int32_t parent, int32_t before) {
  if (at_end(data, at) || data[at] != '"') return {at, 0, at_end(data, at) ? JSON_CUT : JSON_SYNTAX};
  const int64_t start = at + 1;
  int32_t &guess = before < 0 ? trie.nodes[parent].first : trie.nodes[before].next;
  if (RM_LIKELY(guess >= 0 && trie.nodes[guess].is_plain == 1)) {
    const ByteSpan known = trie.names.text(guess);
    const int64_t end = start + known.size;
    const bool is_key = end + 1 < data.size && data[end] == '"' && data[end + 1] == ':';
    if (RM_LIKELY(is_key && !memcmp(data.data + start, known.data, static_cast<size_t>(known.size))))
      return {skip_space(data, end + 2), guess, JSON_OK};
  }
  const Token key = string_end(data, start);
  if (key.fault) return {key.end, 0, key.fault};
  at = skip_space(data, key.end + 1);
  if (at_end(data, at) || data[at] != ':') return {at, 0, at_end(data, at) ? JSON_CUT : JSON_SYNTAX};
  at = skip_space(data, at + 1);
  ByteRange text{data.data + start, data.data + key.end};
  if (key.kind == JSON_ESCAPED) {
    const Span<uint8_t> free = trie.names.free();
    if (text.size() > free.size) return {at, 0, JSON_FULL};
    text = {free.data, free.data + unescape(data, start, key.end, free.data)};
  }
  const int32_t node = trie.find(Key(text, parent, text.end));
  if (node < 0) return {at, 0, JSON_FULL};
  guess = node;
  return {at, node, JSON_OK};
}

// An object or array that is being read.
struct Frame {
  int32_t node;
  int32_t ordinal;  // of the record, or among the values of its node
  int32_t value;    // on the tape
  bool is_array;
};

struct Tape {
  Span<JsonValue> values;
  int64_t size;   // in use
  int64_t limit;  // values beyond this are too many for the line
};

// Reads the object at `at`, the only thing on its line. Returns the end of the line, or where a fault is. kind: none.
Token scan_record(ByteSpan data, int64_t at, int32_t record, Trie &trie, Tape &tape) {
  const auto fault = [](int64_t place, int what) { return Token{place, 0, what}; };
  if (data[at] != '{') return fault(at, data[at] == JSON_UNREADABLE ? JSON_NOT_UTF8 : JSON_NOT_OBJECT);
  Frame stack[DEPTH];
  Frame *top = stack;
  *top = {0, record, -1, false};
  int32_t before = -1;
  bool is_first = true;  // nothing was read yet in the innermost object or array
  at = skip_space(data, at + 1);
  for (;;) {
    if (RM_UNLIKELY(at_end(data, at))) return fault(at, JSON_CUT);
    if (data[at] == (top->is_array ? ']' : '}')) {
      const int64_t stop = at + 1;
      at = skip_space(data, stop);
      if (top == stack) return fault(at, at_end(data, at) ? JSON_OK : JSON_TRAILING);
      tape.values[top->value].stop = static_cast<int32_t>(stop);
      before = top->node;
      top--;
      is_first = false;
      continue;
    }
    if (!is_first) {
      if (RM_UNLIKELY(data[at] != ',')) return fault(at, JSON_SYNTAX);
      at = skip_space(data, at + 1);
    }
    int32_t node;
    if (top->is_array) {
      node = trie.element(top->node);
      if (RM_UNLIKELY(node < 0)) return fault(at, JSON_FULL);
    } else {
      const Token key = read_key(data, at, trie, top->node, is_first ? -1 : before);
      at = key.end;
      node = key.kind;
      if (RM_UNLIKELY(key.fault)) return fault(at, key.fault);
      if (RM_UNLIKELY(trie.nodes[node].last == top->ordinal)) return fault(at, JSON_DUPLICATE);
    }
    if (RM_UNLIKELY(tape.size >= tape.limit)) return fault(at, JSON_MANY);
    if (RM_UNLIKELY(tape.size >= tape.values.size)) return fault(at, JSON_FULL);
    if (RM_UNLIKELY(at >= data.size)) return fault(at, JSON_CUT);
    const uint8_t byte = data[at];
    Token token = {at, byte == '{' ? JSON_OBJECT : JSON_ARRAY, JSON_OK};
    int64_t start = at;
    if (byte == '"') token = string_end(data, ++start);
    else if (byte == '-' || is_digit(byte)) token = number_end(data, at);
    else if (byte != '{' && byte != '[') token = literal_end(data, at);
    if (RM_UNLIKELY(token.fault)) return fault(token.end, token.fault);
    at = skip_space(data, token.end + (token.kind >= JSON_STRING));  // after the quote or bracket
    const int32_t first = static_cast<int32_t>(start), stop = static_cast<int32_t>(token.end);
    tape.values[tape.size++] = {node << 4 | token.kind, top->ordinal, first, stop};
    const int32_t ordinal = trie.nodes[node].count++;
    trie.nodes[node].last = top->ordinal;  // only now that it is on the tape, from where it can be taken back
    before = node;
    is_first = token.kind >= JSON_OBJECT;
    if (!is_first) continue;
    if (++top == stack + DEPTH) return fault(at, JSON_DEEP);
    *top = {node, ordinal, static_cast<int32_t>(tape.size - 1), token.kind == JSON_ARRAY};
  }
}

}  // namespace

int64_t rm_scan_json(ByteSpan data, Span<int64_t> table, Span<JsonNode> nodes, Span<JsonValue> tape,
                     Span<int32_t> record_lines, Span<int32_t> record_values, Span<JsonError> errors, JsonScan &scan) {
  Trie trie = {Names(table), nodes};
  if (!trie.fits() || data.size > INT32_MAX || scan.at < 0) return BOUNDS;
  for (int64_t i = 0; i < trie.names.used(); i++) nodes[i].count = 0, nodes[i].last = -1;
  Tape values = {tape, 0, 0};
  const int64_t most_records = min(record_lines.size, record_values.size);
  scan.line = scan.records = scan.errors = 0;
  int64_t full = JSON_DONE;
  while (scan.at < data.size && scan.records < most_records && scan.errors < errors.size) {
    const int64_t start = scan.at, first = values.size;
    int64_t at = skip_space(data, start);
    if (!at_end(data, at)) {
      values.limit = first + scan.most_values;
      const Token line = scan_record(data, at, static_cast<int32_t>(scan.records), trie, values);
      at = line.end;
      if (line.fault == JSON_OK) {
        record_lines[scan.records] = static_cast<int32_t>(scan.line);
        record_values[scan.records++] = static_cast<int32_t>(first);
      } else {
        if (line.fault == JSON_FULL) full = values.size == tape.size ? JSON_TAPE_FULL : JSON_NAMES_FULL;
        while (values.size > first) {  // as if the line had not been there; the nodes that it made stay
          JsonNode &node = nodes[node_of(tape[--values.size])];
          node.count--, node.last = -1;
        }
        if (full != JSON_DONE) break;
        errors[scan.errors++] = {scan.line, line.fault, at, start};
        while (!at_end(data, at)) at++;
      }
    }
    scan.at = at + 1;
    scan.line++;
  }
  scan.values = values.size;
  scan.nodes = trie.names.used();
  return full;
}

int64_t rm_json_array_to_lines(Span<uint8_t> data, JsonArray &array) {
  for (int64_t at = 0; at < data.size; at++) {
    const uint8_t byte = data[at];
    if (array.in_string) {
      array.in_string = byte != '"' || array.is_escaped;
      array.is_escaped = byte == '\\' && !array.is_escaped;
      if (byte == '\n') data[at] = '\r';
    } else if (byte == '\n' || byte == '\r' || byte == '\t' || byte == ' ') {
      data[at] = ' ';
    } else if (array.depth < 0) {
      return JSON_AFTER_ARRAY;
    } else if (array.depth == 0) {  // the array's own bracket
      array.depth = 1;
      data[at] = ' ';
    } else if (array.depth == 1 && (byte == ',' || byte == ']')) {
      if (!array.is_filled && (byte == ',' || array.elements > 0)) return JSON_NO_ELEMENT;
      array.elements++;
      array.is_filled = 0;
      array.depth = byte == ']' ? -1 : 1;
      data[at] = '\n';
    } else {
      array.is_filled = 1;
      array.in_string = byte == '"';
      array.depth += (byte == '{' || byte == '[') - (byte == '}' || byte == ']');
      if (array.depth < 1) return JSON_NO_ELEMENT;
    }
  }
  return 0;
}

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

int64_t rm_join_texts(ByteSpan data, Span<const int32_t> starts, Span<const int32_t> sizes, ByteSpan kinds,
                      ByteSpan missing, Span<uint8_t> texts, Span<int64_t> offsets) {
  const int64_t count = starts.size;
  if (sizes.size != count || offsets.size != count + 1) return BOUNDS;
  if ((kinds && kinds.size != count) || (missing && missing.size != count)) return BOUNDS;
  int64_t at = offsets[0] = 0;
  for (int64_t i = 0; i < count; i++) {
    if (!missing || !missing[i]) {
      const int64_t start = starts[i], size = sizes[i];
      if (!data.holds(start, size) || size > texts.size - at) return BOUNDS;
      if (kinds && kinds[i] == JSON_ESCAPED) {
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
