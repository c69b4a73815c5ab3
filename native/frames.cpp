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
}  // namespace rm

using namespace rm;

RM_EXPORT int64_t rm_frame(const uint8_t *data, int64_t data_size, const int64_t *offsets, int64_t offsets_size,
                           uint8_t *out, int64_t out_size, int64_t *starts, int64_t starts_size, int64_t *lengths,
                           int64_t lengths_size, uint32_t *crcs, int64_t crcs_size) {
  const int64_t count = starts_size;
  if (offsets_size != count + 1 || lengths_size != count || crcs_size != count) return RM_BOUNDS;
  int64_t at = 0;
  for (int64_t i = 0; i < count; i++) {
    const int64_t start = offsets[i], length = offsets[i + 1] - start;
    if (!Span<const uint8_t>{data, data_size}.holds(start, length)) return RM_BOUNDS;
    if (length > out_size - at - FRAME_BYTES) return RM_BOUNDS;
    copy_short(out + at + HEADER_BYTES, data + start, length);
    starts[i] = at;
    lengths[i] = length;
    crcs[i] = put_frame(out + at, length);
    at += length + FRAME_BYTES;
  }
  return at;
}

RM_EXPORT int64_t rm_close_frames(uint8_t *data, int64_t data_size, const int64_t *starts, int64_t starts_size,
                                  const int64_t *lengths, int64_t lengths_size, uint32_t *crcs, int64_t crcs_size) {
  if (lengths_size != starts_size || crcs_size != starts_size) return RM_BOUNDS;
  for (int64_t i = 0; i < starts_size; i++) {
    if (!Span<uint8_t>{data, data_size - FRAME_BYTES}.holds(starts[i], lengths[i])) return RM_BOUNDS;
    crcs[i] = put_frame(data + starts[i], lengths[i]);
  }
  return starts_size;
}

RM_EXPORT int64_t rm_frame_fault(const uint8_t *data, int64_t data_size, int64_t at, int64_t max_record_bytes,
                                 int64_t final) {
  if (at < 0 || at > data_size) return RM_BOUNDS;
  return frame_fault(data + at, data_size - at, max_record_bytes, final != 0);
}

RM_EXPORT int64_t rm_scan_frames(const uint8_t *data, int64_t data_size, rm_frame_scan *scan, int64_t *starts,
                                 int64_t starts_size, int64_t *lengths, int64_t lengths_size, uint32_t *crcs,
                                 int64_t crcs_size) {
  int64_t at = scan->at, count = 0;
  if (at < 0 || at > data_size || lengths_size != starts_size || crcs_size != starts_size) return RM_BOUNDS;
  int code = RM_GOOD;
  for (; at < data_size; count++) {
    code = count == starts_size ? RM_MORE
                                : frame_fault(data + at, data_size - at, scan->max_record_bytes, scan->final != 0);
    if (code != RM_GOOD) break;
    const int64_t length = load<int64_t>(data + at);
    uint32_t crc = 0;
    if (scan->check) {
      crc = crc32c(0, data + at + HEADER_BYTES, length);
      if (unmasked(load<uint32_t>(data + at + HEADER_BYTES + length)) != crc) {
        code = RM_PAYLOAD_CRC;
        break;
      }
    }
    starts[count] = at;
    lengths[count] = length;
    crcs[count] = crc;
    at += length + FRAME_BYTES;
  }
  // a frame that is cut off is no fault of a scan that isn't final
  scan->code = code == RM_MORE && count < starts_size ? RM_GOOD : code;
  scan->at = at;
  return count;
}

RM_EXPORT int64_t rm_hop_frames(const uint8_t *data, int64_t data_size, rm_frame_hop *hop, int64_t *starts,
                                int64_t starts_size, uint64_t *digest, int64_t digest_size) {
  const int64_t lead = hop->lead;
  if (lead < 0 || lead > data_size || digest_size != 1) return RM_BOUNDS;
  const uint8_t *const window = data + lead;
  const int64_t size = data_size - lead;
  int64_t at = 0, count = 0;
  int code = RM_GOOD;
  for (; at < hop->left; count++) {
    const bool is_here = at <= size - HEADER_BYTES || hop->left - at < HEADER_BYTES;
    code = !is_here || count == starts_size ? RM_MORE
                                            : frame_fault(window + at, hop->left - at, hop->max_record_bytes, true);
    if (code != RM_GOOD) break;
    if (lead + at >= FOOTER_BYTES) *digest = digest_word(*digest, load<uint32_t>(window + at - FOOTER_BYTES));
    const int64_t length = load<int64_t>(window + at);
    *digest = digest_word(*digest, static_cast<uint64_t>(length));
    starts[count] = at;
    at += length + FRAME_BYTES;
  }
  hop->at = at;
  hop->code = code;
  return count;
}

RM_EXPORT int64_t rm_digest_frames(const uint8_t *data, int64_t data_size, const int64_t *starts, int64_t starts_size,
                                   const int64_t *lengths, int64_t lengths_size, uint64_t *digest,
                                   int64_t digest_size) {
  if (lengths_size != starts_size || digest_size != 1) return RM_BOUNDS;
  for (int64_t i = 0; i < starts_size; i++) {
    const int64_t length = lengths[i];
    if (length < 0 || !Span<const uint8_t>{data, data_size - FRAME_BYTES}.holds(starts[i], length)) return RM_BOUNDS;
    const uint64_t found = digest_word(*digest, static_cast<uint64_t>(length));
    *digest = digest_word(found, load<uint32_t>(data + starts[i] + HEADER_BYTES + length));
  }
  return 0;
}

