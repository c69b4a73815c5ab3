// Payloads to frames, bytes to checked frames, spans to other places, and where the records of a file are.
#include "frames.h"

namespace rm {
namespace {

// The finaliser of SplitMix64 without its last step: the digest goes on from it.
RM_INLINE uint64_t digest_word(uint64_t digest, uint64_t word) {
  uint64_t mixed = digest ^ (word * 0x9E3779B97F4A7C15u);
  mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9u;
  return mixed ^ (mixed >> 27);
}

// SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014): a bijection.
RM_INLINE uint64_t mixed_record(uint64_t key, uint32_t crc) {
  uint64_t mixed = key ^ (crc * 0x9E3779B97F4A7C15u);
  mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9u;
  mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBu;
  return mixed ^ (mixed >> 31);
}

// The end of the gap that begins at `at`, or -1. gaps: first byte of each and the byte after it, in turn, ascending.
int64_t gap_end(const Span<const int64_t> &gaps, int64_t at) {
  int64_t low = 0, high = gaps.size / 2;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (gaps[2 * middle] < at) low = middle + 1;
    else high = middle;
  }
  return low < gaps.size / 2 && gaps[2 * low] == at ? gaps[2 * low + 1] : -1;
}

}  // namespace

int64_t rm_frame(ByteSpan data, Span<const int64_t> offsets, Span<uint8_t> out, Span<int64_t> starts,
                 Span<int64_t> lengths, Span<uint32_t> crcs) {
  const int64_t count = starts.size;
  if (offsets.size != count + 1 || lengths.size != count || crcs.size != count) return BOUNDS;
  int64_t at = 0;
  for (int64_t i = 0; i < count; i++) {
    const int64_t start = offsets[i], length = offsets[i + 1] - start;
    if (!data.holds(start, length)) return BOUNDS;
    if (length > out.size - at - FRAME_BYTES) return BOUNDS;
    copy_short(out.data + at + HEADER_BYTES, data.data + start, length);
    starts[i] = at;
    lengths[i] = length;
    crcs[i] = put_frame(out.data + at, length);
    at += length + FRAME_BYTES;
  }
  return at;
}

int64_t rm_close_frames(Span<uint8_t> data, Span<const int64_t> starts, Span<const int64_t> lengths,
                        Span<uint32_t> crcs) {
  if (lengths.size != starts.size || crcs.size != starts.size) return BOUNDS;
  for (int64_t i = 0; i < starts.size; i++) {
    if (!ByteSpan{data.data, data.size - FRAME_BYTES}.holds(starts[i], lengths[i])) return BOUNDS;
    crcs[i] = put_frame(data.data + starts[i], lengths[i]);
  }
  return starts.size;
}

int64_t rm_frame_fault(ByteSpan data, int64_t at, int64_t max_record_bytes, int64_t final) {
  if (at < 0 || at > data.size) return BOUNDS;
  return frame_fault(data.data + at, data.size - at, max_record_bytes, final != 0);
}

int64_t rm_scan_frames(ByteSpan data, FrameScan &scan, Span<int64_t> starts, Span<int64_t> lengths,
                       Span<uint32_t> crcs) {
  int64_t at = scan.at, count = 0;
  if (at < 0 || at > data.size || lengths.size != starts.size || crcs.size != starts.size) return BOUNDS;
  int code = GOOD;
  for (; at < data.size; count++) {
    code = count == starts.size ? MORE
                                : frame_fault(data.data + at, data.size - at, scan.max_record_bytes, scan.final != 0);
    if (code != GOOD) break;
    const int64_t length = load<int64_t>(data.data + at);
    uint32_t crc = 0;
    if (scan.check) {
      crc = crc32c(0, data.data + at + HEADER_BYTES, length);
      if (unmasked(load<uint32_t>(data.data + at + HEADER_BYTES + length)) != crc) {
        code = PAYLOAD_CRC;
        break;
      }
    }
    starts[count] = at;
    lengths[count] = length;
    crcs[count] = crc;
    at += length + FRAME_BYTES;
  }
  // a frame that is cut off is no fault of a scan that isn't final
  scan.code = code == MORE && count < starts.size ? GOOD : code;
  scan.at = at;
  return count;
}

int64_t rm_hop_frames(ByteSpan data, FrameHop &hop, Span<int64_t> starts, Span<uint64_t> digest) {
  const int64_t lead = hop.lead;
  if (lead < 0 || lead > data.size || digest.size != 1) return BOUNDS;
  const uint8_t *const window = data.data + lead;
  const int64_t size = data.size - lead;
  int64_t at = 0, count = 0;
  int code = GOOD;
  for (; at < hop.left; count++) {
    const bool is_here = at <= size - HEADER_BYTES || hop.left - at < HEADER_BYTES;
    code = !is_here || count == starts.size ? MORE
                                            : frame_fault(window + at, hop.left - at, hop.max_record_bytes, true);
    if (code != GOOD) break;
    if (lead + at >= FOOTER_BYTES) digest[0] = digest_word(digest[0], load<uint32_t>(window + at - FOOTER_BYTES));
    const int64_t length = load<int64_t>(window + at);
    digest[0] = digest_word(digest[0], static_cast<uint64_t>(length));
    starts[count] = at;
    at += length + FRAME_BYTES;
  }
  hop.at = at;
  hop.code = code;
  return count;
}

