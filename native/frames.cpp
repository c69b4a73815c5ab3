// Payloads to frames, bytes to checked frames, spans to other places, and where the records of a file are.
#include "frames.h"

namespace rm {
namespace {

RM_INLINE uint64_t digest_word(uint64_t digest, uint64_t word) { return half_mixed(digest ^ word * GOLDEN); }

}  // namespace

int64_t rm_frame(ByteSpan data, Span<const int64_t> offsets, Span<uint8_t> out, Span<int64_t> starts,
                 Span<int64_t> lengths, Span<uint32_t> crcs) {
  const int64_t count = starts.size;
  if (offsets.size != count + 1 || lengths.size != count || crcs.size != count) return BOUNDS;
  int64_t at = 0;
  for (int64_t i = 0; i < count; i++) {
    const int64_t start = offsets[i], length = offsets[i + 1] - start;
    if (!data.holds(start, length) || length > out.size - at - FRAME_BYTES) return BOUNDS;
    copy_short(out.data + at + HEADER_BYTES, data.data + start, length);
    starts[i] = at, lengths[i] = length;
    crcs[i] = put_frame(out.data + at, length);
    at += length + FRAME_BYTES;
  }
  return at;
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
    const uint8_t *const frame = data.data + at;
    code = count == starts.size ? MORE : frame_fault(frame, data.size - at, scan.max_record_bytes, scan.final != 0);
    if (code != GOOD) break;
    const int64_t length = load<int64_t>(frame);
    const uint32_t crc = scan.check ? crc32c(0, frame + HEADER_BYTES, length) : 0;
    if (scan.check && unmasked(load<uint32_t>(frame + HEADER_BYTES + length)) != crc) {
      code = PAYLOAD_CRC;
      break;
    }
    starts[count] = at, lengths[count] = length, crcs[count] = crc;
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
  const auto add_footer = [&] {
    if (lead + at >= FOOTER_BYTES) digest[0] = digest_word(digest[0], load<uint32_t>(window + at - FOOTER_BYTES));
  };
  for (; at < hop.left; count++) {
    const bool is_here = at <= size - HEADER_BYTES || hop.left - at < HEADER_BYTES;
    const bool is_full = !is_here || count == starts.size;
    code = is_full ? MORE : frame_fault(window + at, hop.left - at, hop.max_record_bytes, true);
    if (code != GOOD) break;
    add_footer();
    const int64_t length = load<int64_t>(window + at);
    digest[0] = digest_word(digest[0], static_cast<uint64_t>(length));
    starts[count] = at;
    at += length + FRAME_BYTES;
  }
  if (at == hop.left && at <= size) add_footer();
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
  constexpr int64_t AHEAD = 8;  // spans whose bytes are asked for before they are copied
  constexpr int64_t ASKED_BYTES = 1024, LINE_BYTES = 64;  // of each: the processor goes on by itself
  const int64_t count = starts.size;
  if (sizes.size != count || targets.size != count || (which ? which.size != count : blocks.size != 1)) return BOUNDS;
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
  for (int64_t i = 0; i < min(keys.size, crcs.size); i++) sum += mixed(keys[i] ^ crcs[i] * GOLDEN);
  return sum;
}

}  // namespace rm