RM_EXPORT int64_t rm_digest_word(uint64_t *digest, int64_t digest_size, int64_t word) {
  if (digest_size != 1) return RM_BOUNDS;
  *digest = digest_word(*digest, static_cast<uint64_t>(word));
  return 0;
}

RM_EXPORT int64_t rm_next_frame(const uint8_t *data, int64_t data_size, int64_t at, int64_t max_record_bytes,
                                int64_t whole) {
  if (at < 0) return RM_BOUNDS;
  for (; at <= data_size - HEADER_BYTES; at++) {
    const int64_t length = load<int64_t>(data + at);
    if (length < 0 || length > max_record_bytes || (whole && length > data_size - at - FRAME_BYTES)) continue;
    if (unmasked(load<uint32_t>(data + at + 8)) == crc32c_of_word(static_cast<uint64_t>(length))) return at;
  }
  return data_size;
}

RM_EXPORT int64_t rm_copy_spans(const rm_bytes *blocks, int64_t blocks_size, const int32_t *which, int64_t which_size,
                                const int64_t *starts, int64_t starts_size, const int64_t *sizes, int64_t sizes_size,
                                const int64_t *targets, int64_t targets_size, uint8_t *out, int64_t out_size) {
  constexpr int64_t AHEAD = 8;            // spans whose bytes are asked for before they are copied
  constexpr int64_t ASKED_BYTES = 1024;   // of each: the processor goes on by itself
  constexpr int64_t LINE_BYTES = 64;
  const int64_t count = starts_size;
  if (sizes_size != count || targets_size != count || (which ? which_size != count : blocks_size != 1))
    return RM_BOUNDS;
  for (int64_t i = 0; i < count; i++) {
    const int64_t block = which ? which[i] : 0, size = sizes[i];
    if (block < 0 || block >= blocks_size || !Span<uint8_t>{out, out_size}.holds(targets[i], size)) return RM_BOUNDS;
    if (!Span<const uint8_t>{blocks[block].data, blocks[block].size}.holds(starts[i], size)) return i;
    const int64_t next = i + AHEAD;
    const int64_t from = next >= count ? -1 : which ? which[next] : 0;
    if (from >= 0 && from < blocks_size) {
      const uintptr_t address = reinterpret_cast<uintptr_t>(blocks[from].data) + static_cast<uintptr_t>(starts[next]);
      for (int64_t line = 0; line < min(sizes[next], ASKED_BYTES); line += LINE_BYTES)
        __builtin_prefetch(reinterpret_cast<const void *>(address + static_cast<uintptr_t>(line)));
    }
    copy_short(out + targets[i], blocks[block].data + starts[i], size);
  }
  return count;
}

RM_EXPORT uint64_t rm_record_sum(const uint64_t *keys, int64_t keys_size, const uint32_t *crcs, int64_t crcs_size) {
  uint64_t sum = 0;
  for (int64_t i = 0; i < min(keys_size, crcs_size); i++) sum += mixed_record(keys[i], crcs[i]);
  return sum;
}

RM_EXPORT int64_t rm_locate_entries(const uint8_t *data, int64_t data_size, const int64_t *places, int64_t places_size,
                                    const int64_t *records, int64_t records_size, int64_t count, int64_t end,
                                    int64_t *offsets, int64_t offsets_size, int64_t *lengths, int64_t lengths_size) {
  constexpr int64_t ENTRY_BYTES = 24;  // offset, length, key
  const int64_t wanted = records_size;
  if (places_size != wanted || offsets_size != wanted || lengths_size != wanted) return RM_BOUNDS;
  for (int64_t i = 0; i < wanted; i++) {
    const bool is_last = records[i] == count - 1;
    offsets[i] = lengths[i] = -1;
    if (records[i] < 0 || records[i] >= count) return i;
    if (!Span<const uint8_t>{data, data_size}.holds(places[i], is_last ? ENTRY_BYTES : 2 * ENTRY_BYTES)) return i;
    const uint8_t *const entry = data + places[i];
    offsets[i] = load<int64_t>(entry);
    lengths[i] = load<int64_t>(entry + 8);
    const int64_t next = is_last ? end : load<int64_t>(entry + ENTRY_BYTES);
    if (offsets[i] < 0 || lengths[i] < 0 || next > end || offsets[i] != next - FRAME_BYTES - lengths[i]) return i;
  }
  return wanted;
}

RM_EXPORT int64_t rm_walk_frames(const uint8_t *data, int64_t data_size, const int64_t *marks, int64_t marks_size,
                                 int64_t stride, const int64_t *records, int64_t records_size, const int64_t *shifts,
                                 int64_t shifts_size, const int64_t *gaps, int64_t gaps_size, int64_t max_record_bytes,
                                 int64_t *offsets, int64_t offsets_size, int64_t *lengths, int64_t lengths_size) {
  const int64_t count = records_size;
  if (stride < 1 || shifts_size != count || offsets_size != count || lengths_size != count) return RM_BOUNDS;
  int64_t record = -1, at = 0;  // which begins there
  for (int64_t i = 0; i < count; i++) {
    const int64_t mark = records[i] / stride;
    if (records[i] < 0 || mark >= marks_size) return RM_BOUNDS;
    if (record < mark * stride || record > records[i]) record = mark * stride, at = marks[mark];
    for (;; record++) {
      const int64_t place = at + shifts[i];
      if (place < 0 || place > data_size) return i;
      const bool is_good = frame_fault(data + place, data_size - place, max_record_bytes, true) == RM_GOOD;
      lengths[i] = is_good ? load<int64_t>(data + place) : -1;
      if (record == records[i]) break;
      at = is_good ? at + lengths[i] + FRAME_BYTES : gap_end({gaps, gaps_size}, at);
      if (at < 0) return i;
    }
    offsets[i] = at;
  }
  return count;
}