int64_t rm_digest_frames(ByteSpan data, Span<const int64_t> starts, Span<const int64_t> lengths,
                         Span<uint64_t> digest) {
  if (lengths.size != starts.size || digest.size != 1) return BOUNDS;
  for (int64_t i = 0; i < starts.size; i++) {
    const int64_t length = lengths[i];
    if (length < 0 || !ByteSpan{data.data, data.size - FRAME_BYTES}.holds(starts[i], length)) return BOUNDS;
    const uint64_t found = digest_word(digest[0], static_cast<uint64_t>(length));
    digest[0] = digest_word(found, load<uint32_t>(data.data + starts[i] + HEADER_BYTES + length));
  }
  return 0;
}

int64_t rm_digest_word(Span<uint64_t> digest, int64_t word) {
  if (digest.size != 1) return BOUNDS;
  digest[0] = digest_word(digest[0], static_cast<uint64_t>(word));
  return 0;
}

int64_t rm_next_frame(ByteSpan data, int64_t at, int64_t max_record_bytes, int64_t whole) {
  if (at < 0) return BOUNDS;
  for (; at <= data.size - HEADER_BYTES; at++) {
    const int64_t length = load<int64_t>(data.data + at);
    if (length < 0 || length > max_record_bytes || (whole && length > data.size - at - FRAME_BYTES)) continue;
    if (unmasked(load<uint32_t>(data.data + at + 8)) == crc32c_of_word(static_cast<uint64_t>(length))) return at;
  }
  return data.size;
}

int64_t rm_copy_spans(Span<const ByteSpan> blocks, Span<const int32_t> which, Span<const int64_t> starts,
                      Span<const int64_t> sizes, Span<const int64_t> targets, Span<uint8_t> out) {
  constexpr int64_t AHEAD = 8;            // spans whose bytes are asked for before they are copied
  constexpr int64_t ASKED_BYTES = 1024;   // of each: the processor goes on by itself
  constexpr int64_t LINE_BYTES = 64;
  const int64_t count = starts.size;
  if (sizes.size != count || targets.size != count || (which ? which.size != count : blocks.size != 1))
    return BOUNDS;
  for (int64_t i = 0; i < count; i++) {
    const int64_t block = which ? which[i] : 0, size = sizes[i];
    if (block < 0 || block >= blocks.size || !out.holds(targets[i], size)) return BOUNDS;
    if (!blocks[block].holds(starts[i], size)) return i;
    const int64_t next = i + AHEAD;
    const int64_t from = next >= count ? -1 : which ? which[next] : 0;
    if (from >= 0 && from < blocks.size) {
      const uintptr_t address = reinterpret_cast<uintptr_t>(blocks[from].data) + static_cast<uintptr_t>(starts[next]);
      for (int64_t line = 0; line < min(sizes[next], ASKED_BYTES); line += LINE_BYTES)
        __builtin_prefetch(reinterpret_cast<const void *>(address + static_cast<uintptr_t>(line)));
    }
    copy_short(out.data + targets[i], blocks[block].data + starts[i], size);
  }
  return count;
}

uint64_t rm_record_sum(Span<const uint64_t> keys, Span<const uint32_t> crcs) {
  uint64_t sum = 0;
  for (int64_t i = 0; i < min(keys.size, crcs.size); i++) sum += mixed_record(keys[i], crcs[i]);
  return sum;
}

int64_t rm_locate_entries(ByteSpan data, Span<const int64_t> places, Span<const int64_t> records, int64_t count,
                          int64_t end, Span<int64_t> offsets, Span<int64_t> lengths) {
  constexpr int64_t ENTRY_BYTES = 24;  // offset, length, key
  const int64_t wanted = records.size;
  if (places.size != wanted || offsets.size != wanted || lengths.size != wanted) return BOUNDS;
  for (int64_t i = 0; i < wanted; i++) {
    const bool is_last = records[i] == count - 1;
    offsets[i] = lengths[i] = -1;
    if (records[i] < 0 || records[i] >= count) return i;
    if (!data.holds(places[i], is_last ? ENTRY_BYTES : 2 * ENTRY_BYTES)) return i;
    const uint8_t *const entry = data.data + places[i];
    offsets[i] = load<int64_t>(entry);
    lengths[i] = load<int64_t>(entry + 8);
    const int64_t next = is_last ? end : load<int64_t>(entry + ENTRY_BYTES);
    if (offsets[i] < 0 || lengths[i] < 0 || next > end || offsets[i] != next - FRAME_BYTES - lengths[i]) return i;
  }
  return wanted;
}

int64_t rm_walk_frames(ByteSpan data, Span<const int64_t> marks, int64_t stride, Span<const int64_t> records,
                       Span<const int64_t> shifts, Span<const int64_t> gaps, int64_t max_record_bytes,
                       Span<int64_t> offsets, Span<int64_t> lengths) {
  const int64_t count = records.size;
  if (stride < 1 || shifts.size != count || offsets.size != count || lengths.size != count) return BOUNDS;
  int64_t record = -1, at = 0;  // which begins there
  for (int64_t i = 0; i < count; i++) {
    const int64_t mark = records[i] / stride;
    if (records[i] < 0 || mark >= marks.size) return BOUNDS;
    if (record < mark * stride || record > records[i]) record = mark * stride, at = marks[mark];
    for (;; record++) {
      const int64_t place = at + shifts[i];
      if (place < 0 || place > data.size) return i;
      const bool is_good = frame_fault(data.data + place, data.size - place, max_record_bytes, true) == GOOD;
      lengths[i] = is_good ? load<int64_t>(data.data + place) : -1;
      if (record == records[i]) break;
      at = is_good ? at + lengths[i] + FRAME_BYTES : gap_end(gaps, at);
      if (at < 0) return i;
    }
    offsets[i] = at;
  }
  return count;
}

}  // namespace rm
